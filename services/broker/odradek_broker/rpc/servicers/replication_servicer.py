"""ReplicationService: the leader's side of the streams by which followers copy its logs."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from odradek_broker.partition import events as ev
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.partition_table import PartitionTable
from odradek_broker.replication.streams.leader_stream import LeaderStream
from odradek_protocol.identity import BrokerEpoch, BrokerId, ClusterId, LeaderEpoch, Offset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from odradek_protocol.rpc.v1 import replication_service_pb2_grpc as pb_grpc
from odradek_runtime.logs import event_log
from odradek_runtime.tls import peer_identity

_SERVICE = "odradek.v1.ReplicationService"
_log = event_log(__name__)


class ReplicationServicer(pb_grpc.ReplicationServiceServicer):
    """One open stream per follower and lane; a newer session ends the older one."""

    def __init__(
        self,
        *,
        cluster_id: ClusterId,
        table: PartitionTable,
        partition_bytes_max: int,
        message_bytes_max: int,
        is_mutual_tls: bool,
    ) -> None:
        self._cluster_id = cluster_id
        self._table = table
        self._partition_bytes_max = partition_bytes_max
        self._message_bytes_max = message_bytes_max
        self._is_mutual_tls = is_mutual_tls
        self._open: dict[tuple[int, bool], tuple[ev.FollowerSession, asyncio.Task[Any]]] = {}

    # The stubs know only handlers that iterate; gRPC also takes those that read and write.
    async def Replicate(self, _requests: Any, context: Any) -> None:  # type: ignore[override]
        """Serve one follower's stream until either side ends it."""
        first = await context.read()
        if first is grpc.aio.EOF or not first.HasField("hello"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a stream begins with Hello")
        hello: pb.ReplicaHello = first.hello
        refused = self._refusal(hello, context)
        if refused:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, refused)
        session = ev.FollowerSession(
            broker_id=BrokerId(hello.broker_id),
            broker_epoch=BrokerEpoch(hello.broker_epoch),
            session_id=hello.session_id,
            is_catch_up=hello.lane == pb.REPLICATION_LANE_CATCH_UP,
        )
        if not self._supersede(session):
            await context.abort(grpc.StatusCode.ABORTED, "a newer session of this broker is open")
        stream = LeaderStream(
            session,
            shared=self._table,
            credit_bytes=hello.credit_bytes,
            partition_bytes_max=self._partition_bytes_max,
            message_bytes_max=self._message_bytes_max,
        )
        self._table.leader_streams[session] = stream
        try:
            await context.send_initial_metadata(())
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(stream, context))
                await self._read(stream, session, context)
                writer.cancel()
        finally:
            self._table.leader_streams.pop(session, None)
            lane = (session.broker_id, session.is_catch_up)
            if self._open.get(lane, (None,))[0] is session:
                del self._open[lane]
            stream.close()

    def _refusal(self, hello: pb.ReplicaHello, context: Any) -> str:
        if hello.cluster_id != self._cluster_id:
            return f"this is a broker of cluster {self._cluster_id}, not of {hello.cluster_id}"
        if self._is_mutual_tls and peer_identity(context.auth_context) != (
            "broker",
            hello.broker_id,
        ):
            return f"the certificate does not name broker {hello.broker_id}"
        return ""

    def _supersede(self, session: ev.FollowerSession) -> bool:
        """End the older session of the lane; False if there is a newer one."""
        lane = (session.broker_id, session.is_catch_up)
        before = self._open.get(lane)
        if before is not None:
            older, task = before
            if (older.broker_epoch, older.session_id) >= (session.broker_epoch, session.session_id):
                return False
            task.cancel()
        current = asyncio.current_task()
        assert current is not None
        self._open[lane] = (session, current)
        return True

    async def _write(self, stream: LeaderStream, context: Any) -> None:
        while True:
            await context.write(await stream.next_message())

    async def _read(self, stream: LeaderStream, session: ev.FollowerSession, context: Any) -> None:
        while True:
            request = await context.read()
            if request is grpc.aio.EOF:
                return
            kind = request.WhichOneof("message")
            if kind == "ack":
                for ack in request.ack.partitions:
                    host = self._host(ack.partition)
                    if host is not None:
                        host.step(
                            ev.AckReceived(
                                session=session,
                                leader_epoch=LeaderEpoch(ack.leader_epoch),
                                ack_to=Offset(ack.ack_to),
                                is_synced=not ack.is_unsynced,
                                log_start=Offset(ack.log_start),
                            )
                        )
            elif kind == "credit_bytes":
                stream.add_credit(request.credit_bytes)
            elif kind == "attach":
                for position in request.attach.partitions:
                    self._attach(stream, session, position)
            elif kind == "detach":
                for partition in request.detach.partitions:
                    host = self._host(partition)
                    if host is not None:
                        host.detached(session)

    def _attach(
        self, stream: LeaderStream, session: ev.FollowerSession, position: pb.ReplicaPosition
    ) -> None:
        host = self._host(position.partition)
        if host is None:
            stream.refuse(
                position.partition,
                attach_seq=position.attach_seq,
                leader_epoch=position.leader_epoch,
                code=self._why_absent(position.partition),
            )
            return
        host.step(
            ev.AttachReceived(
                session=session,
                attach_seq=position.attach_seq,
                leader_epoch=LeaderEpoch(position.leader_epoch),
                log_end=Offset(position.log_end),
                last_epoch=LeaderEpoch(position.last_epoch),
                log_start=Offset(position.log_start),
            )
        )

    def _host(self, partition: common_pb2.TopicIdPartition) -> PartitionHost | None:
        return self._table.by_id.get((partition.topic_id, partition.partition))

    def _why_absent(self, partition: common_pb2.TopicIdPartition) -> ErrorCode:
        """Not (or not yet) here: a follower may know of a topic before its leader does."""
        if partition.topic_id in self._table.image.topics:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_ID


def add_to(server: grpc.aio.Server, servicer: ReplicationServicer) -> str:
    """Register the servicer; returns the service's full name."""
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        servicer.Replicate, request_deserializer=pb.ReplicateRequest.FromString
    )  # without a serializer: LeaderStream gives bytes
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE, {"Replicate": handler}),)
    )
    return _SERVICE
