"""Replication streams over gRPC: the leader's servicer, and the follower's connection.

The servicer passes each follower's stream to FollowerSessions; `grpc_dial` opens a follower's stream to its leader.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio

from odradek_broker.replication.streams.follower_sessions import (
    FollowerSessions,
    Refusal,
    StreamRefused,
)
from odradek_broker.replication.streams.follower_stream import Dial, StreamBroken
from odradek_broker.rpc.callers import MethodHandler, ServerContext
from odradek_protocol.identity import BrokerId
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from odradek_protocol.rpc.v1 import replication_service_pb2_grpc as pb_grpc
from odradek_runtime.grpc_endpoints import internal_channel
from odradek_runtime.tls import TlsFiles, peer_identity

_SERVICE = "odradek.v1.ReplicationService"
REFUSAL_STATUS: Final = {
    Refusal.NO_HELLO: grpc.StatusCode.INVALID_ARGUMENT,
    Refusal.NOT_PERMITTED: grpc.StatusCode.PERMISSION_DENIED,
    Refusal.SUPERSEDED: grpc.StatusCode.ABORTED,
}


class _GrpcFollowerConnection:
    """The leader's end of one follower's call."""

    def __init__(self, context: ServerContext, *, is_mutual_tls: bool) -> None:
        self._context = context
        self._is_mutual_tls = is_mutual_tls

    def is_from(self, broker_id: int) -> bool:
        return not self._is_mutual_tls or peer_identity(self._context.auth_context) == (
            "broker",
            broker_id,
        )

    async def read(self) -> pb.ReplicateRequest | None:
        request = await self._context.read()
        if request is grpc.aio.EOF:
            return None
        assert isinstance(request, pb.ReplicateRequest)
        return request

    async def accept(self) -> None:
        await self._context.send_initial_metadata(())

    async def write(self, message: bytes) -> None:
        await self._context.write(message)


class ReplicationServicer(pb_grpc.ReplicationServiceServicer):
    """The servicer of followers' streams."""

    def __init__(self, sessions: FollowerSessions, *, is_mutual_tls: bool) -> None:
        self._sessions = sessions
        self._is_mutual_tls = is_mutual_tls

    # The stubs know only handlers that iterate; gRPC also takes those that read and write.
    async def Replicate(self, _requests: object, context: ServerContext) -> None:  # type: ignore[override]
        """Serve one follower's stream until either side ends it."""
        connection = _GrpcFollowerConnection(context, is_mutual_tls=self._is_mutual_tls)
        try:
            await self._sessions.serve(connection)
        except StreamRefused as refused:
            await context.abort(REFUSAL_STATUS[refused.refusal], str(refused))


def add_to(server: grpc.aio.Server, servicer: ReplicationServicer) -> str:
    """Register the servicer, and return the service's full name."""
    handler: MethodHandler = grpc.stream_stream_rpc_method_handler(
        servicer.Replicate, request_deserializer=pb.ReplicateRequest.FromString
    )  # without a serializer: LeaderStream writes bytes
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE, {"Replicate": handler}),)
    )
    return _SERVICE


_METHOD: Final = "/odradek.v1.ReplicationService/Replicate"
# A write that meets a call which has just ended raises one of the last two.
ENDED: Final = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)


class GrpcLeaderConnection:
    """The follower's end of one call of ReplicationService.Replicate."""

    def __init__(self, leader: BrokerId, host: str, port: int, tls: TlsFiles | None) -> None:
        self._channel = internal_channel(host, port, tls, peer=f"broker-{leader}")
        # Without a deserializer the batches are not copied out of the message.
        # Any: the stubs do not know that a call without a deserializer yields bytes.
        opener: Any = self._channel.stream_stream(
            _METHOD, request_serializer=pb.ReplicateRequest.SerializeToString
        )
        self._call: grpc.aio.StreamStreamCall[pb.ReplicateRequest, bytes] = opener()

    async def write(self, request: pb.ReplicateRequest) -> None:
        try:
            await self._call.write(request)
        except ENDED as error:
            raise StreamBroken(repr(error)) from error

    async def accepted(self) -> None:
        try:
            await self._call.initial_metadata()
        except ENDED as error:
            raise StreamBroken(repr(error)) from error

    async def read(self) -> bytes:
        try:
            response = await self._call.read()
        except ENDED as error:
            raise StreamBroken(repr(error)) from error
        if response is grpc.aio.EOF:
            raise StreamBroken("the leader ended the stream")
        assert isinstance(response, bytes)
        return response

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()


def grpc_dial(tls: TlsFiles | None) -> Dial:
    """Return the function that opens connections to leaders over gRPC."""
    return lambda leader, host, port: GrpcLeaderConnection(leader, host, port, tls)
