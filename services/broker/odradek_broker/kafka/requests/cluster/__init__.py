"""Kafka requests about brokers, features, the quorum, replica placement and API versions."""
