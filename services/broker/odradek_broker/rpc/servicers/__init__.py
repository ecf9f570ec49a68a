"""gRPC servicers of the broker, one a service."""
