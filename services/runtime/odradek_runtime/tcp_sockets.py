"""The kernel's counters of the connections to a port, read through Linux's sock_diag(7), which needs no privilege.

gRPC accepts connections in its C core. It reports neither the number of connections from an address nor the bytes that
arrived on a connection. The kernel reports both for all connections to a port within a millisecond.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_ESTABLISHED: Final = 1 << 1
_INET_DIAG_INFO: Final = 2
_HEADER: Final = struct.Struct("=IHHII")  # struct nlmsghdr
_ATTRIBUTES_AT: Final = 72  # attributes begin after a struct inet_diag_msg of this size
_BYTES_ACKED_AT: Final = 120  # offset in struct tcp_info; the received bytes follow
_REPLY_BYTES: Final = 1 << 17
_TIMEOUT_S: Final = 5.0
CLOSED_MAX: Final = 1_000
"""The largest number of closed connections that `ClosedConnections.read` returns, so that one call stays short even if
many connections are closed at the same time.
"""
_LOCAL_PORT_AT: Final = 4  # in a struct inet_diag_msg, which begins after the header
_CLOSED_GROUPS: Final = 0b101  # SKNLGRP_INET_TCP_DESTROY and SKNLGRP_INET6_TCP_DESTROY
_SO_ATTACH_FILTER: Final = 26


class TcpConnection(NamedTuple):
    """An open connection to a local port.

    `host` and `port` are the peer's; an IPv4-mapped IPv6 address is written as IPv4. `acked_bytes` is the number of
    sent bytes that the peer's kernel has acknowledged.
    """

    host: str
    port: int
    received_bytes: int
    acked_bytes: int


def connections_to(port: int) -> list[TcpConnection]:
    """Return the open connections to a local port. Raises OSError if the kernel does not report connections."""
    if not hasattr(socket, "AF_NETLINK"):
        raise OSError("sock_diag is Linux only")
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
    ) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        connections: list[TcpConnection] = []
        for family in (socket.AF_INET, socket.AF_INET6):
            kernel.send(_request(family, port))
            _collect(kernel, family, connections)
        return connections


class ClosedConnection(NamedTuple):
    """A connection that no longer exists, with the counters that it had at the end."""

    local_port: int
    connection: TcpConnection


class ClosedConnections:
    """Lists the connections to local ports that were closed since the last call of `read`.

    The kernel keeps the list, whose length it limits: it leaves out connections if more than a few hundred are closed
    between two calls.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        """Raises OSError if the kernel does not report closed connections."""
        if not hasattr(socket, "AF_NETLINK"):
            raise OSError("sock_diag is Linux only")
        self._kernel = socket.socket(
            socket.AF_NETLINK,
            socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
            _NETLINK_SOCK_DIAG,
        )
        try:
            _accept_only(self._kernel, ports)
            self._kernel.bind((0, _CLOSED_GROUPS))
        except BaseException:
            self.close()
            raise

    def read(self) -> list[ClosedConnection]:
        """Return the connections that were closed since the last call, at most CLOSED_MAX of them."""
        closed: list[ClosedConnection] = []
        for _ in range(CLOSED_MAX):
            try:
                message = self._kernel.recv(_REPLY_BYTES)[_HEADER.size :]
            except OSError as error:
                if (
                    error.errno == errno.ENOBUFS
                ):  # the kernel has left out connections, and continues
                    continue
                break  # there is no further report, or the kernel has no memory for one
            (local_port,) = struct.unpack_from(">H", message, _LOCAL_PORT_AT)
            closed.append(ClosedConnection(local_port, _connection(message, message[0])))
        return closed

    def close(self) -> None:
        """Stop the kernel's reports."""
        self._kernel.close()


def _accept_only(kernel: socket.socket, ports: Sequence[int]) -> None:
    """Attach a filter (classic BPF) to the socket, so that the kernel discards reports about other local ports."""
    load_half, jump_if_equal, give = 0x28, 0x15, 0x06
    accept = len(ports) + 1
    program = [(load_half, 0, 0, _HEADER.size + _LOCAL_PORT_AT)]
    program += [(jump_if_equal, accept - at, 0, port) for at, port in enumerate(ports, 1)]
    program += [(give, 0, 0, 0), (give, 0, 0, 0xFFFF_FFFF)]
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HP", len(program), ctypes.addressof(buffer))
    kernel.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)


def _request(family: int, port: int) -> bytes:
    family_and_states = struct.pack(
        "=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _ESTABLISHED
    )
    ports_and_addresses = struct.pack(">HH", port, 0) + bytes(32)
    any_interface_and_cookie = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
    body = family_and_states + ports_and_addresses + any_interface_and_cookie
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0) + body


def _collect(kernel: socket.socket, family: int, connections: list[TcpConnection]) -> None:
    while True:
        reply = kernel.recv(_REPLY_BYTES)
        at = 0
        while at < len(reply):
            size, kind, _, _, _ = _HEADER.unpack_from(reply, at)
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                (code,) = struct.unpack_from("=i", reply, at + _HEADER.size)
                raise OSError(-code, os.strerror(-code))
            connections.append(_connection(reply[at + _HEADER.size : at + size], family))
            at += (size + 3) & ~3


def _connection(message: bytes, family: int) -> TcpConnection:
    (port,) = struct.unpack_from(">H", message, 6)
    address = message[24:28] if family == socket.AF_INET else message[24:40]
    received = acked = 0
    at = _ATTRIBUTES_AT
    while at + 4 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        if kind == _INET_DIAG_INFO and size >= 4 + _BYTES_ACKED_AT + 16:
            acked, received = struct.unpack_from("=QQ", message, at + 4 + _BYTES_ACKED_AT)
        at += max((size + 3) & ~3, 4)
    host = socket.inet_ntop(family, address).removeprefix("::ffff:")
    return TcpConnection(host, port, received, acked)


def close_connections(port: int, peers: set[tuple[str, int]]) -> int:
    """Close this process's connections from these peers (host, port) to a local port. Return how many were closed.

    This works for connections whose sockets a library such as gRPC owns. Each socket is shut down through a duplicate
    of its descriptor. The duplicate is made before the addresses are compared. So if the library closes a socket in the
    meantime and the number of its descriptor is used again, no wrong connection is closed.
    """
    closed = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                host, peer_port = connection.getpeername()[:2]
                if connection.getsockname()[1] != port:
                    continue
                if (host.removeprefix("::ffff:"), peer_port) in peers:
                    connection.shutdown(socket.SHUT_RDWR)
                    closed += 1
        except OSError:
            continue  # the socket was closed in the meantime, or is not connected
    return closed
