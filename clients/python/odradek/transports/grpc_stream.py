"""Streams over gRPC, and what a status of gRPC means here."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from odradek.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    BrokerUnreachable,
    NameUnresolvable,
    NoActiveController,
    OdradekError,
    RequestTimedOut,
    ServerFault,
    UnsupportedOperation,
    WrongListener,
)

RESOLVE_S_MAX: Final = 0.5
_FAREWELL: Final = re.compile(r"Debug Text: (this is the listener .*?)\)?$")
"""What a Kafka listener says to a gRPC client before it closes the connection."""
_HTTP_1: Final = "http1.x server"
"""In gRPC's own words, where an HTTP/1 server answers."""
_NO_CONTROLLER: Final = "no active controller"
"""How brokers begin the details of the status UNAVAILABLE when they could not pass a call on to a controller."""


class GrpcStream:
    """A bidi stream."""

    def __init__(self, endpoint: str, name: str, call: Any) -> None:
        self._endpoint = endpoint
        self._name = name
        self._call = call

    async def send(self, request: Any) -> None:
        """See `Stream`."""
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
            raise await self._failure(error) from None

    async def receive(self) -> Any:
        """See `Stream`."""
        try:
            message = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            raise await self._failure(error) from None
        return None if message is grpc.aio.EOF else message

    def cancel(self) -> None:
        """See `Stream`."""
        self._call.cancel()

    async def _failure(self, error: BaseException) -> BaseException:
        """What a call that ended means; our own task's cancellation stays one."""
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
    """A server stream: the first `send` starts it."""

    def __init__(self, endpoint: str, name: str, start: Callable[[Any], Any]) -> None:
        self._endpoint = endpoint
        self._name = name
        self._start = start
        self._stream: GrpcStream | None = None

    async def send(self, request: Any) -> None:
        """See `Stream`."""
        assert self._stream is None, "a server stream takes one request"
        self._stream = GrpcStream(self._endpoint, self._name, self._start(request))

    async def receive(self) -> Any:
        """See `Stream`."""
        assert self._stream is not None, "send the request first"
        return await self._stream.receive()

    def cancel(self) -> None:
        """See `Stream`."""
        if self._stream is not None:
            self._stream.cancel()


def is_cancelling() -> bool:
    """Whether it is our own task that somebody cancels, and not the call alone."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def translated(
    code: grpc.StatusCode, details: str | None, endpoint: str, name: str
) -> OdradekError:
    """The SDK's error for a gRPC status."""
    told = (details or code.name.lower().replace("_", " ")).strip()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED):
        if code is grpc.StatusCode.UNAVAILABLE and not await _resolves(endpoint):
            return NameUnresolvable(endpoint, "its name does not resolve on this machine")
        if farewell := _FAREWELL.search(told):
            return WrongListener(endpoint, farewell[1])
        if _HTTP_1 in told:
            reason = "this is an HTTP/1 server, such as a gateway or a port for metrics"
            return WrongListener(endpoint, reason)
        if told.startswith(_NO_CONTROLLER):
            return NoActiveController(f"the broker at {endpoint} responds, but {told}")
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
    """Whether the endpoint's host has an address; asked only after a connection failed.

    So does one whose resolver takes long: the news of a lost connection does not wait for it.
    """
    host, _, port = endpoint.rpartition(":")
    try:
        async with asyncio.timeout(RESOLVE_S_MAX):
            await asyncio.get_running_loop().getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM
            )
    except TimeoutError:
        return True
    except OSError:
        return False
    return True
