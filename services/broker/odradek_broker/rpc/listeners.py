"""The gRPC listeners of a broker: GRPC, GRPC_EXTERNAL, ... for clients, REPLICATION for the other brokers.

Each is a server of its own, since the ways of authentication differ:

  SSL             the certificate is the principal (`ssl.client.auth=required`), or every caller is ANONYMOUS
  SASL_SSL        the login is the principal; no certificate is requested (gRPC can only require one, or not request it)
  SASL_PLAINTEXT  the login is the principal, without TLS: for loopback
  REPLICATION     mutual TLS, and the certificate must name a registered broker

Calls that brokers forward to each other for clients (to a group's coordinator, to a partition's leader) use
REPLICATION: the broker that forwards a call has checked the caller.
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
from odradek_broker.listener_settings import REPLICATION, is_grpc_listener
from odradek_broker.rpc import auth_servicer
from odradek_broker.rpc.authorization import Authorization
from odradek_broker.rpc.call_counts import GrpcCalls
from odradek_broker.rpc.callers import Callers, MethodHandler, ServerContext
from odradek_broker.rpc.intake import GrpcIntake
from odradek_broker.rpc.unfinished import ConnectionWatch
from odradek_broker.settings import BrokerSettings
from odradek_protocol.identity import BrokerId
from odradek_runtime.budget.client_budget import ClientBudget
from odradek_runtime.grpc_endpoints import (
    Health,
    Options,
    bind,
    connection_bounds,
    enable_reflection,
    new_client_server,
    new_server,
)
from odradek_runtime.listeners import ListenerAddress
from odradek_runtime.logs import event_log
from odradek_runtime.open_files import grpc_connections_max
from odradek_runtime.tls import TlsFiles, peer_identity

_CLIENT_IDLE_MS_MAX: Final = 120_000
"""The time after which a connection without calls is closed. A client of the SDK opens another one when it needs it."""
_IDLE_PER_IP_MAX: Final = 500
"""The most connections from one address that have made no call."""
_STREAMS: Final = frozenset(
    {
        "/odradek.v1.ReplicationService/Replicate",
        "/odradek.v1.TransactionLinkService/RegisterPartitions",
        "/odradek.v1.TransactionLinkService/WriteMarkers",
    }
)
"""Streams between brokers, the first message of which names the broker that opened it."""
AddServicers = Callable[[grpc.aio.Server], list[str]]

if TYPE_CHECKING:
    from odradek_runtime.jwt_tokens import TokenVerifier

_audit = event_log("odradek_broker.audit")


class MembersOnly(grpc.aio.ServerInterceptor):
    """Admits only brokers of the cluster to REPLICATION. Streams do their own checks, which are stricter."""

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
        assert handler.unary_unary is not None, f"{method} is a stream that nobody checks"
        inner = handler.unary_unary

        async def checked(request: Message, context: ServerContext) -> Message:
            peer = peer_identity(context.auth_context)
            if peer is None or peer[0] != "broker" or not self._is_registered(BrokerId(peer[1])):
                _audit.warning("Not a broker", host=context.peer(), peer=str(peer), request=method)
                await context.abort(
                    grpc.StatusCode.PERMISSION_DENIED, "this listener is for brokers of the cluster"
                )
            response: Message = await inner(request, context)
            return response

        return grpc.unary_unary_rpc_method_handler(
            checked,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


class GrpcListeners:
    """The gRPC listeners of one broker: `bind` binds their ports, `start` serves, `stop` ends all calls."""

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
        budget: ClientBudget,
        logins: Logins,
    ) -> None:
        self.calls = GrpcCalls()
        self._logins = logins
        self._intake = GrpcIntake(budget)
        self.sessions = GrpcSessions(credentials, lifetime_ms=settings.session_lifetime_ms)
        self._settings = settings
        self._tls = tls
        self._authorizer = authorizer
        self._quotas = quotas
        self._credentials = credentials
        self._tokens = tokens
        self._is_registered = is_registered
        self._clients: dict[str, grpc.aio.Server] = {}
        self._replication: grpc.aio.Server | None = None
        self._watch: ConnectionWatch | None = None
        self._watching: asyncio.Task[None] | None = None
        self.health = Health()  # it reports "not serving" until the listener is bound

    def bind(self) -> dict[str, int]:
        """Bind the ports, and return them by the listener's name. Raises ListenRefused."""
        ports = {}
        for listener in self._settings.listeners:
            if is_grpc_listener(listener.name):
                ports[listener.name] = self._bind_clients(listener)
            elif listener.name == REPLICATION:
                guards = [] if self._tls is None else [MembersOnly(self._is_registered)]
                self._replication = new_server(
                    interceptors=guards,
                    connections=self._connection_bounds(self._settings.connections_max_idle_ms),
                )
                ports[REPLICATION] = bind(self._replication, listener, self._tls, mutual=True)
        self.health = Health(*self._clients.values())
        self._watch = self._new_watch([ports[name] for name in self._clients])
        return ports

    def _new_watch(self, ports: list[int]) -> ConnectionWatch:
        """Return the object that watches clients' connections. One address may have at most three quarters of a
        listener's connections.
        """
        most = self._connections_max()
        watch = ConnectionWatch(
            self._intake.messages,
            connections_per_ip_max=max(
                min(self._settings.connections_max_per_ip, most * 3 // 4), 1
            ),
            idle_per_ip_max=max(min(_IDLE_PER_IP_MAX, most // 2), 1),
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
        """Return the options of a server. Without them one client could take all descriptors of the broker."""
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
        return bind(
            server,
            listener,
            self._tls if protocol.endswith("SSL") else None,
            mutual=settings.demands_certificate(name),
        )

    def add(self, to_clients: AddServicers, to_brokers: Callable[[grpc.aio.Server], None]) -> None:
        """Register the servicers. Call it before `start`."""
        assert self._replication is not None, "bind first"
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
        """Start the servers, the one for other brokers first."""
        assert self._replication is not None, "bind first"
        await self._replication.start()
        for server in self._clients.values():
            await server.start()
        assert self._watch is not None
        self._watching = asyncio.create_task(self._watch.run(), name="gRPC connections")

    async def stop(self, grace_s: float) -> None:
        """End all calls, and release the ports."""
        if self._watching is not None:
            self._watching.cancel()
        servers = [*self._clients.values()]
        if self._replication is not None:
            servers.append(self._replication)
        await asyncio.gather(*(server.stop(grace_s) for server in servers))
