"""gRPC servicers: controller, admin, metadata feed."""
