"""Kafka's protocol: frames, headers, API keys, error codes."""
