"""Odradek beside Apache Kafka, with the same client on the same machine: `make bench-kafka`."""
