"""The transaction coordinator with its host: when responses and markers are sent, also after
failures, and how the order of connections matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from odradek_broker.coordination.connection_order import ConnectionNumbers
from odradek_broker.coordination.registrar import respond_to_registration
from odradek_broker.coordination.transaction_coordinator import (
    OutdatedConnection,
    TransactionCoordinator,
)
from odradek_broker.partition.events import Marker
from odradek_broker.replication.outcomes import ProduceOutcome
from odradek_broker.transactions.identity import ProducerIdentity
from odradek_broker.transactions.messages import (
    AddPartitions,
    Ended,
    EndTransaction,
    InitProducer,
)
from odradek_broker.transactions.transaction import TransactionalId, TransactionPartition
from odradek_protocol.identity import (
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerId,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb
from odradek_protocol.topic_names import TRANSACTIONS_TOPIC
from tests.unit.replication.partitions_in_memory import EPOCH, ME, PartitionsInMemory
from tests.unit.replication.running import SETTINGS, when_answered

ID = TransactionalId("orders")
TOPIC = TopicId(b"t" * 16)
DATA = TransactionPartition(TOPIC, TopicName("t"), PartitionIndex(0))
SHARD = PartitionIndex(0)


class ProducerIds:
    """A source of producer ids without a controller."""

    def __init__(self) -> None:
        self._ids = count(100)

    def take(self, number: int) -> list[ProducerId]:
        return [ProducerId(next(self._ids)) for _ in range(number)]


class World:
    """One coordinator, over a log in memory; markers are acknowledged when a test says so."""

    def __init__(self) -> None:
        self.partitions = PartitionsInMemory()
        self.partitions.create(TRANSACTIONS_TOPIC, TopicId(b"s" * 16))
        self.partitions.create("t", TOPIC)
        self.numbers = ConnectionNumbers()
        self.markers: list[tuple[Marker, Callable[[ErrorCode], None]]] = []
        self.coordinator = TransactionCoordinator(
            broker_id=ME,
            settings=SETTINGS,
            partitions=self.partitions,  # type: ignore[arg-type]  # of LocalPartitions what it needs
            topic_creation=None,  # type: ignore[arg-type]  # the topic is there
            producer_ids=ProducerIds(),  # type: ignore[arg-type]
            marker_streams=None,  # type: ignore[arg-type]  # this broker leads everything
            write_marker_here=self._write_marker,
            connection_numbers=self.numbers,
        )

    def _write_marker(
        self,
        target: TopicIdPartition,
        leader_epoch: LeaderEpoch,
        marker: Marker,
        on_done: Callable[[ErrorCode], None],
    ) -> None:
        self.markers.append((marker, on_done))

    def lead(self, epoch: int = EPOCH) -> None:
        """Become leader of the partition of `__transaction_state`, after a failover."""
        watcher = self.partitions.watcher
        assert watcher is not None
        watcher.on_leader(TRANSACTIONS_TOPIC, SHARD, LeaderEpoch(epoch))

    async def init(self, connection: int | None = None) -> ProducerIdentity:
        """Send InitProducerId, which takes over the transactional id."""
        initialized = await when_answered(
            lambda: self.coordinator.init_producer(
                InitProducer(transactional_id=ID, timeout_ms=60_000), connection=connection
            )
        )
        assert initialized.identity is not None, initialized
        return initialized.identity

    async def add(self, identity: ProducerIdentity, connection: int | None = None) -> ErrorCode:
        """Register the partition, as a client with transaction.version 0 or 1 does."""
        added = await when_answered(
            lambda: self.coordinator.add_partitions(
                AddPartitions(
                    transactional_id=ID, identity=identity, partitions=(DATA,), is_tv2=False
                ),
                connection=connection,
            )
        )
        return added.error

    async def end(
        self,
        identity: ProducerIdentity,
        *,
        is_commit: bool = True,
        is_tv2: bool = False,
        connection: int | None = None,
    ) -> Ended:
        return await when_answered(
            lambda: self.coordinator.end_transaction(
                EndTransaction(
                    transactional_id=ID, identity=identity, is_commit=is_commit, is_tv2=is_tv2
                ),
                connection=connection,
            )
        )

    async def begin(self, connection: int | None = None) -> ProducerIdentity:
        """Begin a transaction."""
        identity = await self.init(connection)
        assert await self.add(identity, connection) is ErrorCode.NONE
        return identity

    async def acknowledge(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Let the leaders respond to all markers that were sent; the coordinator handles that in
        the next iteration of the event loop.
        """
        markers, self.markers = self.markers, []
        for _, on_done in markers:
            on_done(code)
        await asyncio.sleep(0)

    def commit_writes(self) -> None:
        """Commit the last append; later appends are committed at once."""
        self.partitions.holds = False
        write = self.partitions.writes[-1]
        write.on_done(ProduceOutcome(ErrorCode.NONE, Offset(write.base_offset)))

    async def state(self) -> str:
        state = await when_answered(lambda: self.coordinator.describe(ID))
        assert state is not None
        return state.status.kafka_name


@asynccontextmanager
async def coordinating() -> AsyncIterator[World]:
    """Yield a world that runs until the `with` block ends."""
    made = World()
    task = asyncio.create_task(made.coordinator.run())
    await made.partitions.watchers.get()
    made.lead()
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with coordinating() as made:
        yield made


async def test_a_transaction_from_its_begin_to_its_completion(world: World) -> None:
    identity = await world.begin()
    ended = await world.end(identity, is_tv2=True)
    assert ended.error is ErrorCode.NONE
    assert ended.next_identity == ProducerIdentity(identity.producer_id, identity.epoch + 1)  # type: ignore[arg-type]
    assert await world.state() == "PrepareCommit"
    ((marker, _),) = world.markers
    assert marker == Marker(
        identity.producer_id, ended.next_identity.epoch, True, SHARD, EPOCH, True
    )
    await world.acknowledge()
    assert await world.state() == "CompleteCommit"
    assert await world.add(ended.next_identity) is ErrorCode.NONE


def sample(world: World, name: str, **labels: str) -> float:
    """Return the value of one line of /metrics."""
    samples = [
        sample.value
        for family in world.coordinator.metrics.families()
        for sample in family.samples
        if sample.name == f"odradek_broker_{name}" and sample.labels == labels
    ]
    (value,) = samples
    return value


async def test_metrics_follow_a_transaction_from_its_begin_to_its_last_marker(world: World) -> None:
    identity = await world.begin()
    assert sample(world, "transactions_started_total") == 1
    assert sample(world, "transactions_open") == 1
    await world.end(identity, is_tv2=True)
    assert sample(world, "transactions_open") == 0
    assert sample(world, "transaction_markers_pending") == 1
    await world.acknowledge()
    assert await world.state() == "CompleteCommit"
    assert sample(world, "transaction_markers_pending") == 0
    assert sample(world, "transaction_oldest_marker_seconds") == 0
    by_client = {"outcome": "commit", "ended_by": "client"}
    assert sample(world, "transactions_completed_total", **by_client) == 1
    assert sample(world, "transaction_open_seconds_count") == 1
    assert sample(world, "transaction_completion_seconds_count") == 1
    await world.init()
    assert sample(world, "transactions_fenced_total") == 0
    assert (await world.end(identity, is_tv2=True)).error is ErrorCode.PRODUCER_FENCED
    assert sample(world, "transactions_fenced_total") == 1


async def test_a_transaction_that_another_producer_ends_is_counted_as_fenced(world: World) -> None:
    await world.begin()
    taking_over = asyncio.ensure_future(world.init())
    while not world.markers:  # noqa: ASYNC110  the event is a callback of the coordinator
        await asyncio.sleep(0)
    await world.acknowledge()
    await taking_over
    by_fence = {"outcome": "abort", "ended_by": "fence"}
    assert sample(world, "transactions_completed_total", **by_fence) == 1


async def test_coordinator_dies_with_an_unreplicated_decision(world: World) -> None:
    """Neither the response nor a marker is sent before the decision is committed."""
    identity = await world.begin()
    world.partitions.holds = True
    writes = len(world.partitions.writes)
    ending = asyncio.ensure_future(world.end(identity))
    await world.partitions.written(writes + 1)
    assert not world.markers
    assert not ending.done()
    # Another broker leads, whose log does not have the decision.
    world.partitions.log.pop()
    world.partitions.log_end_offset -= 1
    world.partitions.holds = False
    world.lead(epoch=EPOCH + 1)
    with pytest.raises(Exception, match="NOT_COORDINATOR"):
        await ending
    assert await world.state() == "Ongoing"
    assert not world.markers, "a marker of a decision that was never made"
    assert (await world.end(identity, is_commit=False)).error is ErrorCode.NONE
    assert [marker.is_commit for marker, _ in world.markers] == [False]


async def test_the_next_coordinator_sends_the_markers_that_are_due(world: World) -> None:
    identity = await world.begin()
    await world.end(identity)
    ((_, late),) = world.markers
    world.markers.clear()
    world.lead(epoch=EPOCH + 1)
    assert await world.state() == "PrepareCommit"
    ((marker, _),) = world.markers
    assert marker.coordinator_epoch == EPOCH + 1
    late(ErrorCode.NONE)
    await asyncio.sleep(0)
    assert await world.state() == "PrepareCommit", "the response was for the coordinator before"
    await world.acknowledge()
    assert await world.state() == "CompleteCommit"


async def test_a_fenced_coordinator_coordinates_no_more(world: World) -> None:
    identity = await world.begin()
    await world.end(identity)
    await world.acknowledge(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    with pytest.raises(Exception, match="NOT_COORDINATOR"):
        await world.coordinator.describe(ID)
    world.lead(epoch=EPOCH + 1)
    assert await world.state() == "PrepareCommit"


async def test_end_on_a_connection_given_up(world: World) -> None:
    """The client has abandoned the connection: its commit, which arrives late, must not end the next
    transaction.
    """
    given_up, connection = world.numbers.next(), world.numbers.next()
    identity = await world.begin(connection)
    await world.end(identity, is_commit=False, connection=connection)
    await world.acknowledge()
    assert await world.add(identity, connection) is ErrorCode.NONE
    with pytest.raises(OutdatedConnection, match="orders"):
        await world.end(identity, is_commit=True, connection=given_up)
    assert await world.state() == "Ongoing"
    assert (await world.end(identity, connection=connection)).error is ErrorCode.NONE


async def test_end_on_a_connection_given_up_while_another_broker_coordinated(world: World) -> None:
    """The commit arrives when this broker coordinates again, over the last connection that it has accepted."""
    given_up = world.numbers.next()
    identity = await world.begin(given_up)
    world.lead(epoch=EPOCH + 1)  # stands for the other broker, to which the client went
    await world.end(identity, is_commit=False)
    await world.acknowledge()
    assert await world.add(identity) is ErrorCode.NONE
    world.lead(epoch=EPOCH + 2)
    assert await world.state() == "Ongoing"
    with pytest.raises(OutdatedConnection, match="orders"):
        await world.end(identity, is_commit=True, connection=given_up)
    assert await world.state() == "Ongoing"


async def test_requests_that_are_not_accepted_do_not_move_the_order(world: World) -> None:
    connection, intruder = world.numbers.next(), world.numbers.next()
    identity = await world.begin(connection)
    foreign = ProducerIdentity(ProducerId(1), identity.epoch)
    assert await world.add(foreign, intruder) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert (await world.end(identity, connection=connection)).error is ErrorCode.NONE


async def test_connections_that_are_older_than_the_coordinator_count_as_given_up(
    world: World,
) -> None:
    connection = world.numbers.next()
    identity = await world.begin(connection)
    world.numbers.next()
    world.lead(epoch=EPOCH + 1)
    with pytest.raises(OutdatedConnection):
        await world.end(identity, connection=connection)
    assert (await world.end(identity, connection=world.numbers.next())).error is ErrorCode.NONE


def entry(identity: ProducerIdentity, mode: Any, epoch: int | None = None) -> pb.RegisterEntry:
    return pb.RegisterEntry(
        entry_id=9,
        transactional_id=ID,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch if epoch is None else epoch,
        mode=mode,
        partition=common_pb2.TopicIdPartition(topic_id=TOPIC, partition=0),
        topic="t",
        timeout_ms=10_000,
    )


async def test_leaders_add_and_verify_partitions(world: World) -> None:
    identity = await world.init()
    verify = entry(identity, pb.REGISTRATION_MODE_VERIFY)
    verified = await respond_to_registration(world.coordinator, verify)
    assert verified.error_code == ErrorCode.TRANSACTION_ABORTABLE
    added = await respond_to_registration(
        world.coordinator, entry(identity, pb.REGISTRATION_MODE_ADD)
    )
    assert added == pb.RegisterResult(
        entry_id=9, coordinator_partition=SHARD, coordinator_epoch=EPOCH
    )
    assert (await respond_to_registration(world.coordinator, verify)).error_code == 0
    stale = entry(identity, pb.REGISTRATION_MODE_ADD, epoch=identity.epoch + 1)
    refused = await respond_to_registration(world.coordinator, stale)
    assert refused.error_code == ErrorCode.PRODUCER_FENCED


async def test_a_leader_waits_for_the_completion_and_learns_the_outcome(world: World) -> None:
    identity = await world.begin()
    ended = await world.end(identity, is_tv2=True)
    assert ended.next_identity is not None
    registered = asyncio.ensure_future(
        respond_to_registration(
            world.coordinator, entry(ended.next_identity, pb.REGISTRATION_MODE_ADD)
        )
    )
    assert await world.state() == "PrepareCommit"
    assert not registered.done()
    await world.acknowledge()
    result = await registered
    assert result.error_code == 0
    assert result.last_outcome.is_commit
    assert result.last_outcome.identity.producer_epoch == identity.epoch


async def test_without_a_coordinator_a_registration_says_so(world: World) -> None:
    watcher = world.partitions.watcher
    assert watcher is not None
    identity = await world.init()
    watcher.on_resigned(TRANSACTIONS_TOPIC, SHARD)
    result = await respond_to_registration(
        world.coordinator, entry(identity, pb.REGISTRATION_MODE_ADD)
    )
    assert result.error_code == ErrorCode.NOT_COORDINATOR
    assert (result.coordinator_partition, result.coordinator_epoch) == (-1, -1)


async def test_all_shards_of_a_coordinator_judge_jumps_of_the_wall_clock_by_one_clock(
    world: World,
) -> None:
    """A shard that is loaded after the jump would believe it otherwise, and delete what only looks old."""
    kind = world.coordinator._kind
    assert kind.create().clock is kind.create().clock
