"""gRPC servers, channels and health checks, with the options that all processes of the cluster share.

`Probes` sets the health service for Kubernetes' probes:

- `startup` succeeds as soon as the process is up. The process may still be opening large logs in threads, and a failed
  probe would only restart it.
- `liveness` succeeds while the event loop runs and nothing is broken that only a restart repairs. The state of other
  processes does not count, because otherwise Kubernetes would restart all processes together.
- `readiness` succeeds while the process does its work in the cluster. A rolling restart waits for this before it stops
  the next process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from odradek_runtime.listeners import ListenerAddress, host_port, open_port, port_refused
from odradek_runtime.logs import event_log
from odradek_runtime.tls import TlsFiles

MESSAGE_BYTES_MAX: Final = 64 << 20
CLIENT_MESSAGE_BYTES_MAX: Final = 33 << 20  # a batch of 32 MiB, and the message around it
# A health check request has only the name of a service. The limit is low because any client may send such a request.
_PROBE_BYTES_MAX: Final = 4096
Options = list[tuple[str, Any]]

SERVER_OPTIONS: Final[Options] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", 10_000),  # the most calls in progress on one connection
    # The default of two minutes would help an attacker who sends slowly.
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.so_reuseport", 0),  # the second of two brokers with the same port must fail to start
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 1000),
    # The default of this option, one minute, would override grpc.keepalive_timeout_ms.
    ("grpc.http2.ping_timeout_ms", 1000),
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
    # The most calls in progress on one connection. A gateway serves many consumers over one connection.
    ("grpc.max_concurrent_streams", 1000),
    # The bytes that the server buffers for a call while the handler does not read: the default size of one produce
    # request of the SDK. A message that the handler reads may be larger.
    ("grpc.http2.lookahead_bytes", 1 << 20),
]
"""Options of listeners for clients. Their limits are lower than those for processes of the cluster (SERVER_OPTIONS)."""

INTERNAL_CHANNEL_OPTIONS: Final[Options] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 1000),
    # The default of this option, one minute, would override grpc.keepalive_timeout_ms.
    ("grpc.http2.ping_timeout_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    # Despite its name, this option limits the duration of an attempt to connect, not the pause between attempts.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A restarted pod has another address, and by default gRPC resolves a name at most every 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.http2.max_frame_size", 1 << 20),
]


def internal_channel(host: str, port: int, tls: TlsFiles | None, *, peer: str) -> grpc.aio.Channel:
    """Return a new asyncio channel to a process of the cluster. No other channel shares its connection.

    `peer` is the identity that the server's certificate must have, such as `broker-3` or `controller-1`. The host name
    is not compared with the certificate, because hosts change and identities do not.
    """
    target = host_port(host, port)
    if tls is None:
        return grpc.aio.insecure_channel(target, options=INTERNAL_CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(
        target, tls.channel_credentials(), options=[*INTERNAL_CHANNEL_OPTIONS, _identity(peer)]
    )


def internal_sync_channel(host: str, port: int, tls: TlsFiles | None, *, peer: str) -> grpc.Channel:
    """Like `internal_channel`, but return a synchronous channel, for use in the thread that sends heartbeats."""
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
    """Return a gRPC server with SERVER_OPTIONS, for processes of the cluster. It has no port until `bind`.

    `message_bytes_max` limits the size of a received message. `connections` are options from `connection_bounds`.
    """
    options = dict(SERVER_OPTIONS) | {"grpc.max_receive_message_length": message_bytes_max}
    options |= dict(connections or ())
    return grpc.aio.server(
        options=list(options.items()),
        interceptors=list(interceptors),
        maximum_concurrent_rpcs=concurrent_rpcs_max,
    )


class WrongListenerNotice(grpc.aio.ServerInterceptor):
    """Refuses calls of methods that the server does not have, with a text that names this listener and the right one.

    `advice` returns the text (`listeners.wrong_listener`). The SDK shows the text and does not call again.
    """

    def __init__(self, advice: Callable[[], str]) -> None:
        self._advice = advice

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler, or one that refuses every call."""
        handler = await continuation(handler_call_details)
        if handler is not None:
            return handler

        async def refuse(_requests: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, self._advice())

        # A handler of this kind serves unary calls, too.
        return grpc.stream_stream_rpc_method_handler(refuse)


def connection_bounds(*, connections_max: int, idle_ms_max: int) -> Options:
    """Return server options that refuse connections beyond `connections_max` and close a connection that has had no
    call for `idle_ms_max`.
    """
    return [
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.max_connection_idle_ms", idle_ms_max),
    ]


def new_client_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor], connections: Options | None = None
) -> grpc.aio.Server:
    """Return a gRPC server for clients, with CLIENT_SERVER_OPTIONS. It has no port until `bind`.

    `connections` are options from `connection_bounds`.
    """
    options = dict(SERVER_OPTIONS) | dict(CLIENT_SERVER_OPTIONS) | dict(connections or ())
    return grpc.aio.server(
        options=list(options.items()),
        interceptors=list(interceptors),
    )


def bind(
    server: grpc.aio.Server, listener: ListenerAddress, tls: TlsFiles | None, *, mutual: bool
) -> int:
    """Bind a server that has not been started to a listener's port, and return the port. Raises ListenRefused.

    With `tls` and `mutual`, clients must show a certificate of the CA (mTLS).
    """
    # If a port is in use, gRPC writes log lines of its own and raises a RuntimeError without a reason. So the port is
    # first opened with a plain socket, whose error has the reason.
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
    """The standard gRPC health service of a process, added to each of `servers`.

    Probes may ask for the service names `startup`, `readiness` and `liveness`; "" means the same as `readiness`.
    """

    def __init__(self, *servers: grpc.aio.Server) -> None:
        from grpc_health.v1 import health, health_pb2_grpc

        self._servicer = health.aio.HealthServicer()
        self._probes: grpc.aio.Server | None = None
        for server in servers:
            health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def open_for_probes(self, host: str, port: int) -> int:
        """Serve the health service also on a separate port without TLS, because Kubernetes' probes do not support TLS.

        Return the port, which offers no other service. Raises ListenRefused.
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
        """Close the separate port for probes, if there is one."""
        if self._probes is not None:
            await self._probes.stop(0)

    async def set(self, *, is_live: bool, is_ready: bool, is_started: bool | None = None) -> None:
        """Set the responses to probes. With `is_started` None, the process counts as started once it is ready."""
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
    """Enable gRPC reflection, with which tools such as grpcurl list these services."""
    from grpc_reflection.v1alpha import reflection

    reflection.enable_server_reflection([*service_names, reflection.SERVICE_NAME], server)


REPLACED_GRACE_S: Final = 10.0  # longer than any unary call takes; streams reconnect


@dataclass(frozen=True, slots=True)
class _Opened:
    host: str
    port: int
    stamp: tuple[int, ...]
    channel: grpc.aio.Channel


class InternalChannels:
    """One gRPC channel to each other process of the cluster. A channel is replaced when the peer's address or this
    process's certificate has changed.

    A gRPC channel uses the certificate with which it was created, however often it reconnects. Once that certificate
    has expired, no peer accepts the channel. Calls in progress on a replaced channel have REPLACED_GRACE_S to end. Use
    this object only on one event loop.
    """

    def __init__(self, tls: TlsFiles | None) -> None:
        self._tls = tls
        self._opened: dict[str, _Opened] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def channel(self, peer: str, host: str, port: int) -> grpc.aio.Channel:
        """Return the channel to `peer`, such as `broker-3` or `controller-1`. It is a new channel if the peer's address
        or this process's certificate has changed. Raises OSError if the certificate files cannot be read.
        """
        present = self._opened.get(peer)
        stamp = self._stamp(present)
        if present is not None:
            if (present.host, present.port, present.stamp) == (host, port, stamp):
                return present.channel
            self._close_later(present.channel)
        channel = internal_channel(host, port, self._tls, peer=peer)
        self._opened[peer] = _Opened(host, port, stamp, channel)
        return channel

    async def close(self) -> None:
        """Close all channels, and with them the calls in progress."""
        opened, self._opened = list(self._opened.values()), {}
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        for old in opened:
            await old.channel.close()

    def _stamp(self, present: _Opened | None) -> tuple[int, ...]:
        if self._tls is None:
            return ()
        try:
            return self._tls.stamp()
        except OSError:  # the files are being replaced
            if present is None:
                raise
            return present.stamp

    def _close_later(self, channel: grpc.aio.Channel) -> None:
        task = asyncio.get_running_loop().create_task(
            channel.close(REPLACED_GRACE_S), name="close a replaced channel"
        )
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


_INTERVAL_S: Final = 0.1
_log = event_log(__name__)
Check = Callable[[], str]
"""A function that checks one condition. It returns an empty string if the condition is met, otherwise the problem."""


class Probes:
    """Runs a liveness and a readiness check every 0.1 s and sets the health service by their results.

    Both checks run on the event loop, so they must be cheap and must not wait.
    """

    def __init__(self, health: Health, *, why_not_live: Check, why_not_ready: Check) -> None:
        self._health = health
        self._why_not_live = why_not_live
        self._why_not_ready = why_not_ready
        self._reported: tuple[str, str] | None = None

    async def run(self) -> None:
        """Run the checks periodically until this task is cancelled."""
        while True:
            await self.report()
            await asyncio.sleep(_INTERVAL_S)

    async def report(self) -> None:
        """Check liveness and readiness once. If a result has changed, log it and set the health service."""
        problems = self._why_not_live(), self._why_not_ready()
        if problems == self._reported:
            return
        if self._reported is not None:
            _log.info(
                "Health of this process changed",
                is_live=not problems[0],
                is_ready=not problems[1],
                reason="; ".join(filter(None, problems)) or None,
            )
        self._reported = problems
        await self._health.set(is_started=True, is_live=not problems[0], is_ready=not problems[1])
