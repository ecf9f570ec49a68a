"""Listeners of a process: addresses in Kafka's form, refusal of insecure listeners, and recognition of clients that
use another protocol than the listener.

A cluster has several ports, and new users often connect to the wrong one. `recognize` distinguishes protocols by the
first four bytes of a connection. On a Kafka connection these are the length of a frame. The first bytes of HTTP/2
(gRPC), HTTP/1 and TLS would be a length above any limit, so a Kafka client is never taken for another one.
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
    """The process cannot or must not listen on an address. The message names the reason and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerAddress:
    """The address of a listener: `NAME://host:port`. An empty host means all addresses of the machine. Port 0 means any
    free port.
    """

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
    """Parse the value of `listeners`, `NAME://host:port,...`. Raises ValueError for a bad entry or a repeated name."""
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
    """Parse the value of `controller.quorum.voters`, `id@host:port,...`, to (id, host, port). Raises ValueError."""
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
    """Raise ListenRefused if the process has no TLS and other machines can reach a listener, unless `insecure`."""
    if has_tls or insecure:
        return
    for listener in listeners:
        if not listener.is_loopback:
            raise ListenRefused(
                f"listener {listener.name} on {listener.authority} is reachable from other"
                f" machines, but there is no TLS: set ssl.certificate.location, ssl.key.location"
                f" and ssl.ca.location, or listen on 127.0.0.1, or start with --insecure, which lets"
                f" everybody on the network read and write"
            )


def refuse_open_without_authentication(
    listeners: Iterable[ListenerAddress], authenticated: Container[str], *, insecure: bool
) -> None:
    """Raise ListenRefused if other machines can reach a listener that is not in `authenticated`, unless `insecure`.

    `authenticated` has the names of the listeners that authenticate their clients.
    """
    for listener in listeners:
        if not insecure and not listener.is_loopback and listener.name not in authenticated:
            raise ListenRefused(
                f"listener {listener.name} on {listener.authority} is reachable from other"
                f" machines, but does not authenticate clients: set ssl.client.auth=required, or for a"
                f" Kafka listener sasl.enabled.mechanisms, or listen on 127.0.0.1, or start with"
                f" --insecure, which lets everybody on the network read and write"
            )


def open_port(listener: ListenerAddress, *, backlog: int = 1024) -> socket.socket:
    """Return a non-blocking TCP socket that listens on the listener's address. Raises ListenRefused."""
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
"""The setting that has a listener's port, for each listener that is not part of the setting `listeners`."""


def port_refused(listener: ListenerAddress, error: OSError | None = None) -> ListenRefused:
    """Return the error for a listener that could not be opened. `error` None means that its port is in use."""
    if error is None or error.errno == errno.EADDRINUSE:
        return ListenRefused(
            f"port {listener.port} on {listener.host or 'all addresses'} is in use (listener"
            f" {listener.name}): stop the process that uses it (ss -ltnp 'sport = :{listener.port}'"
            f" shows it), or set another port in {_SETTING_OF.get(listener.name, 'listeners')}"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ListenRefused(
            f"{listener.host} is not an address of this machine (listener {listener.name}): listen on"
            f" an address of this machine, and set advertised.listeners to the address that clients use"
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
    """Return the protocol of a connection that starts with these four bytes, or None if it is not a known one."""
    if first == b"PRI ":  # the connection preface of HTTP/2, RFC 9113 section 3.4
        return GRPC
    if first in _HTTP_METHODS:
        return HTTP
    if first[:2] == b"\x16\x03":  # a TLS handshake record of any version
        return TLS
    if first[:1] == b"\0":  # the length of a frame below 16 MiB
        return KAFKA
    return None


_ADDRESSES_NAMED_MAX: Final = 3


def wrong_listener(name: str, owner: str, users: str, grpc_addresses: Iterable[str]) -> str:
    """Return the text for a client of the SDK at a listener that only processes of the cluster use.

    `owner` is the process, such as `broker 1`, `users` are those whom the listener is for, and `grpc_addresses` are
    addresses of brokers for clients. If none is known, the text names the default port.
    """
    known = ", ".join(list(grpc_addresses)[:_ADDRESSES_NAMED_MAX])
    where = f", {known}" if known else " (listener GRPC, port 9090 by default)"
    return (
        f"this is the listener {name} of {owner}, for {users}: the SDK and `odradek` connect to the gRPC address of a"
        f" broker{where}"
    )


def farewell(protocol: str, advice: str) -> bytes:
    """Return the bytes to send to a client of this protocol before its connection is closed. They make the client show
    `advice` in its error.

    gRPC clients show the debug data of a GOAWAY frame. For TLS and Kafka the result is empty, because these protocols
    cannot transmit a text at that point.
    """
    if protocol == GRPC:
        debug_data = advice.encode()[:_DEBUG_BYTES_MAX]
        goaway = struct.pack(">II", 0, _HTTP_1_1_REQUIRED) + debug_data
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
    """Return an HTTP/2 frame of stream 0 without flags (RFC 9113 section 4.1). `kind` is the frame type."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, 0, 0) + payload
