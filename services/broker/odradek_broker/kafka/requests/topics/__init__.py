"""Kafka requests that create, delete or describe topics and partitions."""
