"""How requests reach a broker: one seam, over gRPC or in memory.

The rest of the SDK knows `Transport` and `Method` only; `GrpcTransport` is imported when a client
connects, so that `import odradek` loads no gRPC.
"""

from odradek.transports.transport import Method, MethodKind, Stream, Transport

__all__ = ["Method", "MethodKind", "Stream", "Transport"]
