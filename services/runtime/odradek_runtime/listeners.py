"""Listeners of a process: their addresses in Kafka's form, refusal of insecure ones, and recognition of clients of
another protocol.

A cluster has several ports, and using the wrong one is the most common mistake of a first day. `recognize`
distinguishes protocols by the first four bytes. On a Kafka connection these are a frame's length; those of HTTP/2
(gRPC), HTTP/1 and TLS would be lengths above any limit, so no Kafka client is taken for another one.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

_ID_MAX: Final = (1 << 31) - 1


class ListenRefused(RuntimeError):
    """The process must not, or cannot, listen at an address; the message names the reason and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerAddress:
    """An address `NAME://host:port`. An empty host means all addresses of the machine, and port 0 any free port."""

    name: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Return host:port, with an IPv6 address in brackets."""
        return host_port(self.host or "0.0.0.0", self.port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)


def host_port(host: str, port: int) -> str:
    """Return host:port as in a URL, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str) -> tuple[str, int]:
    """Parse `host:port` or `[v6]:port`. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} does not have the form host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether `host` is an address of the loopback interface, or localhost."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_listeners(text: str) -> tuple[ListenerAddress, ...]:
    """Parse `NAME://host:port,...`. Raises ValueError for a bad entry or a repeated name."""
    listeners: dict[str, ListenerAddress] = {}
    for entry in text.split(","):
        if not entry.strip():
            continue
        name, sep, authority = entry.strip().partition("://")
        if not sep or not name:
            raise ValueError(f"{entry.strip()!r} does not have the form NAME://host:port")
        host, port = split_host_port(authority)
        if name.upper() in listeners:
            raise ValueError(f"listener {name.upper()} is given twice")
        listeners[name.upper()] = ListenerAddress(name=name.upper(), host=host, port=port)
    return tuple(listeners.values())


def parse_endpoints(text: str) -> tuple[tuple[int, str, int], ...]:
    """Return (id, host, port) of each `id@host:port,...`, as controller.quorum.voters has it."""
    endpoints: dict[int, tuple[int, str, int]] = {}
    for entry in text.split(","):
        if not entry.strip():
            continue
        node, at, authority = entry.strip().partition("@")
        if not at or not node.isdigit():
            raise ValueError(f"{entry.strip()!r} does not have the form ID@host:port")
        if int(node) > _ID_MAX:
            raise ValueError(f"id {node} is not from 0 to {_ID_MAX}")
        host, port = split_host_port(authority)
        if int(node) in endpoints:
            raise ValueError(f"id {node} is given twice")
        endpoints[int(node)] = (int(node), host, port)
    return tuple(endpoints.values())


def refuse_open_without_tls(
    listeners: Iterable[ListenerAddress], *, has_tls: bool, insecure: bool
) -> None:
    """Raise ListenRefused for a listener beyond loopback without TLS, unless `insecure`."""
    if has_tls or insecure:
        return
    for listener in listeners:
        if not listener.is_loopback:
            raise ListenRefused(
                f"listener {listener.name} on {listener.authority} is reachable from other"
                f" machines, but there is no TLS: set ssl.certificate.location, ssl.key.location"
                f" and ssl.ca.location, or listen on 127.0.0.1, or accept that everybody may read"
                f" and write with --insecure"
            )


def refuse_open_without_authentication(
    listeners: Iterable[ListenerAddress], authenticated: Container[str], *, insecure: bool
) -> None:
    """Raise ListenRefused for a listener beyond loopback that does not authenticate its clients, unless `insecure`."""
    for listener in listeners:
        if not insecure and not listener.is_loopback and listener.name not in authenticated:
            raise ListenRefused(
                f"listener {listener.name} on {listener.authority} is reachable from other"
                f" machines, but does not authenticate clients: set ssl.client.auth=required, or for a"
                f" Kafka listener sasl.enabled.mechanisms, or listen on 127.0.0.1, or accept that"
                f" everybody may read and write with --insecure"
            )


def open_port(listener: ListenerAddress, *, backlog: int = 1024) -> socket.socket:
    """Return a listening TCP socket. Raises ListenRefused, whose message names the port and the remedy."""
    host = listener.host or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, listener.port))
        opened.listen(backlog)
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        raise port_refused(listener, error) from None
    return opened


_SETTING_OF: Final = {
    "METRICS": "metrics.port",
    "HEALTH": "health.port",
    "HTTP": "listen",
}
"""For each listener that is not in the setting `listeners`: the name of the setting that has its port."""


def port_refused(listener: ListenerAddress, error: OSError | None = None) -> ListenRefused:
    """Return the error for a `listener` that could not be opened."""
    if error is None or error.errno == errno.EADDRINUSE:
        return ListenRefused(
            f"port {listener.port} on {listener.host or 'all addresses'} is in use (listener"
            f" {listener.name}): stop what listens there (ss -ltnp 'sport = :{listener.port}'"
            f" names it), or set another port in {_SETTING_OF.get(listener.name, 'listeners')}"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ListenRefused(
            f"{listener.host} is not an address of this machine (listener {listener.name}): listen on"
            f" one of its own, and put the address that others use into advertised.listeners"
        )
    return ListenRefused(
        f"cannot listen on {listener.authority} (listener {listener.name}): {error.strerror}"
    )


GRPC: Final = "gRPC"
HTTP: Final = "HTTP"
TLS: Final = "TLS"
KAFKA: Final = "Kafka"

_HTTP_METHODS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN")
_HTTP2_SETTINGS: Final = 4
_HTTP2_GOAWAY: Final = 7
_HTTP_1_1_REQUIRED: Final = 0xD
_DEBUG_BYTES_MAX: Final = 1024


def recognize(first: bytes) -> str | None:
    """Return the protocol that starts with these four bytes, or None for anything else."""
    if first == b"PRI ":  # the connection preface of HTTP/2, RFC 9113 section 3.4
        return GRPC
    if first in _HTTP_METHODS:
        return HTTP
    if first[:2] == b"\x16\x03":  # a TLS handshake record of any version
        return TLS
    if first[:1] == b"\0":  # the length of a frame below 16 MiB
        return KAFKA
    return None


def farewell(protocol: str, advice: str) -> bytes:
    """Return bytes for a client of that protocol. They are sent before the connection is closed, so that the client's
    error shows `advice`.

    gRPC shows the debug data of a GOAWAY; TLS and Kafka have no place for a text.
    """
    if protocol == GRPC:
        words = advice.encode()[:_DEBUG_BYTES_MAX]
        goaway = struct.pack(">II", 0, _HTTP_1_1_REQUIRED) + words
        return _http2_frame(_HTTP2_SETTINGS, b"") + _http2_frame(_HTTP2_GOAWAY, goaway)
    if protocol == HTTP:
        body = f"{advice}\n".encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body
    return b""


def _http2_frame(kind: int, payload: bytes) -> bytes:
    """Return a frame of stream 0 without flags, RFC 9113 section 4.1."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, 0, 0) + payload
