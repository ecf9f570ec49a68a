"""The client's connection to its cluster: transport, metadata, offset look-ups and retries.

The rest of the SDK uses only `transport.Transport` and `methods.Method`. `grpc_transport` is imported when a client
connects, so that `import odradek` does not load gRPC.
"""
