"""Limits the memory of unfinished messages on gRPC streams. The broker estimates their size, and ends streams if the
size is too large.

gRPC does not report to a server that a part of a message has arrived. A stream that waits for its next message looks
the same whether it is idle or gRPC has buffered 32 MiB of a message that never ends. The kernel counts the bytes that a
connection has received, and the broker counts the bytes of the complete messages that gRPC delivered. The difference is
the number of buffered bytes, plus the overhead of TLS, HTTP/2 and headers. The overhead is estimated as a fraction of
the delivered and the sent bytes, an amount for each call, and a small constant rate, so that the estimate for an honest
client stays near zero, however long its connection exists.

Each stream is allowed a window of buffered bytes. If an owner (a principal or an address, see
`odradek_runtime.budget.shares`) exceeds its limit beyond these windows, or all owners together do, the broker ends
streams that wait for a message, on the connections with the most buffered bytes. The ended streams get the status
UNAVAILABLE, and their memory is freed. Honest clients open a new stream and send again.

A stream that has just begun or just received a message is not ended, although some of the buffered bytes may be its
own. The estimate of the connection's buffered bytes is therefore kept until this stream has delivered a message or has
ended, too. If the estimate were set to 0 as soon as one stream is ended, a client that always has one old stream could
make the broker buffer any number of bytes on its other streams.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from odradek_broker.rpc.connections_without_call import ConnectionsWithoutCall
from odradek_broker.rpc.peers import Peer
from odradek_runtime.clock import monotonic_ms
from odradek_runtime.logs import event_log
from odradek_runtime.tcp_sockets import ClosedConnections, close_connections, connections_to

OWNER_BYTES_MAX: Final = 64 << 20
TOTAL_BYTES_MAX: Final = 256 << 20
WAITING_S_MIN: Final = 0.1
"""A stream that has received a message within this time is not ended, because its next message may be arriving."""
_MESSAGE_BYTES: Final = 64
_OVERHEAD: Final = 0.01
_SENT_OVERHEAD: Final = 0.005
_CALL_BYTES: Final = 512
_IDLE_BYTES_PER_S: Final = 4096
_HANDSHAKE_BYTES: Final = 64 * 1024
WINDOW_BYTES: Final = 1 << 20
"""The number of buffered bytes that are allowed for each stream. It is as large as a producer's message, so that many
producers that send at the same time are not treated as an attack.
"""
FETCH_WINDOW_BYTES: Final = 64 << 10
"""The number of buffered bytes that are allowed for a Fetch stream, whose messages contain no records."""

_LOOK_INTERVAL_S: Final = 0.2
_BUSY_INTERVAL_S: Final = 0.05
_TEMPORARY: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EINTR}
)
_log = event_log(__name__)
_audit = event_log("odradek_broker.audit")


class SocketBytes(NamedTuple):
    """The kernel's counts of a connection's bytes since it was opened."""

    received: int
    sent: int


class WatchedStream:
    """One open stream of requests. Its servicer calls `delivered` for each complete message."""

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
        """Record that a complete message has arrived."""
        connection = self._connection
        connection.delivered_bytes += size_bytes + _MESSAGE_BYTES
        self.waiting_since_s = now_s
        if connection.spared:
            connection.account_for(self, size_bytes)


class _Connection:
    __slots__ = (
        "delivered_bytes",
        "freed_bytes_max",
        "held_bytes",
        "seen_at_s",
        "socket",
        "spared",
        "streams",
        "window_bytes",
    )

    def __init__(self) -> None:
        self.delivered_bytes: float = 0  # bytes delivered since the last check
        self.held_bytes: float = -_HANDSHAKE_BYTES
        self.spared: dict[WatchedStream, None] = {}
        """The streams that remained open when other streams of the connection were ended. Each of them may hold a part
        of the bytes that were buffered at that time.
        """
        self.freed_bytes_max: float = 0
        """The bytes that were buffered at that time, without those that spared streams have delivered since."""
        self.socket = SocketBytes(0, 0)
        self.seen_at_s: float | None = None
        self.streams: dict[WatchedStream, None] = {}
        self.window_bytes = 0

    @property
    def excess_bytes(self) -> float:
        return self.held_bytes - self.window_bytes

    def end_waiting(self, now_s: float) -> list[WatchedStream]:
        """Mark the streams that have waited long enough for a message as ended, and return them."""
        stuck: list[WatchedStream] = []
        spared: dict[WatchedStream, None] = {}
        for stream in self.streams:
            if stream.is_ended:
                continue
            if now_s - stream.waiting_since_s >= WAITING_S_MIN:
                stream.is_ended = True
                stuck.append(stream)
            else:
                spared[stream] = None
        if stuck:
            self.spared = spared
            self.freed_bytes_max = self.held_bytes
            if not spared:
                self.held_bytes = 0
        return stuck

    def account_for(self, stream: WatchedStream, size_bytes: int = 0) -> None:
        """Record that a spared stream has received the message that was arriving when other streams were ended
        (`size_bytes`), or that it has ended too. After the last spared stream, the rest of the bytes that were buffered
        at that time is known to be freed.
        """
        if stream in self.spared:
            del self.spared[stream]
            self.freed_bytes_max -= size_bytes
            if not self.spared:
                self.held_bytes -= max(self.freed_bytes_max, 0)

    def look(self, socket: SocketBytes, now_s: float) -> None:
        before = self.socket
        # If the count fell, this is a new connection from the same client port.
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
            held = 0.0  # gRPC frees the bytes of a stream when the stream ends
        self.held_bytes = held if self.seen_at_s is None else max(held, 0.0)
        self.delivered_bytes = 0
        self.socket = socket
        self.seen_at_s = now_s


class UnfinishedMessages:
    """Estimates how many bytes of unfinished messages gRPC has buffered for each connection. This class does no I/O."""

    def __init__(
        self, *, owner_bytes_max: int = OWNER_BYTES_MAX, total_bytes_max: int = TOTAL_BYTES_MAX
    ) -> None:
        self._owner_bytes_max = owner_bytes_max
        self._total_bytes_max = total_bytes_max
        self._connections: dict[Peer, _Connection] = {}

    @property
    def total_bytes(self) -> int:
        """The estimated bytes of unfinished messages at the last check, beyond the allowed window of each stream."""
        return int(sum(max(c.excess_bytes, 0) for c in self._connections.values()))

    def called(self, peer: Peer, size_bytes: int = 0) -> None:
        """Count a new call on the connection of `peer` as delivered: an amount for its headers, and the `size_bytes` of
        its request.
        """
        self._connection(peer).delivered_bytes += _CALL_BYTES + size_bytes

    def has_called(self, peer: Peer) -> bool:
        """Return whether a call has been made on the connection."""
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
        """Watch a stream until `finish` is called. `window_bytes` buffered bytes are allowed, and `end` cancels the
        stream's call.
        """
        connection = self._connection(peer)
        connection.delivered_bytes += _CALL_BYTES
        stream = WatchedStream(connection, owner, now_s, end, window_bytes)
        connection.streams[stream] = None
        if connection.spared:
            # The bytes of this stream may have arrived before its call began.
            connection.spared[stream] = None
        connection.window_bytes += window_bytes
        return stream

    def finish(self, stream: WatchedStream) -> None:
        """Stop watching a stream, because its call has ended."""
        connection = stream._connection
        if stream in connection.streams:
            del connection.streams[stream]
            connection.window_bytes -= stream.window_bytes
            connection.account_for(stream)

    def look(self, sockets: Mapping[Peer, SocketBytes], now_s: float) -> list[WatchedStream]:
        """Update the estimates from the kernel's counts. Return the streams that must be ended."""
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
            stuck = self._connections[peer].end_waiting(now_s)
            if stuck:
                ended += stuck
                held_of[owner] -= int(held[peer])
        return ended


def _is_temporary(error: OSError | RuntimeError) -> bool:
    # `asyncio.to_thread` raises RuntimeError when no thread can be started.
    return not isinstance(error, OSError) or (
        error.errno in _TEMPORARY or isinstance(error, TimeoutError)
    )


def _owner_of(peer: Peer, connection: _Connection) -> str:
    """Return the owner against whose limit a connection counts: the caller of its streams, or the address if the
    streams have several callers.
    """
    owners = {stream.owner for stream in connection.streams}
    return owners.pop() if len(owners) == 1 else f"host {peer[0]}"


class ConnectionWatch:
    """Checks the connections of a broker's gRPC listeners several times a second, and closes those above the limits.

    gRPC limits the connections of a listener, but not those of an address, so a single address could use all of them.
    If an address has too many connections, its newest connections are closed, beginning with the connections without
    any call.
    """

    def __init__(
        self,
        messages: UnfinishedMessages,
        without_call: ConnectionsWithoutCall,
        *,
        connections_per_ip_max: int,
        idle_per_ip_max: int,
    ) -> None:
        """`connections_per_ip_max` limits all connections of an address to one listener, and `idle_per_ip_max` limits
        those without any call. `without_call` reports connections that were closed before their first call.
        """
        self._messages = messages
        self._without_call = without_call
        self._closed: ClosedConnections | None = None
        self._per_ip_max = connections_per_ip_max
        self._idle_per_ip_max = idle_per_ip_max
        self._ports: list[int] = []
        self._ages: dict[int, dict[Peer, None]] = {}

    def add_port(self, port: int) -> None:
        """Add a listener's port, so that its connections are checked, too."""
        self._ports.append(port)
        self._ages[port] = {}

    async def run(self) -> None:
        """Check the memory and the number of connections again and again, until this task is cancelled. The checks end
        if the operating system does not support the list of connections.
        """
        try:
            self._closed = ClosedConnections(self._ports)
        except OSError as error:
            _log.info(
                "Closed gRPC connections cannot be listed; failed TLS handshakes are not logged",
                reason=str(error),
            )
        try:
            await self._check()
        finally:
            if self._closed is not None:
                self._closed.close()

    async def _check(self) -> None:
        has_failed = False
        while True:
            try:
                await self._look()
                has_failed = False
            except (OSError, RuntimeError) as error:
                # If, for example, no descriptor or no thread was free, the next attempt may succeed. A client that
                # could end these checks by using up the descriptors would have no limits after that.
                is_temporary = _is_temporary(error)
                if not has_failed:
                    _log.warning(
                        "gRPC connections cannot be listed; connections per address and unfinished"
                        " messages are not limited",
                        until="the next successful attempt" if is_temporary else "the restart",
                        reason=str(error),
                    )
                has_failed = True
                if not is_temporary:
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
            self._without_call.note_open(port, len(peers))
            excess = self._excess(port, peers)
            if excess:
                for peer in excess:  # the audit log has them
                    self._without_call.called(peer)
                await asyncio.to_thread(close_connections, port, set(excess))
                hosts = Counter(host for host, _ in excess)
                for host, count in hosts.items():
                    _audit.warning(
                        "Closed gRPC connections of an address that has too many connections",
                        host=host,
                        count=count,
                    )
        if self._closed is not None:
            self._without_call.closed(self._closed.read(), monotonic_ms() / 1000)
        for stream in self._messages.look(sockets, monotonic_ms() / 1000):
            _audit.warning(
                "Ended a gRPC stream because of too many bytes of unfinished messages",
                owner=stream.owner,
            )
            stream.end()

    def _excess(self, port: int, peers: list[Peer]) -> list[Peer]:
        """Return the connections that must be closed, because their address has too many."""
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
