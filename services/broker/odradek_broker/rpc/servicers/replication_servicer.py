"""ReplicationService on gRPC: hands each follower's stream to FollowerSessions."""

from __future__ import annotations

from typing import Final

import grpc
import grpc.aio

from odradek_broker.replication.streams.follower_sessions import (
    FollowerSessions,
    Refusal,
    StreamRefused,
)
from odradek_broker.rpc.callers import MethodHandler, ServerContext
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from odradek_protocol.rpc.v1 import replication_service_pb2_grpc as pb_grpc
from odradek_runtime.tls import peer_identity

_SERVICE = "odradek.v1.ReplicationService"
_STATUS: Final = {
    Refusal.NO_HELLO: grpc.StatusCode.INVALID_ARGUMENT,
    Refusal.NOT_PERMITTED: grpc.StatusCode.PERMISSION_DENIED,
    Refusal.SUPERSEDED: grpc.StatusCode.ABORTED,
}


class _GrpcFollowerConnection:
    """The server's end of one call."""

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
    """The replication listener's one service."""

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
            await context.abort(_STATUS[refused.refusal], str(refused))


def add_to(server: grpc.aio.Server, servicer: ReplicationServicer) -> str:
    """Register the servicer; returns the service's full name."""
    handler: MethodHandler = grpc.stream_stream_rpc_method_handler(
        servicer.Replicate, request_deserializer=pb.ReplicateRequest.FromString
    )  # without a serializer: LeaderStream gives bytes
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE, {"Replicate": handler}),)
    )
    return _SERVICE
