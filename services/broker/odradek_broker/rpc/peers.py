"""The client's end of a gRPC connection, as gRPC and the kernel name it."""

from __future__ import annotations

from urllib.parse import unquote

Peer = tuple[str, int]
"""The IP address and port of a client."""


def peer_of(text: str) -> Peer:
    """Return the address and port of a gRPC peer's name such as `ipv4:10.0.0.1:4711` or `ipv6:%5B::1%5D:4711`."""
    host, _, port = text.partition(":")[2].rpartition(":")
    if "%" in host:
        host = unquote(host)
    return host.strip("[]").removeprefix("::ffff:"), int(port) if port.isdigit() else 0
