"""Compares Odradek with Apache Kafka (`make bench-kafka`) and with Spark's own Kafka source (`make bench-spark`)."""
