"""Where clients connect: Kafka frames and gRPC."""
