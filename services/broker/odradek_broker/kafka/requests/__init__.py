"""The handlers of Kafka requests, grouped by subject."""
