"""The broker's gRPC services: listeners, authorization and servicers, for clients and for other brokers."""
