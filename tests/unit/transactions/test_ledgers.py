"""The ledger of a query's staged writes: with a producer of the same name, and in one batch with all slots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek_broker.coordination.turn_writes import TurnWrites
from odradek_broker.coordinator_step import RequestId
from odradek_broker.transactions import transaction_codec
from odradek_broker.transactions.messages import (
    CompleteStep,
    ForgetSteps,
    InitProducer,
    OpenStaged,
    PrepareStaged,
    SlotIdentity,
)
from odradek_broker.transactions.settings import TransactionSettings
from odradek_broker.transactions.transaction import Ledger
from odradek_broker.transactions.transaction_shard import TransactionShard
from odradek_broker.transactions.transaction_table import partitions_bytes, record_bytes
from odradek_protocol.identity import ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records import iter_headers
from tests.unit.transactions.coordinator import FIRST, SECOND, Coordinator, add, end, identity
from tests.unit.transactions.test_staged_steps import (
    DAY_MS,
    QUERY,
    complete,
    opened,
    prepare,
    write,
)


def test_a_query_id_may_be_a_producers_too() -> None:
    coordinator = Coordinator()
    complete(coordinator, step=4)
    response = coordinator.ask(InitProducer(transactional_id=QUERY, timeout_ms=1_000))
    assert response.identity == identity(1_000, 0)
    assert coordinator.shard.staged.ledger_of(QUERY) == Ledger(last_step=4, members=0)
    assert complete(coordinator, step=5).error is ErrorCode.NONE
    state = coordinator.shard.table.get(QUERY)
    assert state is not None
    assert state.next_identity == identity(1_000, 0)


@pytest.mark.parametrize("is_marked", [False, True])
@pytest.mark.parametrize("is_commit", [False, True])
def test_a_step_completes_whatever_the_producer_of_that_name_has_just_done(
    is_commit: bool, is_marked: bool
) -> None:
    coordinator = Coordinator()
    producer = coordinator.ask(InitProducer(transactional_id=QUERY, timeout_ms=1_000)).identity
    coordinator.ask(replace(add(producer), transactional_id=QUERY))
    coordinator.ask(replace(end(producer, is_commit=is_commit), transactional_id=QUERY))
    if is_marked:
        coordinator.mark()
    before = coordinator.shard.table.get(QUERY)
    assert before is not None
    assert complete(coordinator, step=4).error is ErrorCode.NONE
    assert coordinator.shard.staged.ledger_of(QUERY) == Ledger(last_step=4, members=0)
    assert coordinator.ask(ForgetSteps(query=QUERY)).error is ErrorCode.NONE
    assert coordinator.shard.table.get(QUERY) == before


def test_nobody_is_the_producer_of_a_ledger() -> None:
    coordinator = Coordinator()
    complete(coordinator, step=4)
    nobody = identity(-1, -1)
    request = replace(add(nobody), transactional_id=QUERY)
    assert coordinator.ask(request).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_ledger_is_forgotten_and_the_producer_of_that_name_stays() -> None:
    coordinator = Coordinator()
    complete(coordinator)
    producer = coordinator.ask(InitProducer(transactional_id=QUERY, timeout_ms=1_000)).identity
    assert coordinator.ask(ForgetSteps(query=QUERY)).error is ErrorCode.NONE
    state = coordinator.shard.table.get(QUERY)
    assert state is not None
    assert state.next_identity == producer
    assert state.ledger is None


def test_a_step_whose_name_is_too_long_for_its_tasks_opens_no_more() -> None:
    """Tasks without rows have records in the batch that completes their step, too."""
    shard, query = TransactionShard(settings=TransactionSettings()), "a" * 32_000
    clocks = {"now_ms": 0, "wall_ms": 0}
    members: list[SlotIdentity] = []
    for number in range(600):
        shard.reserve.add([ProducerId(number)])
        task = OpenStaged(query=query, step=0, member=f"{number}")
        (opened,) = shard.staged.handle_open(RequestId(1), task, **clocks).responses
        if opened.response.error is not ErrorCode.NONE:
            assert opened.response.error is ErrorCode.POLICY_VIOLATION
            break
        members.append(opened.response.slot)
        shard.staged.handle_prepare(RequestId(1), PrepareStaged(member=members[-1]), **clocks)
    completion = CompleteStep(query=query, step=0, members=tuple(members))
    writes = TurnWrites(transaction_codec.encode, lambda record: record.transactional_id)
    writes.add(shard.staged.handle_complete(RequestId(1), completion, **clocks))
    assert len(list(iter_headers(writes.build(0)))) == 1


def test_the_size_of_the_slots_of_a_query_follows_their_records() -> None:
    coordinator = Coordinator()
    table, empty_bytes = coordinator.shard.table, record_bytes(f"{QUERY}\x1f0")
    slot = opened(coordinator)
    assert table.slot_bytes(QUERY) == empty_bytes
    write(coordinator, slot, FIRST, SECOND)
    assert table.slot_bytes(QUERY) == empty_bytes + partitions_bytes([FIRST, SECOND])
    assert prepare(coordinator, slot) is ErrorCode.NONE
    complete(coordinator, slot)
    coordinator.mark()
    assert table.slot_bytes(QUERY) == empty_bytes
    for name, _ in table.slots_of(QUERY):
        coordinator.take(coordinator.shard.move(name, None))
    assert table.slot_bytes(QUERY) == 0


def test_a_wall_clock_that_is_set_forward_forgets_no_ledger() -> None:
    coordinator = Coordinator()
    complete(coordinator, step=4)
    coordinator.tick()
    coordinator.wall_ms += 100 * DAY_MS
    for _ in range(2):
        coordinator.tick(3_600_000)
    assert coordinator.shard.staged.ledger_of(QUERY) is not None
    coordinator.move(coordinator.shard.clock)
    for _ in range(2):
        coordinator.tick(3_600_000)
    assert coordinator.shard.staged.ledger_of(QUERY) is not None, "a load believes no jump"
    coordinator.wall_ms -= 100 * DAY_MS
    coordinator.tick(89 * DAY_MS)
    assert coordinator.shard.staged.ledger_of(QUERY) is not None
    coordinator.tick(DAY_MS)
    assert coordinator.shard.staged.ledger_of(QUERY) is None
