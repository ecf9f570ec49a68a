"""The two sides of a gRPC stream between brokers: `ServedStream` at the server, `OpenedStream` at the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import grpc
import grpc.aio

from odradek_broker.replication.streams.follower_sessions import Refusal
from odradek_broker.replication.streams.follower_stream import StreamBroken
from odradek_broker.rpc.callers import ServerContext
from odradek_protocol.identity import BrokerId
from odradek_runtime.grpc_endpoints import internal_channel
from odradek_runtime.tls import TlsFiles, peer_identity

RequestT = TypeVar("RequestT")

REFUSAL_STATUS: Final = {
    Refusal.NO_HELLO: grpc.StatusCode.INVALID_ARGUMENT,
    Refusal.NOT_PERMITTED: grpc.StatusCode.PERMISSION_DENIED,
    Refusal.SUPERSEDED: grpc.StatusCode.ABORTED,
}
# A write to a call that has just ended raises UsageError or InvalidStateError.
_ENDED: Final = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)


class ServedStream(Generic[RequestT]):
    """A stream at the broker that serves it. `read` returns requests, and `write` sends encoded responses."""

    def __init__(
        self, context: ServerContext, request_type: type[RequestT], *, is_mutual_tls: bool
    ) -> None:
        self._context = context
        self._request_type = request_type
        self._is_mutual_tls = is_mutual_tls

    def is_from(self, broker_id: int) -> bool:
        return not self._is_mutual_tls or peer_identity(self._context.auth_context) == (
            "broker",
            broker_id,
        )

    async def read(self) -> RequestT | None:
        request = await self._context.read()
        if request is grpc.aio.EOF:
            return None
        assert isinstance(request, self._request_type)
        return request

    async def accept(self) -> None:
        await self._context.send_initial_metadata(())

    async def write(self, message: bytes) -> None:
        await self._context.write(message)


class OpenedStream(Generic[RequestT]):
    """A stream at the broker that opened it. `read` returns encoded responses, so that batches are not copied."""

    def __init__(
        self,
        peer: BrokerId,
        host: str,
        port: int,
        *,
        method: str,
        tls: TlsFiles | None,
        encode: Callable[[RequestT], bytes] | None = None,
    ) -> None:
        """`method` is the path of the method. If `encode` is None, requests are bytes."""
        self._channel = internal_channel(host, port, tls, peer=f"broker-{peer}")
        # Any: the stubs do not know that a call without a deserializer yields bytes.
        opener: Any = self._channel.stream_stream(method, request_serializer=encode)
        self._call: grpc.aio.StreamStreamCall[RequestT, bytes] = opener()

    async def write(self, request: RequestT) -> None:
        try:
            await self._call.write(request)
        except _ENDED as error:
            raise StreamBroken(_reason(error)) from error

    async def accepted(self) -> None:
        try:
            await self._call.initial_metadata()
        except _ENDED as error:
            raise StreamBroken(_reason(error)) from error

    async def read(self) -> bytes:
        try:
            response = await self._call.read()
        except _ENDED as error:
            raise StreamBroken(_reason(error)) from error
        if response is grpc.aio.EOF:
            raise StreamBroken("the other broker ended the stream")
        assert isinstance(response, bytes)
        return response

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()


def _reason(error: BaseException) -> str:
    """Return the reason why a call ended, in one line."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return repr(error)
