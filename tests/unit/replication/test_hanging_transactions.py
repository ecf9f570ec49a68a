"""Hanging transactions: when and how they are ended, and which open transactions must not be ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from odradek_broker.groups.messages import EndHanging
from odradek_broker.log.producer_state import ProducerStates, StoredBatch
from odradek_broker.partition.effects import OrphanEnded, TransactionTorn
from odradek_broker.replication import hanging_transactions
from odradek_broker.replication.counters import Counters
from odradek_broker.replication.hanging_transactions import (
    CoordinatorResolutions,
    HangingTransactions,
    OpenTransaction,
)
from odradek_broker.replication.host_transactions import HostTransactions
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.transaction_incidents import IncidentKind
from odradek_broker.transactions.messages import Resolution
from odradek_protocol.identity import (
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicIdPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import Partition, Topic
from odradek_protocol.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.unit.replication.memory_table import served
from tests.unit.replication.test_committed_fetches import confirm, settle
from tests.unit.replication.test_transactional_produce import batch, change, produce, transactional
from tests.worlds.transactions import PRODUCER, CoordinatorRegistrar

COORDINATORS = 2
LIVE, COMMITTED, ABORTED, UNKNOWN = (
    Resolution.LIVE,
    Resolution.COMMITTED,
    Resolution.ABORTED,
    Resolution.UNKNOWN,
)


class Resolver:
    """The coordinators of a cluster; each may not respond, or have an older epoch."""

    def __init__(self) -> None:
        self.known = [UNKNOWN] * COORDINATORS
        self.silent: set[int] = set()
        self.epochs = [4] * COORDINATORS
        self.asked: list[OpenTransaction] = []
        self.meanwhile: Callable[[], None] = lambda: None

    async def resolve(
        self, transactions: Sequence[OpenTransaction]
    ) -> Sequence[CoordinatorResolutions]:
        self.asked.extend(transactions)
        self.meanwhile()
        return [
            CoordinatorResolutions(
                PartitionIndex(index),
                LeaderEpoch(self.epochs[index]),
                [self.known[index]] * len(transactions),
            )
            for index in range(COORDINATORS)
            if index not in self.silent
        ]


class Offsets:
    """The group coordinator; each question about a guard finds that the producer has been here."""

    def __init__(self) -> None:
        self.last_guard: int | None = 0
        self.ended: list[EndHanging] = []

    def guard(self, partition: PartitionIndex, producer_id: ProducerId) -> int | None:
        return self.last_guard

    async def end_hanging(self, partition: PartitionIndex, request: EndHanging) -> ErrorCode:
        self.ended.append(request)
        return ErrorCode.NONE


@asynccontextmanager
async def hanging(
    *, open_ms_max: int = 0, may_end: bool = True, offsets: Offsets | None = None
) -> AsyncIterator[tuple[LocalPartitions, Resolver, HangingTransactions, CoordinatorRegistrar]]:
    """Return a partition with an open transaction of epoch 0 at offset 3, and two coordinators."""
    async with transactional() as (partitions, registrar, _):
        topic_id = TopicId(b"T" * 16)
        change(
            partitions,
            Topic(topic_id=topic_id, name=TRANSACTIONS_TOPIC),
            *(
                Partition(
                    topic_id=topic_id,
                    partition=PartitionIndex(index),
                    replicas=(BrokerId(9),),
                    isr=(BrokerId(9),),
                    leader=BrokerId(9),
                    leader_epoch=4,
                )
                for index in range(COORDINATORS)
            ),
        )
        produce(partitions, batch(0))
        await settle()
        confirm(partitions)
        resolver = Resolver()
        check = HangingTransactions(
            table=partitions._table,
            resolver=resolver,
            offsets=offsets or Offsets(),
            check_interval_ms=1,
            open_ms_max=open_ms_max,
            may_end=may_end,
        )
        assert last_stable_offset(partitions) == 3
        yield partitions, resolver, check, registrar


def last_stable_offset(partitions: LocalPartitions) -> Offset:
    return served(partitions).host.log.last_stable_offset


async def checked(check: HangingTransactions, partitions: LocalPartitions) -> None:
    """Run a check, and let the other replica acknowledge the markers that it writes."""
    task = asyncio.create_task(check.check())
    await settle()
    confirm(partitions)
    await task


@pytest.mark.parametrize(
    ("known", "aborted"),
    [((UNKNOWN, UNKNOWN), [3]), ((UNKNOWN, ABORTED), [3]), ((COMMITTED, UNKNOWN), [])],
)
async def test_a_transaction_that_no_coordinator_will_end_is_ended(
    known: tuple[Resolution, Resolution], aborted: list[int]
) -> None:
    async with hanging() as (partitions, resolver, check, _):
        resolver.known = list(known)
        await checked(check, partitions)
        (asked,) = resolver.asked
        assert (asked.producer_id, asked.producer_epoch) == (PRODUCER, 0)
        assert last_stable_offset(partitions) == 5
        log = served(partitions).host.log
        found = log.aborted_transactions(Offset(0), Offset(5))
        assert [entry.first_offset for entry in found] == aborted


async def test_what_hung_is_an_incident_and_what_hangs_is_found() -> None:
    async with hanging() as (partitions, resolver, check, _):
        incidents = partitions._table.counters.transaction_incidents
        resolver.known = [UNKNOWN, LIVE]
        (found,) = await check.find(None, older_than_ms=None)
        assert (found.producer_id, found.first_offset) == (PRODUCER, 3)
        assert found.outcome is ErrorCode.INVALID_TXN_STATE
        resolver.known = [UNKNOWN, ABORTED]
        (found,) = await check.find(found.topic, older_than_ms=None)
        assert found.outcome is False
        assert await check.find(None, older_than_ms=1 << 40) == []
        assert await check.find(TRANSACTIONS_TOPIC, older_than_ms=None) == []
        assert not incidents.recent
        await checked(check, partitions)
        (incident,) = incidents.recent
        assert (incident.kind, incident.first_offset) == (IncidentKind.HANGING, 3)
        assert incidents.counts == {IncidentKind.HANGING: 1}
        assert incidents.hanging == 0


async def test_the_group_coordinator_ends_a_transaction_that_hangs_in_consumer_offsets() -> None:
    """It compares the guard from before the coordinators were asked."""
    offsets = Offsets()
    async with hanging(offsets=offsets) as (partitions, resolver, check, _):
        host = served(partitions).host
        host.topic = OFFSETS_TOPIC
        resolver.known = [UNKNOWN, LIVE]
        await check.check()
        assert offsets.ended == []
        resolver.known = [UNKNOWN, COMMITTED]
        resolver.meanwhile = lambda: setattr(offsets, "last_guard", 8)
        await check.check()
        assert await check.end(host.partition, PRODUCER) is ErrorCode.NONE
        common = {"producer_id": PRODUCER, "producer_epoch": ProducerEpoch(0), "is_commit": True}
        assert offsets.ended == [EndHanging(**common, guard=0), EndHanging(**common, guard=8)]  # type: ignore[arg-type]
        incidents = partitions._table.counters.transaction_incidents
        assert [incident.topic for incident in incidents.recent] == [OFFSETS_TOPIC] * 2
        offsets.last_guard = None
        code = await check.end(host.partition, PRODUCER)
        assert code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_torn_and_orphaned_transactions_are_incidents() -> None:
    partition = TopicIdPartition(TopicId(b"T" * 16), PartitionIndex(1))
    counters = Counters()
    incidents = counters.transaction_incidents
    owner = SimpleNamespace(topic="orders", partition=partition)
    transactions = HostTransactions(owner, counters, SimpleNamespace(wall_ms=lambda: 5))  # type: ignore[arg-type]
    fields = {
        "producer_id": PRODUCER,
        "producer_epoch": ProducerEpoch(1),
        "first_offset": Offset(3),
        "is_commit": True,
    }
    transactions.carry_out(OrphanEnded(**fields), None)  # type: ignore[arg-type]
    transactions.carry_out(TransactionTorn(**fields, marker_offset=Offset(4)), None)  # type: ignore[arg-type]
    kinds = [incident.kind for incident in incidents.recent]
    assert kinds == [IncidentKind.ORPHANED, IncidentKind.TORN]
    assert incidents.recent[0].wall_ms == 5


async def test_a_live_transaction_is_not_ended() -> None:
    async with hanging() as (partitions, resolver, check, _):
        resolver.known = [UNKNOWN, LIVE]
        await checked(check, partitions)
        assert last_stable_offset(partitions) == 3
        code = await check.end(served(partitions).host.partition, PRODUCER)
        assert code is ErrorCode.INVALID_TXN_STATE


async def shard_that_loads_while_leaders_ask() -> None:
    """The coordinator of this transaction is loading its partition, so it does not respond to the
    leader.
    """
    async with hanging() as (partitions, resolver, check, _):
        resolver.silent = {1}
        await checked(check, partitions)
        assert last_stable_offset(partitions) == 3
        code = await check.end(served(partitions).host.partition, PRODUCER)
        assert code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        resolver.silent = set()
        resolver.epochs = [4, 3]
        await checked(check, partitions)
        assert last_stable_offset(partitions) == 3, "a deposed coordinator knows nothing"


async def test_nothing_is_ended_while_one_coordinator_is_silent_or_deposed() -> None:
    await shard_that_loads_while_leaders_ask()


def silence_counts_as_not_known(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 63: a coordinator that does not respond counts as one that does not know the
    transaction.
    """
    patch.setattr(HangingTransactions, "_is_complete", lambda check, responses: True)


NAMED = [(silence_counts_as_not_known, shard_that_loads_while_leaders_ask)]


@pytest.mark.parametrize(("bug", "schedule"), NAMED)
def test_the_schedule_finds_the_bug(
    monkeypatch: pytest.MonkeyPatch, bug: Any, schedule: Any
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        asyncio.run(schedule())


async def test_a_transaction_whose_producer_comes_back_meanwhile_is_not_ended() -> None:
    async with hanging() as (partitions, resolver, check, _):
        resolver.meanwhile = lambda: (produce(partitions, batch(1)), None)[1]
        await checked(check, partitions)
        assert last_stable_offset(partitions) == 3
        assert served(partitions).host.replica.log_end == 5, "its batch, and no marker"


async def test_a_transaction_whose_producer_registers_meanwhile_is_not_ended() -> None:
    async with hanging() as (partitions, resolver, check, registrar):
        registrar.is_reachable = False
        resolver.meanwhile = lambda: (produce(partitions, batch(0, epoch=1)), None)[1]
        await checked(check, partitions)
        assert last_stable_offset(partitions) == 3
        assert served(partitions).host.replica.log_end == 4


async def test_a_young_transaction_is_not_asked_about_and_an_operator_may() -> None:
    async with hanging(open_ms_max=60_000) as (partitions, resolver, check, _):
        await checked(check, partitions)
        assert resolver.asked == []
        ending = asyncio.create_task(check.end(served(partitions).host.partition, PRODUCER))
        await settle()
        confirm(partitions)
        assert await ending is ErrorCode.NONE
        assert last_stable_offset(partitions) == 5


async def test_where_it_may_not_end_them_it_only_reports() -> None:
    async with hanging(may_end=False) as (partitions, resolver, check, _):
        await checked(check, partitions)
        assert len(resolver.asked) == 1
        assert last_stable_offset(partitions) == 3


async def test_an_operator_is_told_that_there_is_no_such_transaction() -> None:
    async with hanging() as (partitions, _, check, _):
        partition = served(partitions).host.partition
        assert await check.end(partition, ProducerId(99)) is ErrorCode.INVALID_TXN_STATE
        elsewhere = TopicIdPartition(partition.topic_id, PartitionIndex(5))
        assert await check.end(elsewhere, PRODUCER) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_restart_begins_the_time_of_a_transaction_again() -> None:
    """The time is measured from the first check that found the transaction, by a clock that never jumps."""
    async with hanging(open_ms_max=60_000) as (partitions, _, check, _):
        assert check._old() == []
        (key,) = check._seen_ms
        check._seen_ms[key] -= 60_000
        assert len(check._old()) == 1
        served(partitions).host.log.producers.become(ProducerStates())
        assert check._old() == []
        assert check._seen_ms == {}


async def test_transactions_that_are_open_for_long_do_not_hide_those_that_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hanging_transactions, "CHECKED_MAX", 1)
    async with hanging() as (partitions, resolver, check, _):
        other = ProducerId(PRODUCER + 1)
        served(partitions).host.log.producers.note_batch(
            other,
            ProducerEpoch(0),
            StoredBatch(0, 0, Offset(4), Offset(4), 0),
            is_transactional=True,
        )
        resolver.known = [UNKNOWN, LIVE]
        asked = []
        for _ in range(4):
            await check.check()
            asked.append(resolver.asked[-1].producer_id)
        assert asked == [PRODUCER, other] * 2
