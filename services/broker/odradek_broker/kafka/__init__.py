"""The Kafka protocol: listeners, connections, frames, and a handler for each request."""
