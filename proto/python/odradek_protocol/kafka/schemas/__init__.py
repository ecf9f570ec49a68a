"""Kafka's schemas of the messages that kafka-python does not have, in the form of Kafka's own files."""
