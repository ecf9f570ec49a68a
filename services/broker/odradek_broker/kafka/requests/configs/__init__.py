"""Kafka requests that describe or change configs and client quotas."""
