"""The Kafka listeners of a broker: their ports, their limits and their open connections.

`KafkaListeners` owns all Kafka listeners (KAFKA, KAFKA_EXTERNAL, ...). `bind` binds the ports early, because the
broker's registration contains them. `serve` accepts connections from the time when the broker is ready until the call
is cancelled. Every asynchronous request runs in the task group of `serve`. The time limits of the connections are
checked every second.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final

from odradek_broker.access.logins import Logins
from odradek_broker.access.sasl import SaslExchange
from odradek_broker.kafka.connection import KafkaConnection
from odradek_broker.kafka.connection_owner import Connection
from odradek_broker.kafka.counters import KafkaCounters
from odradek_broker.kafka.frames import SCRATCH_BYTES, ArrivingBytes
from odradek_broker.kafka.registry import Registry
from odradek_broker.kafka.request import ClientSession, CloseConnection
from odradek_broker.listener_settings import REPLICATION, is_kafka_listener
from odradek_broker.settings import BrokerSettings, value_at_run_time
from odradek_protocol.metadata.records import grpc_addresses
from odradek_runtime.budget.client_budget import ClientBudget
from odradek_runtime.budget.shares import Shares, owner_of
from odradek_runtime.clock import monotonic_ms
from odradek_runtime.listeners import HTTP, KAFKA, TLS, ListenerAddress, ListenRefused, open_port
from odradek_runtime.logs import event_log
from odradek_runtime.open_files import is_scarce
from odradek_runtime.tls import TlsFiles, principal_of_certificate, server_context
from odradek_runtime.tls_server import TlsServer

if TYPE_CHECKING:
    from odradek_runtime.jwt_tokens import TokenVerifier

_CHECK_INTERVAL_S: Final = 1.0
_BACKLOG: Final = 1024
STRANGERS_PER_IP_MAX: Final = 500
"""The maximum number of connections from one address without a completed login. A login takes milliseconds."""
EARLY_BYTES_MAX: Final = 16 << 20
EARLY_BYTES_PER_IP_MAX: Final = 1 << 20
"""The maximum bytes of unfinished frames on connections without a completed login: of all addresses together, and of
one address.
"""
_audit = event_log("odradek_broker.audit")


def refuse_unencrypted_listeners(settings: BrokerSettings, *, insecure: bool) -> None:
    """Raise ListenRefused if a listener for clients is not encrypted although other machines can reach it.

    `odradek_runtime.listeners` checks separately that the process has a certificate and that callers must authenticate.
    """
    for address in settings.listeners:
        if insecure or address.name == REPLICATION or address.is_loopback:
            continue
        protocol = settings.security_protocol(address.name)
        if not protocol.endswith("SSL"):
            raise ListenRefused(
                f"listener {address.name} on {address.authority} is {protocol}, which is not encrypted, and other"
                f" machines can reach it: make it SASL_SSL or SSL, listen on 127.0.0.1, or allow"
                f" unencrypted traffic with --insecure"
            )


def _log_unlogged_refusals(budget: ClientBudget) -> None:
    """After a burst of refusals has ended, log how many of them were not written to the audit log."""
    for owner, count in budget.refusals.take_unwritten(monotonic_ms() / 1000):
        _audit.warning("More refusals were not logged", owner=owner, count=count)


class KafkaListeners:
    """All Kafka listeners of one broker: their sockets, limits and open connections."""

    def __init__(
        self,
        settings: BrokerSettings,
        tls: TlsFiles | None,
        *,
        tokens: TokenVerifier | None = None,
        logins: Logins | None = None,
    ) -> None:
        self._tokens = tokens
        self._logins = logins or Logins()
        self._settings = settings
        self._tls = tls
        self.counters = KafkaCounters()
        self.arriving = ArrivingBytes(settings.queued_request_bytes_max)
        self.early = Shares(total_max=EARLY_BYTES_MAX, owner_max=EARLY_BYTES_PER_IP_MAX)
        self._sockets: dict[str, socket.socket] = {}

    def bind(self) -> dict[str, int]:
        """Bind the ports, and return them by the name of the listener. Raises ListenRefused."""
        for address in self._settings.listeners:
            if is_kafka_listener(address.name):
                self._sockets[address.name] = open_port(address, backlog=_BACKLOG)
        return {name: socket_.getsockname()[1] for name, socket_ in self._sockets.items()}

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return self.counters.connections.total()

    def close(self) -> None:
        """Close the listening sockets. This may also be called after `serve` has ended."""
        for socket_ in self._sockets.values():
            socket_.close()

    async def serve(self, registry: Registry, ready: asyncio.Event | None = None) -> None:
        """Accept connections until the call is cancelled. `ready` is set as soon as connections are accepted.

        The caller should run `warm_up` at the same time; otherwise the first requests are slow.
        """
        async with asyncio.TaskGroup() as tasks:
            listeners = [
                _Listener(
                    address=address,
                    settings=self._settings,
                    registry=registry,
                    tasks=tasks,
                    counters=self.counters,
                    arriving=self.arriving,
                    early=self.early,
                    tokens=self._tokens,
                    logins=self._logins,
                )
                for address in self._settings.listeners
                if address.name in self._sockets
            ]
            loop = asyncio.get_running_loop()
            servers: list[asyncio.Server | TlsServer] = []
            for listener in listeners:
                listening = self._sockets[listener.name]
                context = self._ssl_context(listener.name)
                if context is None:
                    servers.append(
                        await loop.create_server(listener.new_connection, sock=listening)
                    )
                else:
                    servers.append(
                        TlsServer(
                            listening,
                            context,
                            listener.new_connection,
                            name=listener.name,
                            advice_for=listener.advice_for,
                            log=_audit,
                            refusals=registry.services.budget.refusals,
                        )
                    )
            if ready is not None:
                ready.set()
            try:
                while True:
                    await asyncio.sleep(_CHECK_INTERVAL_S)
                    for listener in listeners:
                        listener.check()
                    self.arriving.rotate()
                    _log_unlogged_refusals(registry.services.budget)
            finally:
                for server in servers:
                    server.close()
                for listener in listeners:
                    listener.close()

    def _ssl_context(self, name: str) -> ssl.SSLContext | None:
        if not self._settings.security_protocol(name).endswith("SSL"):
            return None
        assert self._tls is not None, f"listener {name} uses TLS without a certificate"
        uses_sasl = self._settings.security_protocol(name).startswith("SASL")
        return server_context(
            self._tls, client_auth="none" if uses_sasl else self._settings.ssl_client_auth
        )


class _Listener:
    """One Kafka listener with its port and connections. Implements ConnectionOwner."""

    def __init__(
        self,
        *,
        address: ListenerAddress,
        settings: BrokerSettings,
        registry: Registry,
        tasks: asyncio.TaskGroup,
        counters: KafkaCounters,
        arriving: ArrivingBytes,
        early: Shares,
        tokens: TokenVerifier | None,
        logins: Logins,
    ) -> None:
        self.name = address.name
        self._tokens = tokens
        self._logins = logins
        self.registry = registry
        self.scratch = bytearray(SCRATCH_BYTES)
        self.frame_folder = settings.log_dir
        self.frame_bytes_max = settings.socket_request_bytes_max
        self.idle_ms_max = settings.connections_max_idle_ms
        self._settings = settings
        self._protocol = settings.security_protocol(address.name)
        self._tasks = tasks
        self.counters = counters
        self.arriving = arriving
        self._early = early
        self._early_of: dict[Connection, tuple[str, int]] = {}
        self._per_host = counters.connections
        self._connections: dict[Connection, str] = {}
        self._strangers: dict[Connection, str] = {}
        self._strangers_of: Counter[str] = Counter()

    def new_connection(self) -> KafkaConnection:
        """Create the connection object of an accepted socket."""
        return KafkaConnection(self, self._now_ms())

    def opened(self, connection: Connection, transport: asyncio.Transport) -> ClientSession:
        peer = transport.get_extra_info("peername")
        host = str(peer[0]) if peer else "?"
        if is_scarce(transport.get_extra_info("socket").fileno()):
            raise CloseConnection(
                "the broker has too few free file descriptors: raise its limit of open files (ulimit -n)"
            )
        most = self._limit("max.connections", self._settings.connections_max)
        if self._per_host.total() >= most:
            raise CloseConnection(
                f"the Kafka listeners have reached their limit of {most} connections: close some, or raise"
                f" max.connections"
            )
        most = self._limit("max.connections.per.ip", self._settings.connections_max_per_ip)
        if self._per_host[host] >= most:
            raise CloseConnection(
                f"the client's address has reached its limit of {most} connections: close some, or raise"
                f" max.connections.per.ip"
            )
        wants_login = self._protocol.startswith("SASL")
        if wants_login and self._strangers_of[host] >= STRANGERS_PER_IP_MAX:
            raise CloseConnection(
                f"the client's address has {STRANGERS_PER_IP_MAX} connections that have not completed their login"
            )
        self._per_host[host] += 1
        self._connections[connection] = host
        if wants_login:
            self._strangers[connection] = host
            self._strangers_of[host] += 1
        wait_ms = self.registry.services.quotas.connection_throttle_ms(host)
        if wait_ms:
            connection.mute_for(wait_ms)
        is_encrypted = self._protocol.endswith("SSL")
        session = ClientSession(
            listener=self.name,
            host=host,
            connection_number=self.registry.services.connection_numbers.next(),
            is_encrypted=is_encrypted,
        )
        if wants_login:
            session.sasl = SaslExchange(
                mechanisms=self._settings.mechanisms_of(self.name),
                credentials=lambda: self.registry.services.image.scram,
                tokens=self._tokens,
                logins=self._logins,
            )
        elif is_encrypted:
            shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            session.principal = principal_of_certificate(shown)
        return session

    def advice_for(self, protocol: str) -> str:
        """Return a text that says what this listener is, and where a client that speaks `protocol` should connect."""
        services = self.registry.services
        here = f"this is the listener {self.name} of broker {services.broker_id}, for Kafka clients"
        if protocol == KAFKA:
            return f"{here}, with TLS: set security.protocol to {self._protocol}"
        if protocol == TLS:
            return f"{here}, without TLS: set security.protocol to {self._protocol}"
        if protocol == HTTP:
            return f"{here}: HTTP is served by a gateway (odradek gateway)"
        broker = services.image.brokers.get(services.broker_id)
        where = "" if broker is None else ", ".join(grpc_addresses(broker.endpoints))
        return f"{here}: the SDK and `odradek` connect to the broker's gRPC address{f', {where}' if where else ''}"

    def _limit(self, name: str, own: int) -> int:
        services = self.registry.services
        return value_at_run_time(services.image, services.broker_id, name, own)

    def hold_early(self, connection: Connection, size_bytes: int) -> str | None:
        host = self._strangers.get(connection)
        if host is None:
            return None
        owner, before = self._early_of.get(connection, (owner_of("", host), 0))
        more = max(size_bytes - before, 0)
        refused = self._early.refusal(owner, more, "bytes of requests before a login")
        if refused is None:
            self._early.take(owner, more)
            self._early_of[connection] = owner, before + more
        return refused

    def logged_in(self, connection: Connection) -> None:
        owner, early_bytes = self._early_of.pop(connection, ("", 0))
        self._early.give_back(owner, early_bytes)
        host = self._strangers.pop(connection, None)
        if host is not None:
            self._strangers_of[host] -= 1
            if not self._strangers_of[host]:
                del self._strangers_of[host]

    def closed(self, connection: Connection) -> None:
        self.logged_in(connection)
        host = self._connections.pop(connection, None)
        if host is not None:
            self._per_host[host] -= 1
            if not self._per_host[host]:
                del self._per_host[host]

    def spawn(self, work: Coroutine[object, None, None]) -> asyncio.Task[None]:
        return self._tasks.create_task(work)

    def check(self) -> None:
        """Close connections whose clients are too slow, or idle for too long."""
        now_ms = self._now_ms()
        for connection in tuple(self._connections):
            connection.check(now_ms)

    def close(self) -> None:
        """Close all connections."""
        for connection in tuple(self._connections):
            connection.give_up("")

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)
