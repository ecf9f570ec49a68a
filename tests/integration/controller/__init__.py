"""The controller behind its real quorum and its real gRPC services."""
