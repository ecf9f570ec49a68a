"""Logins, authorization and quotas, for the Kafka protocol and gRPC."""
