"""The transport over gRPC: one channel for each endpoint, opened at its first use.

A connection on which nothing arrives is pinged every second, and closed if no response arrives within another second.
So a broker that hangs is noticed after two seconds, and a broker that dies immediately. The first reconnect starts
after 50 ms, and later ones after at most 500 ms; with gRPC's default of 1 to 120 s, a reconnect would take longer than
any failover.

With credentials, the transport logs in at each broker: before the first call, again when most of the session's lifetime
has passed, and again when the broker does not know the session, because the broker restarted or the password changed.
At each broker only one login runs at a time; concurrent calls wait for its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

import grpc
import grpc.aio

from odradek.cluster.grpc_errors import translated
from odradek.cluster.methods import AUTHENTICATE
from odradek.cluster.sasl_login import LOGIN_S_MAX, Metadata, Session, log_in
from odradek.cluster.security import SCRAM, SaslCredentials, TlsOptions
from odradek.cluster.transport import Method, MethodKind, Stream
from odradek.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientClosed,
    ForkedProcess,
    InvalidConfig,
)
from odradek_protocol.rpc.v1.auth_service_pb2 import AuthenticateRequest

Q = TypeVar("Q")
R = TypeVar("R")

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
KEEPALIVE_MS: Final = 1_000
RECONNECT_MS_MIN: Final = 50
RECONNECT_MS_MAX: Final = 500
RESOLVE_MS_MIN: Final = 200  # Minimum time between DNS look-ups of a name. gRPC's default is 30 s.
CONNECT_MS_MAX: Final = 2_000
CLOSE_GRACE_S: Final = 0.1
STREAMS_PER_CHANNEL: Final = 500
"""Maximum number of bidirectional streams on one channel. Brokers accept 1,000 calls on one connection."""

_CHANNEL_OPTIONS: Final[list[tuple[str, Any]]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_MS),  # gRPC's default is one minute.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS_MIN),
    # Despite its name, this option limits the time of one attempt to connect.
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS_MAX),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
    ("grpc.dns_min_time_between_resolutions_ms", RESOLVE_MS_MIN),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
    ("grpc.service_config_disable_resolution", 1),
]
CLIENT_ID: Final = "odradek"
"""The default client id. Quotas may be set for client ids, and the descriptions of groups show them."""
CLIENT_ID_CHARACTERS_MAX: Final = 255
_CLIENT_ID_HEADER: Final = "odradek-client-id"


class GrpcStream:
    """A bidirectional `Stream` over gRPC."""

    def __init__(self, endpoint: str, name: str, call: Any) -> None:
        self._endpoint = endpoint
        self._name = name
        self._call = call

    async def send(self, request: Any) -> None:
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
            raise await self._failure(error) from None

    async def receive(self) -> Any:
        try:
            message = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            raise await self._failure(error) from None
        return None if message is grpc.aio.EOF else message

    def cancel(self) -> None:
        self._call.cancel()

    async def _failure(self, error: BaseException) -> BaseException:
        """Return the SDK's error for a stream that ended.

        If the running task is being cancelled, the CancelledError is returned.
        """
        if isinstance(error, asyncio.CancelledError) and is_cancelling():
            self._call.cancel()
            return error
        if isinstance(error, grpc.aio.AioRpcError):
            return await translated(error.code(), error.details(), self._endpoint, self._name)
        if self._call.cancelled() or not self._call.done():
            return BrokerUnreachable(self._endpoint, f"the {self._name} stream was cancelled")
        code, details = await self._call.code(), await self._call.details()
        return await translated(code, details, self._endpoint, self._name)


class GrpcServerStream:
    """A `Stream` in which only the server sends a stream of messages. The only `send` starts the stream."""

    def __init__(self, endpoint: str, name: str, start: Callable[[Any], Any]) -> None:
        self._endpoint = endpoint
        self._name = name
        self._start = start
        self._stream: GrpcStream | None = None

    async def send(self, request: Any) -> None:
        assert self._stream is None, "a server stream accepts only one request"
        self._stream = GrpcStream(self._endpoint, self._name, self._start(request))

    async def receive(self) -> Any:
        assert self._stream is not None, "send the request first"
        return await self._stream.receive()

    def cancel(self) -> None:
        if self._stream is not None:
            self._stream.cancel()


def is_cancelling() -> bool:
    """Return whether the running task is being cancelled, and not only its gRPC call."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


_transports: weakref.WeakSet[GrpcTransport] = weakref.WeakSet()
_is_forked = False


class GrpcTransport:
    """The gRPC channels of one client. The first channel of an endpoint carries calls and up to STREAMS_PER_CHANNEL
    bidirectional streams; further streams get further channels. A transport belongs to the event loop of its first use.

    Raises:
        InvalidConfig: the mechanism sends a secret although TLS is off, or a PEM file cannot be used.
        ForkedProcess: this process was forked while gRPC was in use, so gRPC would crash.
    """

    def __init__(
        self,
        tls: TlsOptions | None = None,
        *,
        credentials: SaslCredentials | None = None,
        options: Mapping[str, Any] | None = None,
        client_id: str = CLIENT_ID,
    ) -> None:
        if _is_forked:
            raise ForkedProcess("gRPC was in use when this process was forked")
        _transports.add(self)
        if credentials is not None and credentials.mechanism not in SCRAM and tls is None:
            raise InvalidConfig(
                f"{credentials.mechanism} sends the secret in clear text, but TLS is off",
                hint="use TLS, or SCRAM-SHA-512",
            )
        if tls is not None:
            tls.pem()  # Raises an error for a file that cannot be used. Without this call, each connection would fail.
        is_printable = client_id.isascii() and client_id.isprintable()
        if not (is_printable and 1 <= len(client_id) <= CLIENT_ID_CHARACTERS_MAX):
            raise InvalidConfig(
                f"the client id {client_id!r:.260} must consist of 1 to {CLIENT_ID_CHARACTERS_MAX}"
                " printable ASCII characters"
            )
        self._tls = tls
        self._credentials = credentials
        self._client_id: Metadata = ((_CLIENT_ID_HEADER, client_id),)
        self._sessions: dict[str, Session] = {}
        self._logins: dict[str, asyncio.Lock] = {}
        self._options = [*_CHANNEL_OPTIONS, *(options or {}).items()]
        # By endpoint and number. The channel with number 0 also carries all unary calls and server streams.
        self._channels: dict[tuple[str, int], _Connection] = {}
        # Tasks that close replaced channels.
        self._replaced: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def call(
        self,
        endpoint: str,
        method: Method[Q, R],
        request: Q,
        *,
        timeout_s: float,
        metadata: Metadata = (),
    ) -> R:
        """Send one request with `metadata`, and return its response. Raises RequestTimedOut after `timeout_s`."""
        if self._credentials is None:
            return await self._call(endpoint, method, request, timeout_s, metadata)
        deadline_s = time.monotonic() + timeout_s
        session = await self._session_until(endpoint, deadline_s)
        try:
            remaining_s = max(deadline_s - time.monotonic(), 0.001)
            return await self._call(
                endpoint, method, request, remaining_s, (*metadata, _header(session))
            )
        except AuthenticationFailed:
            self._forget(endpoint, session)
        session = await self._session_until(endpoint, deadline_s)
        remaining_s = max(deadline_s - time.monotonic(), 0.001)
        return await self._call(
            endpoint, method, request, remaining_s, (*metadata, _header(session))
        )

    async def _call(
        self, endpoint: str, method: Method[Q, R], request: Q, timeout_s: float, metadata: Metadata
    ) -> R:
        assert method.kind is MethodKind.UNARY, method
        unary = self._connection(endpoint).channel.unary_unary(
            method.path, request_serializer=method.encode, response_deserializer=method.decode
        )
        try:
            response: R = await unary(
                request, timeout=timeout_s, metadata=(*self._client_id, *metadata)
            )
        except grpc.aio.AioRpcError as error:
            raise await translated(error.code(), error.details(), endpoint, method.name) from None
        except asyncio.CancelledError:
            if self._is_closed and not is_cancelling():
                raise ClientClosed("the client was closed during a call") from None
            raise
        return response

    def open(self, endpoint: str, method: Method[Q, R], *, metadata: Metadata = ()) -> Stream[Q, R]:
        """Open a stream with `metadata`, without waiting."""
        if self._credentials is None:
            return self._open(endpoint, method, metadata)
        return _LoggedInStream(self, endpoint, method, metadata)

    def _open(self, endpoint: str, method: Method[Q, R], metadata: Metadata) -> Stream[Q, R]:
        metadata = (*self._client_id, *metadata)
        if method.kind is MethodKind.BIDI:
            connection = self._connection_with_room(endpoint)
            bidi = connection.channel.stream_stream(
                method.path, request_serializer=method.encode, response_deserializer=method.decode
            )
            call = bidi(metadata=metadata)
            connection.count(call)
            return GrpcStream(endpoint, method.name, call)
        server = self._connection(endpoint).channel.unary_stream(
            method.path, request_serializer=method.encode, response_deserializer=method.decode
        )
        return GrpcServerStream(
            endpoint, method.name, lambda request: server(request, metadata=metadata)
        )

    async def connect(self, endpoints: Iterable[str], *, timeout_s: float) -> None:
        """Connect to these endpoints before the first call. Return when each attempt has succeeded or failed, or after
        `timeout_s`. An endpoint that does not respond is not an error here.
        """
        with contextlib.suppress(BrokerUnreachable, TimeoutError):
            async with asyncio.timeout(timeout_s):
                channels = [self._connection(endpoint).channel for endpoint in endpoints]
                await asyncio.gather(*map(_connected, channels))

    async def close(self) -> None:
        """Close all channels, which ends their calls and streams."""
        self._is_closed = True
        connections, self._channels = list(self._channels.values()), {}
        for connection in connections:
            await connection.channel.close(CLOSE_GRACE_S)
        if self._replaced:
            await asyncio.wait(self._replaced)

    async def log_in(self, endpoint: str, credentials: SaslCredentials) -> Session:
        """Log in at a broker. Raises AuthenticationFailed, or an error of the connection."""
        return await log_in(
            lambda metadata: self._call(
                endpoint, AUTHENTICATE, AuthenticateRequest(), LOGIN_S_MAX, metadata
            ),
            endpoint,
            credentials,
        )

    async def _session_until(self, endpoint: str, deadline_s: float) -> Session:
        """Like `_session`, but wait only until the deadline. A limit on the login alone would not suffice, because
        `_session` first waits for the logins of other calls.
        """
        try:
            async with asyncio.timeout(deadline_s - time.monotonic()):
                return await self._session(endpoint)
        except TimeoutError:
            raise BrokerUnreachable(endpoint, "it did not respond to a login in time") from None

    async def _session(self, endpoint: str) -> Session:
        """Return the session at a broker. If there is none, or it is about to expire, log in first."""
        assert self._credentials is not None
        async with self._logins.setdefault(endpoint, asyncio.Lock()):
            session = self._sessions.get(endpoint)
            if session is None or time.monotonic() >= session.renew_at_s:
                session = await self.log_in(endpoint, self._credentials)
                self._sessions[endpoint] = session
            return session

    def _forget(self, endpoint: str, session: Session) -> None:
        """Drop a session that the broker does not know, unless it was already replaced."""
        if self._sessions.get(endpoint) is session:
            del self._sessions[endpoint]

    def _connection_with_room(self, endpoint: str) -> _Connection:
        """Return a connection that can carry one more bidirectional stream.

        A server accepts a limited number of calls on one connection; further calls wait until others end. Streams are
        open for a long time, so the streams of a thousand consumers on one connection would block all other calls.
        """
        number = 0
        while (connection := self._connection(endpoint, number)).streams >= STREAMS_PER_CHANNEL:
            number += 1
        return connection

    def _connection(self, endpoint: str, number: int = 0) -> _Connection:
        """Return connection `number` to an endpoint; a new one if it does not exist or was lost.

        A channel that lost its connection would first try the old address of the host name. If the broker now has
        another address, as a restarted pod does, nothing responds at the old address, and the attempt takes its whole
        time limit.
        """
        connection = self._channels.get((endpoint, number))
        if connection is not None and not connection.is_stale():
            return connection
        if self._is_closed:
            raise ClientClosed("the client is closed")
        if connection is not None:
            closing = asyncio.ensure_future(connection.channel.close(CONNECT_MS_MAX / 1000))
            self._replaced.add(closing)
            closing.add_done_callback(self._replaced.discard)
        new_connection = self._channels[endpoint, number] = _Connection(self._new_channel(endpoint))
        return new_connection

    def _new_channel(self, endpoint: str) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(endpoint, options=self._options)
        try:
            ca, key, cert = self._tls.pem()
        except InvalidConfig as error:  # A certificate file may be missing while it is renewed.
            raise BrokerUnreachable(endpoint, error.message) from None
        options = list(self._options)
        if self._tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self._tls.server_name))
        return grpc.aio.secure_channel(
            endpoint, grpc.ssl_channel_credentials(ca, key, cert), options=options
        )


async def _connected(channel: grpc.aio.Channel) -> None:
    """Let a channel connect. Return when it has connected, or its first attempt has failed."""
    state = channel.get_state(try_to_connect=True)
    while state in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


class _Connection:
    """A channel, with the time of its creation and the number of its bidirectional streams."""

    __slots__ = ("_made_s", "channel", "streams")

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.streams = 0
        self._made_s = time.monotonic()

    def count(self, call: Any) -> None:
        """Count a bidirectional stream until it ends."""
        self.streams += 1
        call.add_done_callback(self._ended)

    def _ended(self, _call: Any) -> None:
        self.streams -= 1

    def is_stale(self) -> bool:
        """Return whether the channel has lost its connection: it is idle although it had enough time to connect."""
        if time.monotonic() - self._made_s < CONNECT_MS_MAX / 1000:
            return False
        return self.channel.get_state() is grpc.ChannelConnectivity.IDLE


class _LoggedInStream(Generic[Q, R]):
    """A stream that is opened at its first use, after a login if one is necessary.

    When the session ends, `send` and `receive` raise BrokerUnreachable. A caller that opens a new stream then gets a
    new session.
    """

    def __init__(
        self, transport: GrpcTransport, endpoint: str, method: Method[Q, R], metadata: Metadata
    ) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._method = method
        self._metadata = metadata
        self._opening = asyncio.Lock()
        self._session: Session | None = None
        self._stream: Stream[Q, R] | None = None
        self._is_cancelled = False

    async def send(self, request: Q) -> None:
        stream = await self._opened()
        try:
            await stream.send(request)
        except AuthenticationFailed as error:
            raise self._ended(error) from None

    async def receive(self) -> R | None:
        stream = await self._opened()
        try:
            return await stream.receive()
        except AuthenticationFailed as error:
            raise self._ended(error) from None

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._stream is not None:
            self._stream.cancel()

    async def _opened(self) -> Stream[Q, R]:
        async with self._opening:
            if self._stream is None:
                self._session = await self._transport._session(self._endpoint)
                if self._is_cancelled:
                    details = f"the {self._method.name} stream was cancelled"
                    raise BrokerUnreachable(self._endpoint, details)
                self._stream = self._transport._open(
                    self._endpoint, self._method, (*self._metadata, _header(self._session))
                )
            return self._stream

    def _ended(self, error: AuthenticationFailed) -> BrokerUnreachable:
        assert self._session is not None
        self._transport._forget(self._endpoint, self._session)
        return BrokerUnreachable(self._endpoint, str(error))


def _header(session: Session) -> tuple[str, str]:
    return ("authorization", f"Bearer {session.name}")


def _note_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or any(transport._channels for transport in _transports)


os.register_at_fork(after_in_child=_note_fork)
