"""Replication streams from this broker to its followers: one open session for each follower and lane."""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Any, Protocol

from odradek_broker.partition import events as ev
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.partition_table import PartitionTable
from odradek_broker.replication.streams.leader_stream import LeaderStream
from odradek_protocol.identity import BrokerEpoch, BrokerId, ClusterId, LeaderEpoch, Offset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb


class Refusal(Enum):
    """The reason why a follower's stream is refused."""

    NO_HELLO = auto()
    NOT_PERMITTED = auto()
    SUPERSEDED = auto()


class StreamRefused(Exception):
    """A follower's stream is refused. The follower gets and logs the text."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


class FollowerConnection(Protocol):
    """A connection that a follower opened. Messages arrive in order and without gaps until the connection breaks."""

    def is_from(self, broker_id: int) -> bool:
        """Return whether the peer has authenticated as that broker, or authentication is not required."""

    async def read(self) -> pb.ReplicateRequest | None:
        """Wait for a message and return it; None if the follower ended the stream."""

    async def accept(self) -> None:
        """Report to the follower that its Hello was accepted."""

    async def write(self, message: bytes) -> None:
        """Send an encoded ReplicateResponse."""


class FollowerSessions:
    """Serves the leader's end of replication streams.

    A follower has at most one session for partitions in sync and one to catch up. When the follower opens another
    session of the same kind, the older one is closed.
    """

    def __init__(
        self,
        *,
        cluster_id: ClusterId,
        table: PartitionTable,
        partition_bytes_max: int,
        message_bytes_max: int,
    ) -> None:
        self._cluster_id = cluster_id
        self._table = table
        self._partition_bytes_max = partition_bytes_max
        self._message_bytes_max = message_bytes_max
        self._open: dict[tuple[int, bool], tuple[ev.FollowerSession, asyncio.Task[Any]]] = {}

    @property
    def connected(self) -> set[BrokerId]:
        """The brokers that have a stream to this one, whether or not a partition uses the stream."""
        return {session.broker_id for session, _ in self._open.values()}

    async def serve(self, connection: FollowerConnection) -> None:
        """Serve one follower's stream until either side ends it.

        Raises:
            StreamRefused: the stream does not begin with a Hello that this leader accepts.
        """
        first = await connection.read()
        if first is None or not first.HasField("hello"):
            raise StreamRefused(Refusal.NO_HELLO, "the first message of a stream must be Hello")
        hello = first.hello
        self._check(hello, connection)
        session = ev.FollowerSession(
            broker_id=BrokerId(hello.broker_id),
            broker_epoch=BrokerEpoch(hello.broker_epoch),
            session_id=hello.session_id,
            is_catch_up=hello.lane == pb.REPLICATION_LANE_CATCH_UP,
        )
        self._supersede(session)
        stream = LeaderStream(
            session,
            shared=self._table,
            credit_bytes=hello.credit_bytes,
            partition_bytes_max=self._partition_bytes_max,
            message_bytes_max=self._message_bytes_max,
        )
        self._table.leader_streams[session] = stream
        try:
            await connection.accept()
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(stream, connection))
                await self._read(stream, session, connection)
                writer.cancel()
        finally:
            self._table.leader_streams.pop(session, None)
            lane = (session.broker_id, session.is_catch_up)
            if self._open.get(lane, (None,))[0] is session:
                del self._open[lane]
            stream.close()

    def _check(self, hello: pb.ReplicaHello, connection: FollowerConnection) -> None:
        if hello.cluster_id != self._cluster_id:
            raise StreamRefused(
                Refusal.NOT_PERMITTED,
                f"this is a broker of cluster {self._cluster_id}, not of {hello.cluster_id}",
            )
        if not connection.is_from(hello.broker_id):
            raise StreamRefused(
                Refusal.NOT_PERMITTED, f"the certificate does not name broker {hello.broker_id}"
            )

    def _supersede(self, session: ev.FollowerSession) -> None:
        """End the older session of the lane. Raises StreamRefused if a newer one is open."""
        lane = (session.broker_id, session.is_catch_up)
        before = self._open.get(lane)
        if before is not None:
            older, task = before
            if (older.broker_epoch, older.session_id) >= (session.broker_epoch, session.session_id):
                raise StreamRefused(Refusal.SUPERSEDED, "a newer session of this broker is open")
            task.cancel()
        current = asyncio.current_task()
        assert current is not None
        self._open[lane] = (session, current)

    async def _write(self, stream: LeaderStream, connection: FollowerConnection) -> None:
        while True:
            await connection.write(await stream.next_message())

    async def _read(
        self, stream: LeaderStream, session: ev.FollowerSession, connection: FollowerConnection
    ) -> None:
        while (request := await connection.read()) is not None:
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
        # A follower may learn of a new topic before its leader does. The follower then attaches again later.
        if partition.topic_id in self._table.image.topics:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_ID
