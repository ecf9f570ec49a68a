"""The controller's gRPC services, the metadata feed, and the host that proposes the controller's decisions to the
quorum.
"""
