"""Makes the link of a client that owns its connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from odradek.cluster.cluster import Cluster, LinkState
from odradek.cluster.endpoints import parse_bootstrap
from odradek.transports.security import SaslCredentials, TlsOptions
from odradek.transports.transport import Transport


def connect(
    bootstrap: str | Sequence[str] | None,
    tls: TlsOptions | None = None,
    *,
    credentials: SaslCredentials | None = None,
    transport: Transport | None = None,
    on_state: Callable[[LinkState], None] | None = None,
) -> Cluster:
    """A link over gRPC, or over `transport`. Nothing is dialled yet."""
    endpoints = parse_bootstrap(bootstrap)
    if transport is None:
        from odradek.transports.grpc_transport import GrpcTransport

        transport = GrpcTransport(tls, credentials=credentials)
    return Cluster(endpoints, transport, on_state=on_state)
