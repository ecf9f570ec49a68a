"""How requests reach a broker: the interface `Transport`, implemented over gRPC and in memory.

The rest of the SDK knows `Transport` and `Method` only. `grpc_transport` is imported when a client connects, so
that `import odradek` does not load gRPC.
"""
