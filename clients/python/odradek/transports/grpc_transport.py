"""The transport of real clusters: one gRPC channel per endpoint, opened when first used.

A connection that stays silent is asked for a sign of life every second, also without calls, and is
broken when none comes within another: a broker that hangs is noticed in two seconds, one that dies at
once. Reconnecting starts at 50 ms and never waits longer than 500 ms (gRPC's own 1 to 120 s would
outlast any failover).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from odradek.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    BrokerUnreachable,
    ClientClosed,
    NameUnresolvable,
    OdradekError,
    RequestTimedOut,
    ServerFault,
    UnsupportedOperation,
)
from odradek.transports.security import TlsOptions
from odradek.transports.transport import Method, MethodKind, Stream

Q = TypeVar("Q")
R = TypeVar("R")

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
KEEPALIVE_MS: Final = 1_000
RECONNECT_MS_MIN: Final = 50
RECONNECT_MS_MAX: Final = 500
RESOLVE_MS_MIN: Final = 200  # how soon a broker's name is looked up again; gRPC's own: 30 s
CONNECT_MS_MAX: Final = 2_000
CLOSE_GRACE_S: Final = 0.1

_CHANNEL_OPTIONS: Final[list[tuple[str, Any]]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_MS),  # its default of a minute would win otherwise
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS_MIN),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS_MAX),  # in truth: the time an attempt may take
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
    ("grpc.dns_min_time_between_resolutions_ms", RESOLVE_MS_MIN),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
    ("grpc.service_config_disable_resolution", 1),
]
Metadata = tuple[tuple[str, str], ...]


class GrpcTransport:
    """Channels by endpoint. Belongs to the event loop that it is first used on.

    `call_metadata`, when given, is asked before each call for headers to send along (credentials).
    """

    def __init__(
        self,
        tls: TlsOptions | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        call_metadata: Callable[[], Metadata] | None = None,
    ) -> None:
        self._tls = tls
        self._options = [*_CHANNEL_OPTIONS, *(options or {}).items()]
        self._call_metadata = call_metadata
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._is_closed = False

    async def call(self, endpoint: str, method: Method[Q, R], request: Q, *, timeout_s: float) -> R:
        """One request, one answer, within `timeout_s`."""
        assert method.kind is MethodKind.UNARY, method
        unary = self._channel(endpoint).unary_unary(
            method.path, request_serializer=method.encode, response_deserializer=method.decode
        )
        try:
            response: R = await unary(request, timeout=timeout_s, metadata=self._metadata())
        except grpc.aio.AioRpcError as error:
            raise await _translated(error.code(), error.details(), endpoint, method.name) from None
        except asyncio.CancelledError:
            if self._is_closed and not _is_cancelling():
                raise ClientClosed("the client was closed during a call") from None
            raise
        return response

    def open(self, endpoint: str, method: Method[Q, R]) -> Stream[Q, R]:
        """Open a stream; does not wait."""
        channel = self._channel(endpoint)
        if method.kind is MethodKind.BIDI:
            bidi = channel.stream_stream(
                method.path, request_serializer=method.encode, response_deserializer=method.decode
            )
            call = bidi(metadata=self._metadata())
            return _GrpcStream(endpoint, method.name, call)
        server = channel.unary_stream(
            method.path, request_serializer=method.encode, response_deserializer=method.decode
        )
        return _GrpcServerStream(
            endpoint, method.name, lambda request: server(request, metadata=self._metadata())
        )

    async def close(self) -> None:
        """Close all channels; calls under way end."""
        self._is_closed = True
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close(CLOSE_GRACE_S)

    def _metadata(self) -> Metadata | None:
        return None if self._call_metadata is None else self._call_metadata()

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        channel = self._channels.get(endpoint)
        if channel is None:
            if self._is_closed:
                raise ClientClosed("the client is closed")
            channel = self._channels[endpoint] = self._new_channel(endpoint)
        return channel

    def _new_channel(self, endpoint: str) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(endpoint, options=self._options)
        ca, key, cert = self._tls.pem()
        options = list(self._options)
        if self._tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self._tls.server_name))
        return grpc.aio.secure_channel(
            endpoint, grpc.ssl_channel_credentials(ca, key, cert), options=options
        )


class _GrpcStream:
    """A bidi stream."""

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
        """What a call that ended means; our own task's cancellation stays one."""
        if isinstance(error, asyncio.CancelledError) and _is_cancelling():
            self._call.cancel()
            return error
        if isinstance(error, grpc.aio.AioRpcError):
            return await _translated(error.code(), error.details(), self._endpoint, self._name)
        if self._call.cancelled() or not self._call.done():
            return BrokerUnreachable(self._endpoint, f"the {self._name} stream was cancelled")
        code, details = await self._call.code(), await self._call.details()
        return await _translated(code, details, self._endpoint, self._name)


class _GrpcServerStream:
    """A server stream: the first `send` starts it."""

    def __init__(self, endpoint: str, name: str, start: Callable[[Any], Any]) -> None:
        self._endpoint = endpoint
        self._name = name
        self._start = start
        self._stream: _GrpcStream | None = None

    async def send(self, request: Any) -> None:
        assert self._stream is None, "a server stream takes one request"
        self._stream = _GrpcStream(self._endpoint, self._name, self._start(request))

    async def receive(self) -> Any:
        assert self._stream is not None, "send the request first"
        return await self._stream.receive()

    def cancel(self) -> None:
        if self._stream is not None:
            self._stream.cancel()


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _translated(
    code: grpc.StatusCode, details: str | None, endpoint: str, name: str
) -> OdradekError:
    """The SDK's error for a gRPC status."""
    told = (details or code.name.lower().replace("_", " ")).strip()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED):
        if code is grpc.StatusCode.UNAVAILABLE and not await _resolves(endpoint):
            return NameUnresolvable(endpoint, "its name does not resolve on this machine")
        return BrokerUnreachable(endpoint, told)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimedOut(f"{name} was not answered in time by the broker at {endpoint}")
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return AuthenticationFailed(f"the broker at {endpoint} refused {name}: {told}")
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return AuthorizationFailed(f"the broker at {endpoint} refused {name}: {told}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedOperation(f"the broker at {endpoint} does not offer {name}")
    return ServerFault(f"{name} failed at the broker at {endpoint}: {code.name}: {told}")


async def _resolves(endpoint: str) -> bool:
    """Whether the endpoint's host has an address; asked only after a connection failed."""
    host, _, port = endpoint.rpartition(":")
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM
        )
        return True
    return False
