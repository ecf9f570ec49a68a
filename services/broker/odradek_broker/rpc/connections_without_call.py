"""Reports gRPC connections that were closed before the first call.

gRPC does not tell a server that a TLS handshake failed, or that a client does not use gRPC. In both cases the
connection is closed without a call. The kernel reports closed connections (`tcp_sockets.ClosedConnections`), and the
broker records on which connections clients made calls.

A connection on which the client sent nothing is not reported, because load balancers check in this way whether the
port is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from odradek_broker.rpc.peers import Peer
from odradek_runtime.budget.refusals import RefusalLines
from odradek_runtime.budget.shares import owner_of
from odradek_runtime.logs import event_log
from odradek_runtime.tcp_sockets import ClosedConnection

if TYPE_CHECKING:
    from prometheus_client import Metric

PEERS_MAX: Final = 20_000
_EVENT: Final = "A gRPC connection was closed before its first call"
_WITH_TLS: Final = (
    "the TLS handshake failed (perhaps the client does not trust this listener's certificate, or showed no"
    " certificate), or the client does not use gRPC; the client's own error has the cause"
)
_WITHOUT_TLS: Final = (
    "the client does not use gRPC, or it uses TLS, which this listener does not have"
)
_FULL: Final = (
    "the listener has its maximum of {} connections and refuses further ones; raise the limit of open files"
    " (ulimit -n), of which gRPC listeners use a quarter, or let clients use fewer connections"
)
_log = event_log("odradek_broker.rpc")


class _Listener(NamedTuple):
    name: str
    has_tls: bool
    connections_max: int


class ConnectionsWithoutCall:
    """Counts and logs the connections of a broker's gRPC listeners that were closed before the first call."""

    def __init__(self, refusals: RefusalLines) -> None:
        self._refusals = refusals
        self._listeners: dict[int, _Listener] = {}
        self._called: dict[Peer, None] = {}
        self._open_counts: dict[int, int] = {}
        self.counts: Counter[str] = Counter()  # by listener

    def add_listener(self, name: str, port: int, *, has_tls: bool, connections_max: int) -> None:
        """Report the connections to a listener from now on. gRPC closes those beyond `connections_max` at once."""
        self._listeners[port] = _Listener(name, has_tls, connections_max)
        self.counts[name] = 0

    def note_open(self, port: int, count: int) -> None:
        """Record the number of open connections to a listener's port."""
        self._open_counts[port] = count

    def called(self, peer: Peer) -> None:
        """Record a call on the connection of `peer`. The oldest of more than PEERS_MAX connections is forgotten."""
        if peer not in self._called:
            if len(self._called) >= PEERS_MAX:
                del self._called[next(iter(self._called))]
            self._called[peer] = None

    def closed(self, connections: Iterable[ClosedConnection], now_s: float) -> None:
        """Count and log those of the closed connections on which the client sent bytes, but made no call."""
        for local_port, connection in connections:
            peer = connection.host, connection.port
            has_called = peer in self._called
            self._called.pop(peer, None)
            listener = self._listeners.get(local_port)
            # The kernel counts the end of the client's stream (FIN) as one byte.
            if listener is None or has_called or connection.received_bytes <= 1:
                continue
            self.counts[listener.name] += 1
            owner = owner_of("", connection.host)
            unlogged = self._refusals.admit(owner, (_EVENT, listener.name), now_s)
            if unlogged is not None:
                counts = {"not_logged_before": unlogged} if unlogged else {}
                _log.warning(
                    _EVENT,
                    listener=listener.name,
                    host=connection.host,
                    reason=self._reason(local_port, listener),
                    **counts,
                )

    def _reason(self, port: int, listener: _Listener) -> str:
        if self._open_counts.get(port, 0) >= listener.connections_max:
            return _FULL.format(listener.connections_max)
        return _WITH_TLS if listener.has_tls else _WITHOUT_TLS

    def families(self) -> Iterator[Metric]:
        """Yield the metric for prometheus_client."""
        from prometheus_client.core import CounterMetricFamily

        closed = CounterMetricFamily(
            "odradek_broker_grpc_connections_without_call",
            "gRPC connections that were closed before their first call, for example after a failed TLS handshake",
            labels=["listener"],
        )
        for name, count in self.counts.items():
            closed.add_metric([name], count)
        yield closed
