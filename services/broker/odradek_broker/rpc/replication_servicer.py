"""Replication streams over gRPC.

At the leader, the servicer passes each follower's stream to FollowerSessions. At the follower, `grpc_dial` opens the
stream to a leader.
"""

from __future__ import annotations

from typing import Final

import grpc
import grpc.aio

from odradek_broker.replication.streams.follower_sessions import (
    FollowerSessions,
    StreamRefused,
)
from odradek_broker.replication.streams.follower_stream import Dial
from odradek_broker.rpc.broker_streams import REFUSAL_STATUS, OpenedStream, ServedStream
from odradek_broker.rpc.callers import MethodHandler, ServerContext
from odradek_broker.rpc.intake import call_errors
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from odradek_protocol.rpc.v1 import replication_service_pb2_grpc as pb_grpc
from odradek_runtime.tls import TlsFiles

_SERVICE: Final = "odradek.v1.ReplicationService"
_METHOD: Final = f"/{_SERVICE}/Replicate"


class ReplicationServicer(pb_grpc.ReplicationServiceServicer):
    """The servicer of ReplicationService, for the streams of followers."""

    def __init__(self, sessions: FollowerSessions, *, is_mutual_tls: bool) -> None:
        self._sessions = sessions
        self._is_mutual_tls = is_mutual_tls

    # The generated types allow only generators; gRPC also accepts a coroutine that reads and writes the stream.
    async def Replicate(self, _requests: object, context: ServerContext) -> None:  # type: ignore[override]
        """Serve one follower's stream until either side ends it."""
        stream = ServedStream(context, pb.ReplicateRequest, is_mutual_tls=self._is_mutual_tls)
        try:
            with call_errors():
                await self._sessions.serve(stream)
        except StreamRefused as refused:
            await context.abort(REFUSAL_STATUS[refused.refusal], str(refused))


def add_to(server: grpc.aio.Server, servicer: ReplicationServicer) -> str:
    """Register the servicer, and return the service's full name."""
    handler: MethodHandler = grpc.stream_stream_rpc_method_handler(
        servicer.Replicate, request_deserializer=pb.ReplicateRequest.FromString
    )  # there is no serializer, because LeaderStream writes encoded messages
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE, {"Replicate": handler}),)
    )
    return _SERVICE


def grpc_dial(tls: TlsFiles | None) -> Dial:
    """Return a function that opens a replication stream to a leader over gRPC."""
    return lambda leader, host, port: OpenedStream(
        leader, host, port, method=_METHOD, tls=tls, encode=pb.ReplicateRequest.SerializeToString
    )
