"""The shell around the controller: gRPC servicers, the metadata feed, the host that proposes."""
