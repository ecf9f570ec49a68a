"""Unfinished messages on gRPC streams: how many bytes they hold, and which streams end when that is too much.

gRPC does not tell a server that a part of a message has arrived. A stream that waits for its next message looks the
same whether it is idle or holds 32 MiB of a message that never ends. The kernel knows how many bytes a connection has
received, and the broker knows how many bytes of whole messages it was handed. The difference is what the connection
holds, up to the overhead of TLS, HTTP/2 and headers, for which each connection is allowed something: a part of what it
delivered and sent, an amount for each call, and a small rate. So the estimate of an honest client stays near zero
however long it lives.

When an owner (`odradek_runtime.budget.shares`), or all owners together, hold more than they may beyond a window for
each stream, the streams that wait for a message on the largest of these connections end with UNAVAILABLE, which frees
their bytes. Honest clients open a new stream and send again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from odradek_runtime.clock import monotonic_ms
from odradek_runtime.logs import event_log
from odradek_runtime.tcp_sockets import close_connections, connections_to

OWNER_BYTES_MAX: Final = 64 << 20
TOTAL_BYTES_MAX: Final = 256 << 20
WAITING_S_MIN: Final = 0.1
"""A stream that received a message within this time is not ended, because the next message may be arriving."""
_MESSAGE_BYTES: Final = 64
_OVERHEAD: Final = 0.01
_SENT_OVERHEAD: Final = 0.005
_CALL_BYTES: Final = 512
_IDLE_BYTES_PER_S: Final = 4096
_HANDSHAKE_BYTES: Final = 64 * 1024
WINDOW_BYTES: Final = 1 << 20
"""How many bytes a stream may hold: its window, which is as large as a message of a producer. Thanks to this
allowance, many producers that send at the same time do not count as an attack.
"""
FETCH_WINDOW_BYTES: Final = 64 << 10
"""The same for a Fetch stream, whose messages name partitions."""

_LOOK_INTERVAL_S: Final = 0.2
_BUSY_INTERVAL_S: Final = 0.05
_log = event_log(__name__)
_audit = event_log("odradek_broker.audit")
Peer = tuple[str, int]
"""The address and port of a client, as `tcp_sockets` names them."""


class SocketBytes(NamedTuple):
    """The bytes that the kernel has counted for one connection since it was opened."""

    received: int
    sent: int


class WatchedStream:
    """One open stream of requests. Its servicer calls `delivered` for each message that has arrived."""

    __slots__ = ("_connection", "end", "is_ended", "owner", "waiting_since_s", "window_bytes")

    def __init__(
        self,
        connection: _Connection,
        owner: str,
        now_s: float,
        end: Callable[[], object],
        window_bytes: int,
    ) -> None:
        self._connection = connection
        self.owner = owner
        self.waiting_since_s = now_s
        self.end = end
        self.is_ended = False
        self.window_bytes = window_bytes

    def delivered(self, size_bytes: int, now_s: float) -> None:
        """Record that a whole message arrived."""
        self._connection.delivered_bytes += size_bytes + _MESSAGE_BYTES
        self.waiting_since_s = now_s


class _Connection:
    __slots__ = ("delivered_bytes", "held_bytes", "seen_at_s", "socket", "streams", "window_bytes")

    def __init__(self) -> None:
        self.delivered_bytes: float = 0  # bytes delivered since the last check
        self.held_bytes: float = -_HANDSHAKE_BYTES
        self.socket = SocketBytes(0, 0)
        self.seen_at_s: float | None = None
        self.streams: dict[WatchedStream, None] = {}
        self.window_bytes = 0

    @property
    def excess_bytes(self) -> float:
        return self.held_bytes - self.window_bytes

    def look(self, socket: SocketBytes, now_s: float) -> None:
        before = self.socket
        # This is another connection, from the same port as an earlier one.
        if socket.received < before.received:
            before = SocketBytes(0, 0)
        passed_s = 0.0 if self.seen_at_s is None else now_s - self.seen_at_s
        overhead = (
            self.delivered_bytes * _OVERHEAD
            + (socket.sent - before.sent) * _SENT_OVERHEAD
            + passed_s * _IDLE_BYTES_PER_S
        )
        held = self.held_bytes + socket.received - before.received - self.delivered_bytes - overhead
        if not self.streams:
            held = 0.0  # bytes that arrived for streams that have ended are not kept
        self.held_bytes = held if self.seen_at_s is None else max(held, 0.0)
        self.delivered_bytes = 0
        self.socket = socket
        self.seen_at_s = now_s


class UnfinishedMessages:
    """Estimates how many bytes of unfinished messages each connection of a broker's gRPC listeners holds. It does no
    I/O.
    """

    def __init__(
        self, *, owner_bytes_max: int = OWNER_BYTES_MAX, total_bytes_max: int = TOTAL_BYTES_MAX
    ) -> None:
        self._owner_bytes_max = owner_bytes_max
        self._total_bytes_max = total_bytes_max
        self._connections: dict[Peer, _Connection] = {}

    @property
    def total_bytes(self) -> int:
        """The bytes of unfinished messages at the last check, less the window that each stream may hold."""
        return int(sum(max(c.excess_bytes, 0) for c in self._connections.values()))

    def called(self, peer: Peer, size_bytes: int = 0) -> None:
        """Count a call that began, by its headers and the bytes of its request that came with them."""
        self._connection(peer).delivered_bytes += _CALL_BYTES + size_bytes

    def has_called(self, peer: Peer) -> bool:
        """Whether a connection has made a call."""
        return peer in self._connections

    def begin(
        self,
        peer: Peer,
        owner: str,
        now_s: float,
        end: Callable[[], object],
        *,
        window_bytes: int = WINDOW_BYTES,
    ) -> WatchedStream:
        """Watch a stream, which may hold `window_bytes`, until `finish`; `end` ends its call."""
        connection = self._connection(peer)
        connection.delivered_bytes += _CALL_BYTES
        stream = WatchedStream(connection, owner, now_s, end, window_bytes)
        connection.streams[stream] = None
        connection.window_bytes += window_bytes
        return stream

    def finish(self, stream: WatchedStream) -> None:
        """Forget a stream whose call has ended."""
        connection = stream._connection
        if stream in connection.streams:
            del connection.streams[stream]
            connection.window_bytes -= stream.window_bytes

    def look(self, sockets: Mapping[Peer, SocketBytes], now_s: float) -> list[WatchedStream]:
        """Compare the delivered bytes with the kernel's counts; return the streams that must end."""
        for peer, connection in tuple(self._connections.items()):
            if peer in sockets:
                connection.look(sockets[peer], now_s)
            elif not connection.streams:
                del self._connections[peer]
        return self._excess(now_s)

    def _connection(self, peer: Peer) -> _Connection:
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._connections[peer] = _Connection()
        return connection

    def _excess(self, now_s: float) -> list[WatchedStream]:
        held = {p: c.excess_bytes for p, c in self._connections.items() if c.excess_bytes > 0}
        owners = {peer: _owner_of(peer, self._connections[peer]) for peer in held}
        held_of: Counter[str] = Counter()
        for peer, size_bytes in held.items():
            held_of[owners[peer]] += int(size_bytes)
        ended: list[WatchedStream] = []
        for peer in sorted(held, key=lambda peer: -held[peer]):
            owner = owners[peer]
            is_full = held_of.total() > self._total_bytes_max
            is_largest = held_of[owner] >= max(held_of.values())
            if held_of[owner] <= self._owner_bytes_max and not (is_full and is_largest):
                continue
            connection = self._connections[peer]
            stuck = [s for s in connection.streams if now_s - s.waiting_since_s >= WAITING_S_MIN]
            if stuck:
                ended += stuck
                held_of[owner] -= int(held[peer])
                connection.held_bytes = 0
        return ended


def _owner_of(peer: Peer, connection: _Connection) -> str:
    """Return the owner whose share a connection counts against: its caller, or its address if it carries calls of
    several callers.
    """
    owners = {stream.owner for stream in connection.streams}
    return owners.pop() if len(owners) == 1 else f"host {peer[0]}"


class ConnectionWatch:
    """Checks the connections of a broker's gRPC listeners several times a second, and ends those beyond the limits.

    gRPC bounds the connections of a listener, but does not know addresses: one address could hold all of them. So the
    newest connections of an address that has too many are closed, first those that have made no call.
    """

    def __init__(
        self, messages: UnfinishedMessages, *, connections_per_ip_max: int, idle_per_ip_max: int
    ) -> None:
        """`connections_per_ip_max` bounds all connections of an address to one listener, `idle_per_ip_max` those that
        have made no call."""
        self._messages = messages
        self._per_ip_max = connections_per_ip_max
        self._idle_per_ip_max = idle_per_ip_max
        self._ports: list[int] = []
        self._ages: dict[int, dict[Peer, None]] = {}

    def add_port(self, port: int) -> None:
        """Check the connections to this port, too."""
        self._ports.append(port)
        self._ages[port] = {}

    async def run(self) -> None:
        """Check until cancelled, or until the system cannot list connections."""
        while True:
            try:
                await self._look()
            except OSError as error:
                _log.warning(
                    "gRPC connections cannot be listed, so connections of one address and "
                    "unfinished messages have no limit",
                    reason=str(error),
                )
                return
            is_busy = self._messages.total_bytes > 0
            await asyncio.sleep(_BUSY_INTERVAL_S if is_busy else _LOOK_INTERVAL_S)

    async def _look(self) -> None:
        sockets: dict[Peer, SocketBytes] = {}
        for port in self._ports:
            peers: list[Peer] = []
            for connection in await asyncio.to_thread(connections_to, port):
                peer = connection.host, connection.port
                peers.append(peer)
                sockets[peer] = SocketBytes(connection.received_bytes, connection.acked_bytes)
            excess = self._excess(port, peers)
            if excess:
                await asyncio.to_thread(close_connections, port, set(excess))
                hosts = Counter(host for host, _ in excess)
                for host, count in hosts.items():
                    _audit.warning("Closed connections of one address", host=host, count=count)
        for stream in self._messages.look(sockets, monotonic_ms() / 1000):
            _audit.warning("Ended a stream with an unfinished message", owner=stream.owner)
            stream.is_ended = True
            stream.end()

    def _excess(self, port: int, peers: list[Peer]) -> list[Peer]:
        """Return the connections that an address has too many of."""
        present, ages = set(peers), self._ages[port]
        for peer in [peer for peer in ages if peer not in present]:
            del ages[peer]
        for peer in peers:
            ages.setdefault(peer)
        of_host: dict[str, list[Peer]] = {}
        for peer in ages:
            of_host.setdefault(peer[0], []).append(peer)
        excess: list[Peer] = []
        for oldest_first in of_host.values():
            if len(oldest_first) <= min(self._idle_per_ip_max, self._per_ip_max):
                continue
            idle = [peer for peer in oldest_first if not self._messages.has_called(peer)]
            closing = idle[self._idle_per_ip_max :]
            others = [peer for peer in oldest_first if peer not in set(closing)]
            excess += closing + others[self._per_ip_max :]
        return excess


def peer_of(text: str) -> Peer:
    """Return the address and port in a gRPC peer's name such as `ipv4:10.0.0.1:4711` or `ipv6:%5B::1%5D:4711`."""
    host, _, port = text.partition(":")[2].rpartition(":")
    if "%" in host:
        host = unquote(host)
    return host.strip("[]").removeprefix("::ffff:"), int(port) if port.isdigit() else 0
