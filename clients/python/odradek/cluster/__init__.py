"""The client's connection to its cluster: transport, metadata, offset look-ups, retries.

The rest of the SDK knows `transport.Transport` and `methods.Method` only. `grpc_transport` is imported when a client
connects, so that `import odradek` does not load gRPC.
"""
