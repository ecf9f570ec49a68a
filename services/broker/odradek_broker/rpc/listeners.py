"""The gRPC listeners of a broker: GRPC, GRPC_EXTERNAL, ... for clients, REPLICATION for the other brokers.

Each listener is a separate gRPC server, because the listeners authenticate callers in different ways:

  SSL             by certificate if `ssl.client.auth=required`; otherwise every caller is ANONYMOUS
  SASL_SSL        by login; no certificate is requested, because gRPC can only require certificates or not request any
  SASL_PLAINTEXT  by login, without TLS, for the loopback interface
  REPLICATION     by mutual TLS; the certificate must name a registered broker

If a broker forwards a client's call to another broker (a group's coordinator, a partition's leader), the call uses
REPLICATION. The broker that forwards the call has checked the caller's rights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio
from google.protobuf.message import Message

from odradek_broker.access.authorizer import Authorizer
from odradek_broker.access.grpc_sessions import GrpcSessions
from odradek_broker.access.logins import Logins
from odradek_broker.access.quotas import Quotas
from odradek_broker.access.sasl import Credentials
from odradek_broker.listener_settings import REPLICATION
from odradek_broker.rpc import auth_servicer
from odradek_broker.rpc.authorization import Authorization
from odradek_broker.rpc.call_counts import GrpcCalls
from odradek_broker.rpc.callers import Callers, MethodHandler, ServerContext
from odradek_broker.rpc.intake import GrpcIntake
from odradek_broker.rpc.unfinished import ConnectionWatch
from odradek_broker.settings import BrokerSettings
from odradek_protocol.identity import BrokerId
from odradek_protocol.metadata.records import is_grpc_listener
from odradek_runtime.budget.client_budget import ClientBudget
from odradek_runtime.grpc_endpoints import (
    Health,
    Options,
    WrongListenerNotice,
    bind,
    connection_bounds,
    enable_reflection,
    new_client_server,
    new_server,
)
from odradek_runtime.listeners import ListenerAddress, wrong_listener
from odradek_runtime.logs import event_log
from odradek_runtime.open_files import grpc_connections_max
from odradek_runtime.tls import TlsFiles, peer_identity

_CLIENT_IDLE_MS_MAX: Final = 120_000
"""The time after which a connection without calls is closed. The SDK opens a new connection for its next call."""
_IDLE_PER_IP_MAX: Final = 500
"""The maximum number of connections from one address on which no call has been made."""
_STREAMS: Final = frozenset(
    {
        "/odradek.v1.ReplicationService/Replicate",
        "/odradek.v1.TransactionLinkService/RegisterPartitions",
        "/odradek.v1.TransactionLinkService/WriteMarkers",
    }
)
"""Streams between brokers. Their first message contains the id of the broker that opened the stream."""
AddServicers = Callable[[grpc.aio.Server], list[str]]

if TYPE_CHECKING:
    from odradek_runtime.jwt_tokens import TokenVerifier

_audit = event_log("odradek_broker.audit")


class MembersOnly(grpc.aio.ServerInterceptor):
    """Allows only brokers of the cluster to use the REPLICATION listener. Streams have their own, stricter checks."""

    def __init__(self, is_registered: Callable[[BrokerId], bool]) -> None:
        self._is_registered = is_registered

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MethodHandler:
        """Wrap unary methods so that only brokers can call them."""
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or method in _STREAMS:
            return handler
        assert handler.unary_unary is not None, f"{method} is a stream without checks"
        inner = handler.unary_unary

        async def checked(request: Message, context: ServerContext) -> Message:
            peer = peer_identity(context.auth_context)
            if peer is None or peer[0] != "broker" or not self._is_registered(BrokerId(peer[1])):
                _audit.warning(
                    "Refused a caller that is not a broker of the cluster",
                    host=context.peer(),
                    peer=str(peer),
                    request=method,
                )
                await context.abort(
                    grpc.StatusCode.PERMISSION_DENIED,
                    "this listener is only for brokers of the cluster: clients must use a GRPC listener",
                )
            response: Message = await inner(request, context)
            return response

        return grpc.unary_unary_rpc_method_handler(
            checked,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


class GrpcListeners:
    """The gRPC listeners of one broker. Call `bind`, `add`, `start` and `stop`, in this order."""

    def __init__(
        self,
        settings: BrokerSettings,
        tls: TlsFiles | None,
        *,
        authorizer: Authorizer,
        quotas: Quotas,
        credentials: Credentials,
        tokens: TokenVerifier | None,
        is_registered: Callable[[BrokerId], bool],
        grpc_addresses: Callable[[], list[str]],
        budget: ClientBudget,
        logins: Logins,
    ) -> None:
        self.calls = GrpcCalls()
        self._logins = logins
        self._intake = GrpcIntake(budget)
        self.without_call = self._intake.without_call
        self.sessions = GrpcSessions(credentials, lifetime_ms=settings.session_lifetime_ms)
        self._settings = settings
        self._tls = tls
        self._authorizer = authorizer
        self._quotas = quotas
        self._credentials = credentials
        self._tokens = tokens
        self._is_registered = is_registered
        self._grpc_addresses = grpc_addresses
        self._clients: dict[str, grpc.aio.Server] = {}
        self._replication: grpc.aio.Server | None = None
        self._watch: ConnectionWatch | None = None
        self._watching: asyncio.Task[None] | None = None
        self.health = Health()  # reports "not serving"; `bind` replaces it

    def bind(self) -> dict[str, int]:
        """Bind the ports, and return them by the name of the listener. Raises ListenRefused."""
        ports = {}
        for listener in self._settings.listeners:
            if is_grpc_listener(listener.name):
                ports[listener.name] = self._bind_clients(listener)
            elif listener.name == REPLICATION:
                guards = [] if self._tls is None else [MembersOnly(self._is_registered)]
                self._replication = new_server(
                    interceptors=[WrongListenerNotice(self._advice), *guards],
                    connections=self._connection_bounds(self._settings.connections_max_idle_ms),
                )
                ports[REPLICATION] = bind(self._replication, listener, self._tls, mutual=True)
        self.health = Health(*self._clients.values())
        self._watch = self._new_watch([ports[name] for name in self._clients])
        return ports

    def _advice(self) -> str:
        owner = f"broker {self._settings.node_id}"
        return wrong_listener(REPLICATION, owner, "other brokers", self._grpc_addresses())

    def _new_watch(self, ports: list[int]) -> ConnectionWatch:
        """Create the object that limits clients' connections. One address may have at most three quarters of the
        connections of a listener.
        """
        connections_max = self._connections_max()
        watch = ConnectionWatch(
            self._intake.messages,
            self._intake.without_call,
            connections_per_ip_max=max(
                min(self._settings.connections_max_per_ip, connections_max * 3 // 4), 1
            ),
            idle_per_ip_max=max(min(_IDLE_PER_IP_MAX, connections_max // 2), 1),
        )
        for port in ports:
            watch.add_port(port)
        return watch

    def _connections_max(self) -> int:
        settings = self._settings
        listeners = sum(
            listener.name == REPLICATION or is_grpc_listener(listener.name)
            for listener in settings.listeners
        )
        return min(settings.connections_max, grpc_connections_max(listeners))

    def _connection_bounds(self, idle_ms_max: int) -> Options:
        """Return the server options that limit connections. Without them, one client could use up all file descriptors
        of the broker.
        """
        return connection_bounds(connections_max=self._connections_max(), idle_ms_max=idle_ms_max)

    def _bind_clients(self, listener: ListenerAddress) -> int:
        settings, name = self._settings, listener.name
        protocol = settings.security_protocol(name)
        callers = Callers(
            self._authorizer,
            self.sessions,
            listener=name,
            wants_login=protocol.startswith("SASL"),
            delegates=settings.delegation_principals,
            refusals=self._intake.budget.refusals,
        )
        server = new_client_server(
            [Authorization(callers, self._quotas, self._intake, self.calls)],
            self._connection_bounds(min(settings.connections_max_idle_ms, _CLIENT_IDLE_MS_MAX)),
        )
        self._clients[name] = server
        tls = self._tls if protocol.endswith("SSL") else None
        port = bind(server, listener, tls, mutual=settings.demands_certificate(name))
        self.without_call.add_listener(
            name, port, has_tls=tls is not None, connections_max=self._connections_max()
        )
        return port

    def add(self, to_clients: AddServicers, to_brokers: Callable[[grpc.aio.Server], None]) -> None:
        """Register the servicers. This must be called before `start`."""
        assert self._replication is not None, "`bind` must be called before `add`"
        for name, server in self._clients.items():
            login = auth_servicer.AuthServicer(
                mechanisms=self._settings.mechanisms_of(name),
                credentials=self._credentials,
                sessions=self.sessions,
                budget=self._intake.budget,
                tokens=self._tokens,
                logins=self._logins,
            )
            services = [*to_clients(server), auth_servicer.add_to(server, login)]
            enable_reflection(server, services)
        to_brokers(self._replication)

    async def start(self) -> None:
        """Start the servers. The server for other brokers starts first."""
        assert self._replication is not None, "`bind` must be called before `start`"
        await self._replication.start()
        for server in self._clients.values():
            await server.start()
        assert self._watch is not None
        self._watching = asyncio.create_task(self._watch.run(), name="gRPC connections")

    async def stop(self, grace_s: float) -> None:
        """Stop all servers, and cancel calls that have not ended after `grace_s`."""
        if self._watching is not None:
            self._watching.cancel()
        servers = [*self._clients.values()]
        if self._replication is not None:
            servers.append(self._replication)
        await asyncio.gather(*(server.stop(grace_s) for server in servers))
