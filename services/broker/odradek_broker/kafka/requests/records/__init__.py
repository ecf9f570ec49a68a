"""Kafka requests that read, write or delete records."""
