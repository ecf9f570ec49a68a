"""gRPC servers, channels and health as every process of the cluster sets them up.

`Probes` keeps the health service true for Kubernetes' probes:

- `startup`: the process is up. Opening large logs afterwards may take long and goes on in threads; a probe
  that ran out of patience would only make it start again.
- `liveness`: the event loop turns (or nothing would respond), and nothing is broken that only a restart
  mends. Peers never count, or all of them would be restarted together.
- `readiness`: the process does its part in the cluster, and another one may be stopped now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from odradek_runtime.listeners import ListenerAddress, host_port, open_port, port_refused
from odradek_runtime.logs import event_log
from odradek_runtime.tls import TlsFiles

MESSAGE_BYTES_MAX: Final = 64 << 20
CLIENT_MESSAGE_BYTES_MAX: Final = 33 << 20  # a batch of 32 MiB, and what is around it
_PROBE_BYTES_MAX: Final = 4096  # anybody may ask how a process is: the name of a service
Options = list[tuple[str, Any]]

SERVER_OPTIONS: Final[Options] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", 10_000),  # of one connection
    ("grpc.server_handshake_timeout_ms", 5_000),  # its default of two minutes suits a slow attacker
    ("grpc.so_reuseport", 0),  # two brokers must not share a port without noticing
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 1000),  # its default of a minute would win otherwise
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.http2.max_frame_size", 1 << 20),
]

CLIENT_SERVER_OPTIONS: Final[Options] = [
    ("grpc.max_receive_message_length", CLIENT_MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", 1000),  # of one connection: a gateway's carries many consumers
    # What a call that is not read may make the server keep: one request of a producer, as the SDK
    # sends it by default. A message that is read takes what it needs.
    ("grpc.http2.lookahead_bytes", 1 << 20),
]
"""Where clients come in, who are not to be trusted with as much as the cluster's processes."""

INTERNAL_CHANNEL_OPTIONS: Final[Options] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 1000),  # its default of a minute would win otherwise
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2000),  # how long an attempt may take, not the pause
    ("grpc.max_reconnect_backoff_ms", 500),
    # A pod that comes back has another address, and gRPC would ask for it only every 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.http2.max_frame_size", 1 << 20),
]


def internal_channel(host: str, port: int, tls: TlsFiles | None, *, peer: str) -> grpc.aio.Channel:
    """An asyncio channel to a process of the cluster, with its own connection.

    `peer` is who must be there, as its certificate names it: `broker-3`, `controller-1`. Addresses
    move, identities do not: the host is not compared with the certificate.
    """
    target = host_port(host, port)
    if tls is None:
        return grpc.aio.insecure_channel(target, options=INTERNAL_CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(
        target, tls.channel_credentials(), options=[*INTERNAL_CHANNEL_OPTIONS, _identity(peer)]
    )


def internal_sync_channel(host: str, port: int, tls: TlsFiles | None, *, peer: str) -> grpc.Channel:
    """The same for a thread of its own (heartbeats)."""
    target = host_port(host, port)
    if tls is None:
        return grpc.insecure_channel(target, options=INTERNAL_CHANNEL_OPTIONS)
    return grpc.secure_channel(
        target, tls.channel_credentials(), options=[*INTERNAL_CHANNEL_OPTIONS, _identity(peer)]
    )


def _identity(peer: str) -> tuple[str, str]:
    return ("grpc.ssl_target_name_override", peer)


def new_server(
    *,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    concurrent_rpcs_max: int | None = None,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    connections: Options | None = None,
) -> grpc.aio.Server:
    """A server with our options, on no port yet; `message_bytes_max` is of what it receives.

    `connections` are the bounds that `connection_bounds` makes.
    """
    options = dict(SERVER_OPTIONS) | {"grpc.max_receive_message_length": message_bytes_max}
    options |= dict(connections or ())
    return grpc.aio.server(
        options=list(options.items()),
        interceptors=list(interceptors),
        maximum_concurrent_rpcs=concurrent_rpcs_max,
    )


def connection_bounds(*, connections_max: int, idle_ms_max: int) -> Options:
    """Options of a server: connections beyond so many are closed at once, those without a call after so long."""
    return [
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.max_connection_idle_ms", idle_ms_max),
    ]


def new_client_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor], connections: Options | None = None
) -> grpc.aio.Server:
    """A server for clients, on no port yet."""
    options = dict(SERVER_OPTIONS) | dict(CLIENT_SERVER_OPTIONS) | dict(connections or ())
    return grpc.aio.server(
        options=list(options.items()),
        interceptors=list(interceptors),
    )


def bind(
    server: grpc.aio.Server, listener: ListenerAddress, tls: TlsFiles | None, *, mutual: bool
) -> int:
    """Bind the server before its start; returns the port. Raises ListenRefused."""
    # gRPC reports a taken port as a bare RuntimeError after logging its own lines: ask the
    # operating system first, whose answer names the reason.
    open_port(listener).close()
    try:
        if tls is None:
            port = server.add_insecure_port(listener.authority)
        else:
            port = server.add_secure_port(
                listener.authority, tls.server_credentials(require_client=mutual)
            )
    except RuntimeError:
        raise port_refused(listener) from None
    if port == 0:
        raise port_refused(listener)
    return port


class Health:
    """The standard gRPC health service of servers: `startup`, `readiness`, `liveness` and ""."""

    def __init__(self, *servers: grpc.aio.Server) -> None:
        from grpc_health.v1 import health, health_pb2_grpc

        self._servicer = health.aio.HealthServicer()
        self._probes: grpc.aio.Server | None = None
        for server in servers:
            health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def open_for_probes(self, host: str, port: int) -> int:
        """Serve it on a port of its own too, without TLS, for Kubernetes' probes, which know none; the port.

        Nothing but the health service is there. Raises ListenRefused.
        """
        from grpc_health.v1 import health_pb2_grpc

        server = new_server(message_bytes_max=_PROBE_BYTES_MAX)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        bound = bind(
            server, ListenerAddress(name="HEALTH", host=host, port=port), None, mutual=False
        )
        await server.start()
        self._probes = server
        return bound

    async def close(self) -> None:
        """Stop answering probes on their own port."""
        if self._probes is not None:
            await self._probes.stop(0)

    async def set(self, *, is_live: bool, is_ready: bool, is_started: bool | None = None) -> None:
        """Tell what probes are told; who is ready has started, unless `is_started` says so before."""
        from grpc_health.v1 import health_pb2

        serving = health_pb2.HealthCheckResponse.SERVING
        not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
        for service, good in (
            ("", is_ready),
            ("readiness", is_ready),
            ("startup", is_ready if is_started is None else is_started),
            ("liveness", is_live),
        ):
            await self._servicer.set(service, serving if good else not_serving)


def enable_reflection(server: grpc.aio.Server, service_names: Iterable[str]) -> None:
    """Let tools such as grpcurl list the services."""
    from grpc_reflection.v1alpha import reflection

    reflection.enable_server_reflection([*service_names, reflection.SERVICE_NAME], server)


REPLACED_GRACE_S: Final = 10.0  # longer than any unary call; a stream begins again


@dataclass(frozen=True, slots=True)
class _Opened:
    host: str
    port: int
    stamp: tuple[int, ...]
    channel: grpc.aio.Channel


class InternalChannels:
    """Opened at first use; lives on one event loop."""

    def __init__(self, tls: TlsFiles | None) -> None:
        self._tls = tls
        self._opened: dict[str, _Opened] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def channel(self, peer: str, host: str, port: int) -> grpc.aio.Channel:
        """The channel to `peer` (`broker-3`, `controller-1`); another one where something changed."""
        found = self._opened.get(peer)
        stamp = self._stamp(found)
        if found is not None:
            if (found.host, found.port, found.stamp) == (host, port, stamp):
                return found.channel
            self._close_later(found.channel)
        channel = internal_channel(host, port, self._tls, peer=peer)
        self._opened[peer] = _Opened(host, port, stamp, channel)
        return channel

    async def close(self) -> None:
        """Close all channels; calls under way end."""
        opened, self._opened = list(self._opened.values()), {}
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        for one in opened:
            await one.channel.close()

    def _stamp(self, found: _Opened | None) -> tuple[int, ...]:
        if self._tls is None:
            return ()
        try:
            return self._tls.stamp()
        except OSError:  # being replaced just now
            if found is None:
                raise
            return found.stamp

    def _close_later(self, channel: grpc.aio.Channel) -> None:
        task = asyncio.get_running_loop().create_task(
            channel.close(REPLACED_GRACE_S), name="close a replaced channel"
        )
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


_INTERVAL_S: Final = 0.1
_log = event_log(__name__)
Check = Callable[[], str]
"""Empty when it holds, otherwise what is wrong."""


class Probes:
    """Asks the two checks again and again; both are cheap and do not wait."""

    def __init__(self, health: Health, *, why_not_live: Check, why_not_ready: Check) -> None:
        self._health = health
        self._why_not_live = why_not_live
        self._why_not_ready = why_not_ready
        self._told: tuple[str, str] | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.tell()
            await asyncio.sleep(_INTERVAL_S)

    async def tell(self) -> None:
        """Once, now."""
        wrong = self._why_not_live(), self._why_not_ready()
        if wrong == self._told:
            return
        if self._told is not None:
            _log.info("Tells probes", not_live=wrong[0] or None, not_ready=wrong[1] or None)
        self._told = wrong
        await self._health.set(is_started=True, is_live=not wrong[0], is_ready=not wrong[1])
