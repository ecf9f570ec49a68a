"""Transactional produce requests and markers at a real host, up to what read_committed consumers
read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from odradek_broker.cluster.heartbeat import Lease
from odradek_broker.partition.events import Marker, RegistrationMode, Tick
from odradek_broker.partition.replica import Replica
from odradek_broker.replication.client_requests import ProduceTransaction
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.outcomes import ProduceOutcome, ReadOutcome
from odradek_protocol.identity import (
    BrokerId,
    LeaderEpoch,
    MetadataOffset,
    Offset,
    PartitionIndex,
    TopicId,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import (
    METADATA_VERSION,
    METADATA_VERSION_WITH_IDENTITY,
    TRANSACTION_VERSION,
)
from odradek_protocol.metadata.image import MetadataDelta
from odradek_protocol.metadata.records import FeatureLevel, MetadataRecord, Partition, Topic
from odradek_protocol.records.builder import BatchBuilder
from odradek_protocol.topic_names import TRANSACTIONS_TOPIC
from tests.unit.log.material import memory_broker
from tests.unit.replication.memory_table import CONFIG, served
from tests.unit.replication.test_committed_fetches import confirm, settle
from tests.unit.replication.test_local_partitions import leader
from tests.worlds.transactions import PRODUCER, Coordinator, CoordinatorRegistrar

IN_TRANSACTION = ProduceTransaction("orders", RegistrationMode.ADD)
FEATURES = (
    FeatureLevel(name=METADATA_VERSION, level=METADATA_VERSION_WITH_IDENTITY),
    FeatureLevel(name=TRANSACTION_VERSION, level=2),
)


def change(partitions: LocalPartitions, *records: MetadataRecord) -> None:
    """Change the broker's metadata."""
    image, delta = partitions.image, MetadataDelta()
    for record in records:
        image.replay(MetadataOffset(image.offset + 1), 1, record, delta)
    for _ in partitions._table.apply(image, delta):
        pass


@asynccontextmanager
async def transactional() -> AsyncIterator[tuple[LocalPartitions, CoordinatorRegistrar, Lease]]:
    """Yield a leader with three records in a cluster that serves transactions."""
    async with leader(memory_broker(CONFIG)) as (partitions, lease):
        registrar = CoordinatorRegistrar(Coordinator())
        partitions._table.transaction_registrar = registrar
        change(partitions, *FEATURES)
        yield partitions, registrar, lease


def batch(sequence: int, *, epoch: int = 0, is_transactional: bool = True) -> bytes:
    builder = BatchBuilder()
    builder.append(None, b"value", None, 0)
    return builder.build(
        producer_id=PRODUCER,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=is_transactional,
    )


def produce(
    partitions: LocalPartitions,
    data: bytes,
    transaction: ProduceTransaction | None = IN_TRANSACTION,
) -> list[ProduceOutcome]:
    outcomes: list[ProduceOutcome] = []
    served(partitions).produce(
        data, acks=-1, timeout_ms=60_000, on_done=outcomes.append, transaction=transaction
    )
    return outcomes


def write_marker(partitions: LocalPartitions, marker: Marker) -> list[ErrorCode]:
    codes: list[ErrorCode] = []

    def done(results: Sequence[ErrorCode]) -> None:
        codes.extend(results)

    served(partitions).write_markers([marker], timeout_ms=60_000, on_done=done)
    return codes


def read(partitions: LocalPartitions) -> ReadOutcome:
    outcome = served(partitions).read(Offset(3), bytes_max=1 << 20, read_committed=True)
    assert isinstance(outcome, ReadOutcome)
    return outcome


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_transaction_is_readable_when_its_marker_is_committed(is_commit: bool) -> None:
    async with transactional() as (partitions, registrar, _):
        outcomes = produce(partitions, batch(0))
        assert outcomes == []
        await settle()
        (asked,) = registrar.asked
        assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == (
            "orders",
            PRODUCER,
            0,
        )
        confirm(partitions)
        assert [(outcome.error, outcome.base_offset) for outcome in outcomes] == [
            (ErrorCode.NONE, 3)
        ]
        assert read(partitions).size_bytes == 0
        coordinator = registrar.coordinator
        coordinator.end(is_commit=is_commit, is_bumped=True)
        marker = coordinator.marker()
        assert marker is not None
        codes = write_marker(partitions, marker)
        assert codes == [], "it is not replicated"
        confirm(partitions)
        assert codes == [ErrorCode.NONE]
        outcome = read(partitions)
        assert outcome.next_offset == outcome.last_stable_offset == 5
        assert outcome.aborted is not None
        aborted = [(entry.producer_id, entry.first_offset) for entry in outcome.aborted]
        assert aborted == ([] if is_commit else [(PRODUCER, 3)])


async def test_a_coordinator_that_is_not_reached_is_asked_again() -> None:
    async with transactional() as (partitions, registrar, _):
        registrar.is_reachable = False
        outcomes = produce(partitions, batch(0))
        await settle()
        registrar.is_reachable = True
        served(partitions).host.step(Tick())
        await settle()
        confirm(partitions)
        assert [outcome.error for outcome in outcomes] == [ErrorCode.NONE]
        assert len(registrar.asked) == 2


async def test_a_batch_of_a_transaction_needs_a_transactional_id() -> None:
    async with transactional() as (partitions, registrar, _):
        (outcome,) = produce(partitions, batch(0), None)
        assert outcome.error is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        plain = produce(partitions, batch(0, is_transactional=False))
        confirm(partitions)
        assert [outcome.error for outcome in plain] == [ErrorCode.NONE]
        assert registrar.asked == []


async def test_a_batch_of_a_transaction_is_refused_while_the_cluster_serves_none() -> None:
    async with transactional() as (partitions, registrar, _):
        change(partitions, FeatureLevel(name=TRANSACTION_VERSION, level=0))
        (outcome,) = produce(partitions, batch(0))
        assert outcome.error is ErrorCode.INVALID_TXN_STATE
        assert registrar.asked == []


async def test_what_the_image_says_of_coordinators_fences_their_predecessors() -> None:
    async with transactional() as (partitions, _, _):
        topic_id = TopicId(b"T" * 16)
        change(
            partitions,
            Topic(topic_id=topic_id, name=TRANSACTIONS_TOPIC),
            Partition(
                topic_id=topic_id,
                partition=PartitionIndex(0),
                replicas=(BrokerId(9),),
                isr=(BrokerId(9),),
                leader=BrokerId(9),
                leader_epoch=4,
            ),
        )
        late = Marker(PRODUCER, 0, True, PartitionIndex(0), LeaderEpoch(3), is_bumped=False)
        assert write_marker(partitions, late) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]


async def test_a_marker_is_not_confirmed_after_the_lease() -> None:
    async with transactional() as (partitions, _, lease):
        marker = Marker(PRODUCER, 0, True, PartitionIndex(0), LeaderEpoch(0), is_bumped=False)
        codes = write_marker(partitions, marker)
        lease.end()
        confirm(partitions)
        assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


async def test_a_caller_that_fails_on_an_outcome_does_not_take_the_partition_offline() -> None:
    async with transactional() as (partitions, _, _):
        marker = Marker(PRODUCER, 0, True, PartitionIndex(0), LeaderEpoch(0), is_bumped=False)

        def fail(_: Sequence[ErrorCode]) -> None:
            raise RuntimeError("a bug")

        served(partitions).write_markers([marker], timeout_ms=60_000, on_done=fail)
        confirm(partitions)
        assert not served(partitions).host.is_failed


async def test_a_response_that_comes_after_the_partition_was_removed_changes_nothing() -> None:
    async with transactional() as (partitions, _, _):
        outcomes = produce(partitions, batch(0))
        host = served(partitions).host
        host.removed()
        assert [outcome.error for outcome in outcomes] == [ErrorCode.UNKNOWN_TOPIC_ID]
        await settle()
        assert isinstance(host.replica, Replica)
        assert host.replica.log_end == 3


async def test_the_marker_of_a_lost_one_is_written_before_the_next_transaction() -> None:
    async with transactional() as (partitions, registrar, _):
        produce(partitions, batch(0))
        await settle()
        coordinator = registrar.coordinator
        coordinator.end(is_commit=True, is_bumped=True)
        deciding = coordinator.deciding()
        assert deciding is not None
        for partition in list(coordinator.unmarked):
            coordinator.marked(deciding.number, partition, ErrorCode.NONE)
        produce(partitions, batch(0, epoch=1))
        await settle()
        confirm(partitions)
        log = served(partitions).host.log
        assert log.log_end_offset == 6, "batch, marker, batch"
        assert log.last_stable_offset == 5
        assert log.aborted_transactions(Offset(0), Offset(6)) == []
