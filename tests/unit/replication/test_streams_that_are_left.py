"""When a partition leaves a replication stream, neither end keeps objects of the other in memory. A broker that ends
its streams is not an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc.aio
import pytest

from odradek_broker.partition import events as ev
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.partition_table import PartitionTable
from odradek_broker.replication.streams.follower_sessions import FollowerSessions
from odradek_broker.replication.streams.leader_stream import LeaderStream
from odradek_broker.rpc.replication_servicer import ReplicationServicer
from odradek_broker.rpc.transaction_link_servicer import TransactionLinkServicer
from odradek_protocol.identity import (
    BrokerEpoch,
    ClusterId,
    LeaderEpoch,
    MetadataOffset,
    Offset,
    PartitionIndex,
)
from odradek_protocol.metadata.image import MetadataDelta
from odradek_protocol.metadata.records import PartitionChange, RemoveTopic
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from tests.unit.log.material import TOPIC_ID, batch, memory_broker
from tests.unit.replication.memory_table import CONFIG, OTHER, OWN, table_of

WIRE = common_pb2.TopicIdPartition(topic_id=TOPIC_ID, partition=0)
Act = Callable[[], Awaitable[None] | None]


class FollowersCall:
    """A call with prepared messages of the follower, and actions of the test between them."""

    def __init__(self, script: list[pb.ReplicateRequest | Act]) -> None:
        self._script = script

    async def read(self) -> Any:
        while self._script:
            next_one = self._script.pop(0)
            if isinstance(next_one, pb.ReplicateRequest):
                return next_one
            next_one()
        return None

    async def write(self, message: bytes) -> None:
        pass

    async def accept(self) -> None:
        pass

    def is_from(self, broker_id: int) -> bool:
        return True


def hello(session_id: int) -> pb.ReplicateRequest:
    identity = pb.ReplicaHello(
        cluster_id="c",
        broker_id=OTHER,
        broker_epoch=0,
        session_id=session_id,
        credit_bytes=1 << 20,
        lane=pb.REPLICATION_LANE_HOT,
    )
    return pb.ReplicateRequest(hello=identity)


def attach(attach_seq: int) -> pb.ReplicateRequest:
    position = pb.ReplicaPosition(
        partition=WIRE, leader_epoch=0, log_end=0, last_epoch=-1, attach_seq=attach_seq
    )
    return pb.ReplicateRequest(attach=pb.ReplicaAttach(partitions=[position]))


DETACH = pb.ReplicateRequest(detach=pb.ReplicaDetach(partitions=[WIRE]))


@asynccontextmanager
async def leading() -> AsyncIterator[tuple[PartitionTable, PartitionHost, FollowerSessions]]:
    """Yield a replica that leads, and the replication service of its broker."""
    async with table_of(memory_broker(CONFIG), 1, leader=OWN) as (table, _):
        sessions = FollowerSessions(
            cluster_id=ClusterId("c"),
            table=table,
            partition_bytes_max=1 << 20,
            message_bytes_max=1 << 20,
        )
        yield table, table.by_id[TOPIC_ID, 0], sessions


async def test_a_partition_keeps_no_stream_that_its_follower_has_left() -> None:
    """A follower that changes lanes detaches in one lane, whose stream ends later."""
    async with leading() as (_, host, sessions):
        attached: list[int] = []

        def count() -> None:
            attached.append(len(host._streams.to_followers))

        for session_id in range(1, 4):
            call = FollowersCall([hello(session_id), attach(session_id), count, DETACH, count])
            await sessions.serve(call)
        assert attached == [1, 0] * 3


async def test_a_gap_at_the_end_of_a_log_keeps_no_thread_busy() -> None:
    """The log was truncated within a gap that compaction had left, so it ends where no batch
    ends.
    """
    broker = memory_broker(CONFIG)
    broker.append(3)
    broker.log.append(batch(10), now_ms=0)
    broker.log.truncate_to(Offset(7))
    assert (broker.log.log_end_offset, broker.log.stored_end_offset) == (7, 3)
    async with table_of(broker, 1, leader=OWN) as (table, _):
        session = ev.FollowerSession(
            broker_id=OTHER, broker_epoch=BrokerEpoch(0), session_id=1, is_catch_up=False
        )
        stream = LeaderStream(
            session,
            shared=table,
            credit_bytes=1 << 20,
            partition_bytes_max=1 << 20,
            message_bytes_max=1 << 20,
        )
        table.leader_streams[session] = stream
        table.by_id[TOPIC_ID, 0].step(
            ev.AttachReceived(
                session=session,
                attach_seq=1,
                leader_epoch=LeaderEpoch(0),
                log_end=Offset(3),
                last_epoch=LeaderEpoch(0),
                log_start=Offset(0),
            )
        )

        async def push() -> None:
            while True:
                await stream.next_message()

        pushing = asyncio.create_task(push())
        async with asyncio.timeout(30):
            await asyncio.wait({pushing}, timeout=0.2)
            while table.counters.fetch_reads_cold < 2:  # on a machine that is busy with other work
                await asyncio.wait({pushing}, timeout=0.01)
        assert not pushing.done()
        assert table.counters.fetch_reads_cold < 40
        pushing.cancel()
        await asyncio.wait({pushing})
        stream.close()


@pytest.mark.parametrize("ends", ["the topic", "the leadership"])
async def test_a_stream_keeps_no_partition_that_is_led_no_longer(ends: str) -> None:
    async with leading() as (table, host, sessions):
        kept: list[set[PartitionHost]] = []

        def look() -> None:
            (stream,) = table.leader_streams.values()
            kept.append(set(stream.hosts))

        def end() -> None:
            image, delta = table.image, MetadataDelta()
            if ends == "the topic":
                image.replay(MetadataOffset(2), 1, RemoveTopic(topic_id=TOPIC_ID), delta)
            else:
                change = PartitionChange(
                    topic_id=TOPIC_ID, partition=PartitionIndex(0), leader=OTHER
                )
                image.replay(MetadataOffset(2), 1, change, delta)
            for _ in table.apply(image, delta):
                pass

        await sessions.serve(FollowersCall([hello(1), attach(1), look, end, look]))
        assert kept == [{host}, set()]


class EndedSessions:
    """Sessions whose tasks end with this error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def serve(self, _connection: object) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())

    async def _write(self) -> None:
        raise self._error


def servicers(error: Exception) -> list[Callable[[Any], Awaitable[None]]]:
    sessions: Any = EndedSessions(error)
    replication = ReplicationServicer(sessions, is_mutual_tls=False)
    links = TransactionLinkServicer.__new__(TransactionLinkServicer)
    links._registrations = links._markers = sessions
    links._is_mutual_tls = False
    methods = (replication.Replicate, links.RegisterPartitions, links.WriteMarkers)
    return [partial(method, None) for method in methods]


async def test_a_broker_that_leaves_while_it_is_written_to_is_no_error_of_the_servicer() -> None:
    """In each rolling restart gRPC logged an exception group as an unexpected error."""
    for serve in servicers(grpc.aio.InternalError()):
        await serve(None)
    for serve in servicers(ValueError("a bug")):
        with pytest.raises(ExceptionGroup):
            await serve(None)
