"""The follower's end of a replication stream over gRPC: a LeaderConnection on a channel of its own."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio

from odradek_broker.replication.streams.follower_stream import Dial, StreamBroken
from odradek_protocol.identity import BrokerId
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from odradek_runtime.grpc_endpoints import internal_channel
from odradek_runtime.tls import TlsFiles

_METHOD: Final = "/odradek.v1.ReplicationService/Replicate"
# A write that meets a call which has just ended raises one of the last two.
_ENDED: Final = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)


class GrpcLeaderConnection:
    """One call of ReplicationService.Replicate."""

    def __init__(self, leader: BrokerId, host: str, port: int, tls: TlsFiles | None) -> None:
        self._channel = internal_channel(host, port, tls, peer=f"broker-{leader}")
        # Without a deserializer the batches are not copied out of the message.
        opener: Any = self._channel.stream_stream(
            _METHOD, request_serializer=pb.ReplicateRequest.SerializeToString
        )
        self._call: grpc.aio.StreamStreamCall[pb.ReplicateRequest, bytes] = opener()

    async def write(self, request: pb.ReplicateRequest) -> None:
        try:
            await self._call.write(request)
        except _ENDED as error:
            raise StreamBroken(repr(error)) from error

    async def accepted(self) -> None:
        try:
            await self._call.initial_metadata()
        except _ENDED as error:
            raise StreamBroken(repr(error)) from error

    async def read(self) -> bytes:
        try:
            response = await self._call.read()
        except _ENDED as error:
            raise StreamBroken(repr(error)) from error
        if response is grpc.aio.EOF:
            raise StreamBroken("the leader ended the stream")
        assert isinstance(response, bytes)
        return response

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()


def grpc_dial(tls: TlsFiles | None) -> Dial:
    """Return what opens connections to leaders over gRPC."""
    return lambda leader, host, port: GrpcLeaderConnection(leader, host, port, tls)
