"""Markers reach the leader of every partition: they are sent again after errors, at once after the
leader moved, and never for a later decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from odradek_broker.coordination.marker_sender import (
    MARKERS_AT_ONCE,
    Acknowledged,
    MarkerSender,
)
from odradek_broker.partition.events import Marker
from odradek_broker.transactions.messages import SendMarkers
from odradek_broker.transactions.transaction import TransactionalId, TransactionPartition
from odradek_protocol.identity import (
    NO_BROKER,
    BrokerId,
    LeaderEpoch,
    MetadataOffset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import Partition, PartitionChange, RemoveTopic, Topic
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb
from odradek_runtime.clock import SYSTEM_CLOCK

TOPIC = TopicId(b"t" * 16)
ME, OTHER, THIRD = BrokerId(1), BrokerId(2), BrokerId(3)
SHARD = (PartitionIndex(7), LeaderEpoch(4))
FIRST = TransactionPartition(TOPIC, TopicName("t"), PartitionIndex(0))
SECOND = TransactionPartition(TOPIC, TopicName("t"), PartitionIndex(1))


@dataclass
class Sent:
    """A marker that was sent and not acknowledged."""

    broker: int
    partition: int
    leader_epoch: int
    respond: Callable[[ErrorCode], None]
    break_stream: Callable[[], None] = lambda: None


class World:
    """A sender of markers on broker 1, the metadata, and the markers in flight to leaders."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.record(Topic(topic_id=TOPIC, name=TopicName("t")))
        for index, leader in ((0, ME), (1, OTHER)):
            self.record(
                Partition(
                    topic_id=TOPIC,
                    partition=PartitionIndex(index),
                    replicas=(ME, OTHER, THIRD),
                    isr=(ME, OTHER, THIRD),
                    leader=leader,
                )
            )
        self.sent: list[Sent] = []
        self.marked: list[tuple[int, int, str]] = []  # decision, partition, code
        self.fenced: list[tuple[int, int]] = []
        self._watchers: list[Callable[[MetadataImage], None]] = []
        self.sender = MarkerSender(
            broker_id=ME,
            partitions=self,  # type: ignore[arg-type]  # of LocalPartitions what it needs
            streams=self,  # type: ignore[arg-type]  # of PeerStreams as well
            write_here=self._write_here,
            on_marked=self._on_marked,
            on_fenced=lambda *shard: self.fenced.append(shard),
            clock=SYSTEM_CLOCK,
        )

    def record(self, record: Any) -> None:
        self.image.replay(MetadataOffset(self.image.offset + 1), 1, record)

    def move(self, partition: int, leader: BrokerId) -> None:
        """Elect another leader, or none."""
        self.record(
            PartitionChange(topic_id=TOPIC, partition=PartitionIndex(partition), leader=leader)
        )
        self.tell_image()

    def tell_image(self) -> None:
        for watcher in self._watchers:
            watcher(self.image)

    def watch_image(self, watcher: Callable[[MetadataImage], None]) -> Callable[[], None]:
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def send(
        self, peer: BrokerId, entry: pb.MarkEntry, on_result: Callable[[pb.MarkResult | None], None]
    ) -> None:
        self.sent.append(
            Sent(
                peer,
                entry.partition.partition,
                entry.leader_epoch,
                lambda code: on_result(pb.MarkResult(error_code=code)),
                lambda: on_result(None),
            )
        )

    def _write_here(
        self,
        target: TopicIdPartition,
        leader_epoch: LeaderEpoch,
        marker: Marker,
        on_done: Callable[[ErrorCode], None],
    ) -> None:
        self.sent.append(Sent(ME, target.partition, leader_epoch, on_done))

    def _on_marked(self, *event: Any) -> None:
        partition, epoch, acknowledged = event
        assert (partition, epoch) == SHARD
        marked: Sequence[Acknowledged] = acknowledged
        self.marked += [(d, target.partition, code.name) for d, target, code in marked]

    def order(self, decision: int, *partitions: TransactionPartition) -> None:
        self.sender.send(
            *SHARD,
            SendMarkers(
                decision=decision,
                transactional_id=TransactionalId("x"),
                producer_id=ProducerId(5),
                marker_epoch=ProducerEpoch(3),
                is_commit=True,
                is_bumped=True,
                partitions=frozenset(partitions),
            ),
        )

    async def has_sent(self, count: int) -> None:
        """Wait until this many markers have been sent."""
        async with asyncio.timeout(10):
            while len(self.sent) < count:  # noqa: ASYNC110
                # The sender looks for markers to repeat every 50 ms.
                await asyncio.sleep(0.005)


@asynccontextmanager
async def sending() -> AsyncIterator[World]:
    """Yield a world that runs until the `with` block ends."""
    made = World()
    task = asyncio.create_task(made.sender.run())
    await asyncio.sleep(0)
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with sending() as made:
        yield made


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_each_leader_gets_the_marker_and_each_acknowledgement_is_reported(
    world: World,
) -> None:
    world.order(1, FIRST, SECOND)
    assert {(sent.broker, sent.partition) for sent in world.sent} == {(ME, 0), (OTHER, 1)}
    for sent in world.sent:
        sent.respond(ErrorCode.NONE)
    await settled()
    assert sorted(world.marked) == [(1, 0, "NONE"), (1, 1, "NONE")]
    assert len(world.sender) == 0


@pytest.mark.parametrize("moves", [False, True])
async def test_a_wide_transaction_is_sent_and_reported_in_parts(world: World, moves: bool) -> None:
    """The leader of all partitions may change before the last marker was sent."""
    count = 3 * MARKERS_AT_ONCE
    for index in range(2, count):
        world.record(
            Partition(
                topic_id=TOPIC,
                partition=PartitionIndex(index),
                replicas=(ME, OTHER, THIRD),
                isr=(ME, OTHER, THIRD),
                leader=ME,
            )
        )
    targets = [
        TransactionPartition(TOPIC, TopicName("t"), PartitionIndex(index)) for index in range(count)
    ]
    world.order(1, *targets)
    assert len(world.sent) == MARKERS_AT_ONCE
    if moves:
        for index in range(count):
            world.record(
                PartitionChange(topic_id=TOPIC, partition=PartitionIndex(index), leader=THIRD)
            )
        world.sent.clear()
        world.tell_image()
        assert len(world.sent) == MARKERS_AT_ONCE
    await world.has_sent(count)
    assert sorted(sent.partition for sent in world.sent) == list(range(count))
    if moves:
        assert {sent.broker for sent in world.sent} == {THIRD}
    for sent in world.sent:
        sent.respond(ErrorCode.NONE)
    await asyncio.sleep(0)
    assert len(world.marked) == MARKERS_AT_ONCE
    await settled()
    assert sorted(partition for _, partition, _ in world.marked) == list(range(count))


async def test_a_marker_is_sent_again_after_an_error_but_not_before_a_response(
    world: World,
) -> None:
    world.order(1, SECOND)
    world.sent[0].respond(ErrorCode.NOT_ENOUGH_REPLICAS)
    await world.has_sent(2)
    world.sent[1].break_stream()
    await world.has_sent(3)
    world.tell_image()
    assert len(world.sent) == 3
    world.sent[2].respond(ErrorCode.NONE)
    await settled()
    assert world.marked == [(1, 1, "NONE")]


async def test_a_marker_follows_the_leader_at_once(world: World) -> None:
    world.order(1, SECOND)
    world.move(1, THIRD)
    assert [(sent.broker, sent.leader_epoch) for sent in world.sent] == [(OTHER, 0), (THIRD, 1)]
    world.sent[0].respond(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.sent[1].respond(ErrorCode.NONE)
    await settled()
    assert world.marked == [(1, 1, "NONE")]
    assert len(world.sent) == 2, "the old leader's error says nothing about the new one"


async def test_registered_partition_without_a_leader(world: World) -> None:
    """The marker waits for a leader.

    If the partition counted as deleted, the transaction would complete without its marker.
    """
    world.move(1, NO_BROKER)
    world.order(1, SECOND)
    await settled()
    assert not world.sent
    assert not world.marked
    world.move(1, OTHER)
    (sent,) = world.sent
    sent.respond(ErrorCode.NONE)
    await settled()
    assert world.marked == [(1, 1, "NONE")]


async def test_a_partition_of_a_deleted_topic_needs_no_marker(world: World) -> None:
    world.order(1, SECOND)
    world.record(RemoveTopic(topic_id=TOPIC))
    world.tell_image()
    await settled()
    assert world.marked == [(1, 1, "UNKNOWN_TOPIC_ID")]
    world.sent[0].respond(ErrorCode.NONE)
    await settled()
    assert len(world.marked) == 1


async def test_a_partition_with_a_higher_epoch_counts_as_marked(world: World) -> None:
    world.order(1, FIRST, SECOND)
    for sent in world.sent:
        sent.respond(ErrorCode.INVALID_PRODUCER_EPOCH)
    await settled()
    assert len(world.marked) == 2, "the other partitions go on"


async def test_a_fenced_coordinator_resigns(world: World) -> None:
    world.order(1, SECOND)
    world.sent[0].respond(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    assert world.fenced == [SHARD]
    world.sender.closed(*SHARD)
    assert len(world.sender) == 0


async def test_late_acknowledgement_of_a_marker(world: World) -> None:
    """A marker that was sent for an earlier leadership of the coordinator completes nothing in the
    next one.
    """
    world.order(1, SECOND)
    world.sender.closed(*SHARD)
    world.order(1, SECOND)  # decisions are numbered from 1 again
    world.sent[0].respond(ErrorCode.NONE)
    await settled()
    assert world.marked == []
    world.sent[1].respond(ErrorCode.NONE)
    await settled()
    assert world.marked == [(1, 1, "NONE")]
