"""The gate (rule R13 in partition/README.md): which responses a broker may send once its lease has
expired or it does not lead any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from odradek_broker.cluster.heartbeat import Lease
from odradek_broker.partition import events as ev
from odradek_broker.replication.local_partitions import FetchWant, LocalPartitions
from odradek_broker.replication.outcomes import (
    OFFSET_EARLIEST,
    OFFSET_LATEST,
    ProduceOutcome,
    ReadOutcome,
)
from odradek_broker.replication.partition import Partition
from odradek_protocol.identity import (
    BrokerEpoch,
    LeaderEpoch,
    MetadataOffset,
    Offset,
    PartitionEpoch,
    TopicId,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata import records as metadata
from odradek_protocol.metadata.image import MetadataDelta
from odradek_protocol.metadata.records import PartitionChange, RemoveTopic
from tests.unit.log.material import PARTITION, TOPIC, TOPIC_ID, Broker, batch, memory_broker
from tests.unit.replication.memory_table import CONFIG, OTHER, OWN, held_lease, served, table_of


@asynccontextmanager
async def leader(
    broker: Broker, *, acks_all_without_controller: bool = True
) -> AsyncIterator[tuple[LocalPartitions, Lease]]:
    """Make this broker the leader in epoch 0, with three records that are all committed."""
    broker.append(3)
    broker.log.set_high_watermark(Offset(3))
    lease = held_lease()
    async with table_of(broker, 1, leader=OWN) as (table, _):
        partitions = LocalPartitions(
            table,
            lease,
            broker_id=OWN,
            reads_by_rack=False,
            acks_all_without_controller=acks_all_without_controller,
        )
        yield partitions, lease


@pytest.mark.parametrize("acks_all_without_controller", [True, False])
async def test_acks_all_may_leave_when_no_controller_has_answered_for_a_lease(
    acks_all_without_controller: bool,
) -> None:
    outcome = ProduceOutcome(ErrorCode.NONE, base_offset=Offset(2), leader_epoch=LeaderEpoch(0))
    async with leader(
        memory_broker(CONFIG), acks_all_without_controller=acks_all_without_controller
    ) as (partitions, lease):
        partition = served(partitions)

        def leaves(acks: int) -> bool:
            return partition.gate_produce(outcome, acks=acks) is outcome

        assert leaves(-1)
        assert leaves(1)
        lease.until_ms = 1  # long ago
        assert leaves(-1) == acks_all_without_controller
        assert not leaves(1)
        assert partition.gate_read(ReadOutcome(ErrorCode.NONE)).error
        lease.end()
        assert not leaves(-1)


def depose(partitions: LocalPartitions) -> None:
    """Let the metadata name another leader."""
    served(partitions).host.step(
        ev.PartitionChanged(
            leader=OTHER,
            leader_epoch=LeaderEpoch(1),
            partition_epoch=PartitionEpoch(1),
            replicas=(OTHER, OWN),
            isr=(OTHER, OWN),
            elr=(),
            min_insync_replicas=1,
            is_recovering=False,
            brokers=(),
            is_fsync=False,
        )
    )


def read(partitions: LocalPartitions) -> ReadOutcome:
    outcome = served(partitions).read(Offset(0), bytes_max=1 << 20, read_committed=False)
    assert isinstance(outcome, ReadOutcome)
    assert outcome.error is ErrorCode.NONE
    return outcome


async def test_a_leader_within_its_lease_answers() -> None:
    async with leader(memory_broker(CONFIG)) as (partitions, _):
        partition, outcome = served(partitions), read(partitions)
        assert partition.gate_read(outcome) is outcome
        latest = await partition.offset_at(OFFSET_LATEST)
        assert (latest.error, latest.offset) == (ErrorCode.NONE, 3)
        by_time = await partition.offset_at(0)
        assert (by_time.error, by_time.offset) == (ErrorCode.NONE, 0)
        end = partition.end_of_epoch(LeaderEpoch(0))
        assert (end.error, end.offset) == (ErrorCode.NONE, 3)


async def test_a_leader_whose_lease_is_over_answers_nothing_and_deletes_nothing() -> None:
    broker = memory_broker(CONFIG)
    async with leader(broker) as (partitions, lease):
        partition, outcome = served(partitions), read(partitions)
        lease.end()
        refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.gate_read(outcome).error is refused
        for timestamp_ms in (OFFSET_LATEST, OFFSET_EARLIEST, 0):
            found = await partition.offset_at(timestamp_ms)
            assert found.error is refused
        end = partition.end_of_epoch(LeaderEpoch(0))
        assert end.error is refused
        kept = await partition.delete_records(Offset(2), timeout_ms=10_000)
        assert kept.error is refused
        assert broker.log.log_start_offset == 0


async def test_what_a_leader_read_does_not_leave_once_it_follows() -> None:
    async with leader(memory_broker(CONFIG)) as (partitions, _):
        partition, outcome = served(partitions), read(partitions)
        depose(partitions)
        gated = partition.gate_read(outcome)
        assert gated.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_an_offset_found_by_time_does_not_leave_once_another_leads() -> None:
    async with leader(memory_broker(CONFIG)) as (partitions, _):
        search = asyncio.create_task(served(partitions).offset_at(0))
        await asyncio.sleep(0)  # the pool searches
        depose(partitions)
        assert (await search).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def follow(partitions: LocalPartitions, *, log_start: int) -> None:
    """Let the other broker attach if it has not yet, and report where its log begins."""
    host = served(partitions).host
    session = ev.FollowerSession(broker_id=OTHER, broker_epoch=BrokerEpoch(0), session_id=1)
    host.step(
        ev.AttachReceived(
            session=session,
            attach_seq=1,
            leader_epoch=LeaderEpoch(0),
            log_end=Offset(3),
            last_epoch=LeaderEpoch(0),
            log_start=Offset(0),
        )
    )
    host.step(
        ev.AckReceived(
            session=session,
            leader_epoch=LeaderEpoch(0),
            ack_to=Offset(3),
            is_synced=False,
            log_start=Offset(log_start),
        )
    )


async def test_a_delete_is_answered_when_the_followers_have_deleted_too() -> None:
    broker = memory_broker(CONFIG)
    async with leader(broker) as (partitions, _):
        follow(partitions, log_start=0)
        delete = asyncio.ensure_future(
            served(partitions).delete_records(Offset(2), timeout_ms=10_000)
        )
        await asyncio.sleep(0)
        assert broker.log.log_start_offset == 2
        assert not delete.done()
        follow(partitions, log_start=2)
        outcome = await delete
        assert (outcome.error, outcome.offset) == (ErrorCode.NONE, 2)


async def test_a_delete_is_answered_at_its_time_though_a_follower_has_not_deleted() -> None:
    async with leader(memory_broker(CONFIG)) as (partitions, _):
        host = served(partitions).host
        delete = asyncio.ensure_future(served(partitions).delete_records(Offset(2), timeout_ms=0))
        await asyncio.sleep(0)
        host.step(ev.Tick())
        assert (await delete).error is ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("ends", ["role", "lease", "replica"])
async def test_what_a_leader_deleted_is_not_told_once_it_may_not_answer(ends: str) -> None:
    async with leader(memory_broker(CONFIG)) as (partitions, lease):
        host = served(partitions).host
        delete = asyncio.ensure_future(
            served(partitions).delete_records(Offset(2), timeout_ms=10_000)
        )
        await asyncio.sleep(0)
        if ends == "role":
            depose(partitions)
        elif ends == "lease":
            lease.end()
            follow(partitions, log_start=2)
        else:
            host.removed()
        assert (await delete).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_the_bytes_of_a_fetch_are_counted_over_its_partitions() -> None:
    async with leader(memory_broker(CONFIG)) as (partitions, _):
        want = FetchWant(partition=served(partitions), offset=Offset(0), bytes_max=1 << 20)

        async def read(bytes_max: int) -> list[int]:
            outcomes = await partitions.fetch(
                [want, want, want],
                bytes_min=0,
                bytes_max=bytes_max,
                wait_ms_max=0,
                read_committed=False,
            )
            return [outcome.size_bytes for outcome in outcomes]

        first, second, third = await read(1 << 20)
        assert first == second == third > 0
        assert await read(first) == [first, 0, 0]
        assert await read(2 * first) == [first, first, 0]


@pytest.mark.parametrize(
    ("topic", "record", "error"),
    [
        (TOPIC, RemoveTopic(topic_id=TOPIC_ID), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC_ID, RemoveTopic(topic_id=TOPIC_ID), ErrorCode.UNKNOWN_TOPIC_ID),
        (
            TOPIC,
            PartitionChange(topic_id=TOPIC_ID, partition=PARTITION, replicas=(OTHER,)),
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ),
    ],
)
async def test_a_removed_partition_says_to_its_clients_where_it_went(
    topic: TopicName | TopicId, record: object, error: ErrorCode
) -> None:
    async with leader(memory_broker(CONFIG)) as (partitions, _):
        partition = partitions.find(topic, PARTITION)
        assert isinstance(partition, Partition)
        written = ProduceOutcome(ErrorCode.NONE, leader_epoch=LeaderEpoch(0))
        assert partition.gate_produce(written, acks=1) is written
        waiting: list[ProduceOutcome] = []
        partition.produce(batch(0), acks=-1, timeout_ms=10_000, on_done=waiting.append)
        delete = asyncio.ensure_future(partition.delete_records(Offset(2), timeout_ms=10_000))
        await asyncio.sleep(0)
        assert not waiting
        delta = MetadataDelta()
        partitions.image.replay(MetadataOffset(2), 1, record, delta)
        for _ in partition._rules.table.apply(partitions.image, delta):
            pass
        read = partition.read(Offset(0), bytes_max=1 << 20, read_committed=False)
        assert isinstance(read, ReadOutcome)
        assert read.error is error
        assert partitions.find(topic, PARTITION) is error
        (outcome,) = waiting
        assert partition.gate_produce(outcome, acks=-1).error is error
        assert (await delete).error is error
        assert partition.gate_produce(written, acks=1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_what_a_deleted_topic_wrote_is_not_confirmed_by_its_successor_of_that_name() -> None:
    async with leader(memory_broker(CONFIG)) as (partitions, _):
        before = served(partitions)
        written = ProduceOutcome(ErrorCode.NONE, leader_epoch=LeaderEpoch(0))
        new_id = TopicId(b"n" * 16)
        created = metadata.Partition(
            topic_id=new_id, partition=PARTITION, replicas=(OWN,), isr=(OWN,), leader=OWN
        )
        for record in (
            RemoveTopic(topic_id=TOPIC_ID),
            metadata.Topic(topic_id=new_id, name=TOPIC),
            created,
        ):
            delta = MetadataDelta()
            partitions.image.replay(MetadataOffset(2), 1, record, delta)
            for _ in before._rules.table.apply(partitions.image, delta):
                pass
        after = served(partitions)
        assert after.gate_produce(written, acks=1) is written, "the same epoch of another topic"
        assert before.gate_produce(written, acks=1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
