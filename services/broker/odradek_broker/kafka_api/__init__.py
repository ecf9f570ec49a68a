"""Kafka's requests, one a file, and their registry."""
