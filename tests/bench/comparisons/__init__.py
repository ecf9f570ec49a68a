"""Compares Odradek with Apache Kafka, and with Spark's own Kafka source:

`make bench-kafka`, `make bench-spark`.
"""
