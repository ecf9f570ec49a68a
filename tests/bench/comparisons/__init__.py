"""Odradek beside Apache Kafka, and beside Spark's own Kafka source: `make bench-kafka`, `make bench-spark`."""
