"""Varints, strings and arrays of Kafka's wire: (buffer, offset) -> (value, next offset)."""
