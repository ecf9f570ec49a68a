"""The controller's connection to the outside: gRPC servicers, the metadata feed, and the host that proposes
decisions to the quorum.
"""
