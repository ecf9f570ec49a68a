"""When transactions time out and transactional ids expire, even if clocks jump."""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek_broker.transactions.messages import (
    AbortTransaction,
    InitProducer,
    OpenStaged,
    RenewStaged,
)
from odradek_broker.transactions.settings import TransactionSettings
from odradek_broker.transactions.transaction import EndedBy, TransactionalId, TransactionStatus
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.transactions.coordinator import (
    FIRST,
    ORDERS,
    SECOND,
    TIMEOUT_MS,
    Coordinator,
    add,
    identity,
)
from tests.unit.transactions.test_staged_steps import (
    LEASE_MS,
    PREPARED_MS,
    QUERY,
    complete,
    prepare,
    prepared,
    status,
    write,
)

INIT = InitProducer(transactional_id=ORDERS, timeout_ms=TIMEOUT_MS)
DAY_MS = 24 * 3_600_000


def opened() -> Coordinator:
    coordinator = Coordinator()
    coordinator.add(coordinator.init(), FIRST)
    return coordinator


def test_an_open_transaction_is_aborted_when_its_time_is_over() -> None:
    coordinator = opened()
    coordinator.tick(TIMEOUT_MS - 1)
    assert coordinator.state.status is TransactionStatus.ONGOING
    coordinator.tick(1)
    assert coordinator.state.status is TransactionStatus.PREPARE_ABORT
    assert coordinator.state.ended_by is EndedBy.TIMEOUT
    coordinator.mark()
    # The client notices, aborts, and goes on with the same producer.
    first = identity(1_000, 0)
    assert coordinator.end(first, is_commit=True).error is ErrorCode.TRANSACTION_ABORTABLE
    assert coordinator.end(first, is_commit=False).next_identity == identity(1_000, 1)
    assert coordinator.add(identity(1_000, 1), FIRST) is ErrorCode.NONE


def test_later_partitions_do_not_extend_the_time() -> None:
    coordinator = opened()
    coordinator.tick(TIMEOUT_MS - 1)
    coordinator.add(identity(1_000, 0), SECOND)
    coordinator.tick(1)
    assert coordinator.state.status is TransactionStatus.PREPARE_ABORT


def test_each_transaction_has_its_own_time() -> None:
    coordinator = opened()
    coordinator.tick(TIMEOUT_MS - 1)
    following = coordinator.end(identity(1_000, 0), is_commit=True).next_identity
    coordinator.mark()
    coordinator.add(following, FIRST)
    coordinator.tick(TIMEOUT_MS - 1)
    assert coordinator.state.status is TransactionStatus.ONGOING
    coordinator.tick(1)
    assert coordinator.state.ended_by is EndedBy.TIMEOUT


def test_time_out_beside_a_commit() -> None:
    """A time-out in the same iteration of the event loop in which the client's commit was appended
    must find that decision.
    """
    coordinator = opened()
    coordinator.tick(TIMEOUT_MS - 1)
    coordinator.end(identity(1_000, 0), is_commit=True)
    coordinator.tick(1)
    assert coordinator.state.status is TransactionStatus.PREPARE_COMMIT
    assert len(coordinator.markers) == 1


@pytest.mark.parametrize("jump_ms", [-DAY_MS, DAY_MS])
def test_a_jump_of_the_wall_clock_ends_no_transaction(jump_ms: int) -> None:
    coordinator = opened()
    coordinator.wall_ms += jump_ms
    coordinator.tick(TIMEOUT_MS - 1)
    assert coordinator.state.status is TransactionStatus.ONGOING
    coordinator.tick(1)
    assert coordinator.state.status is TransactionStatus.PREPARE_ABORT


@pytest.mark.parametrize(
    ("jump_ms", "left_ms"),
    [
        (10_000, TIMEOUT_MS - 10_000),
        (-DAY_MS, TIMEOUT_MS),  # the clock fell back: never more than a whole time-out
        (TIMEOUT_MS - 1, 3_000),  # the failover ate the client's time
        (DAY_MS, 3_000),
    ],
)
def test_a_load_clamps_what_the_wall_clock_says(jump_ms: int, left_ms: int) -> None:
    coordinator = opened()
    coordinator.wall_ms += jump_ms
    coordinator.now_ms = 77  # another broker's clock
    coordinator.move()
    coordinator.tick(left_ms - 1)
    assert coordinator.state.status is TransactionStatus.ONGOING
    coordinator.tick(1)
    assert coordinator.state.status is TransactionStatus.PREPARE_ABORT


def test_time_stands_still_while_the_partition_cannot_be_written() -> None:
    coordinator = opened()
    coordinator.can_write = False
    coordinator.tick(2 * TIMEOUT_MS)
    assert coordinator.state.status is TransactionStatus.ONGOING
    coordinator.can_write = True
    coordinator.tick()
    assert coordinator.state.status is TransactionStatus.PREPARE_ABORT


def test_a_two_phase_producer_has_no_time_out() -> None:
    coordinator = Coordinator()
    coordinator.ask(replace(INIT, is_two_phase=True))
    coordinator.add(coordinator.state.next_identity, FIRST)
    coordinator.tick(365 * DAY_MS)
    coordinator.move()
    coordinator.tick(365 * DAY_MS)
    assert coordinator.state.status is TransactionStatus.ONGOING


def many(count: int) -> Coordinator:
    """Create this many transactional ids with an open transaction."""
    settings = TransactionSettings(steps_of_tick_max=10, reserve_size=count)
    coordinator = Coordinator(settings=settings)
    for number in range(count):
        name = TransactionalId(f"id-{number}")
        present = coordinator.ask(replace(INIT, transactional_id=name)).identity
        coordinator.ask(replace(add(present), transactional_id=name))
    return coordinator


def test_one_tick_ends_a_bounded_number_of_transactions() -> None:
    coordinator = many(25)
    ended = []
    coordinator.tick(TIMEOUT_MS)
    for _ in range(4):
        ended.append(len(coordinator.markers))
        coordinator.tick()
    assert ended == [10, 20, 25, 25]


def test_deadlines_of_ended_transactions_do_not_pile_up() -> None:
    coordinator = Coordinator()
    present = coordinator.init()
    for _ in range(3_000):
        coordinator.add(present, FIRST)
        present = coordinator.end(present, is_commit=True).next_identity
        coordinator.mark()
        coordinator.log.clear()
        coordinator.orders.clear()
    assert len(coordinator.shard.table._deadlines) < 1_100
    assert not coordinator.shard.table._deadline_ms


def test_an_operator_aborts_an_open_transaction() -> None:
    coordinator = opened()
    assert coordinator.ask(AbortTransaction(transactional_id=ORDERS)).error is ErrorCode.NONE
    assert coordinator.state.ended_by is EndedBy.OPERATOR
    coordinator.mark()
    first = identity(1_000, 0)
    assert coordinator.end(first, is_commit=True).error is ErrorCode.TRANSACTION_ABORTABLE
    refused = coordinator.ask(AbortTransaction(transactional_id=ORDERS))
    assert refused.error is ErrorCode.INVALID_TXN_STATE
    assert "no open transaction" in refused.error_message
    unknown = coordinator.ask(AbortTransaction(transactional_id=TransactionalId("other")))
    assert unknown.error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_ids_that_nobody_uses_are_forgotten() -> None:
    coordinator = Coordinator()
    coordinator.init()
    coordinator.tick()
    coordinator.tick(7 * DAY_MS - 3_600_000)
    assert coordinator.shard.table.get(ORDERS) is not None
    coordinator.tick(3_600_000)
    assert coordinator.shard.table.get(ORDERS) is None
    assert coordinator.log[-1].state is None
    # An id that returns has another producer id, so that nothing of before fits.
    assert coordinator.init(identity(1_000, 0)) == identity(1_001, 0)


@pytest.mark.parametrize("ends", [False, True])
def test_an_id_with_an_open_or_undone_transaction_is_not_forgotten(ends: bool) -> None:
    coordinator = Coordinator()
    coordinator.ask(replace(INIT, is_two_phase=True))
    present = coordinator.state.next_identity
    coordinator.add(present, FIRST)
    if ends:
        coordinator.end(present, is_commit=True)
    coordinator.tick()
    for _ in range(3):
        coordinator.tick(30 * DAY_MS)
    assert coordinator.shard.table.get(ORDERS) is not None
    if not ends:
        coordinator.end(present, is_commit=True)
    coordinator.mark()
    coordinator.tick(7 * DAY_MS)
    assert coordinator.shard.table.get(ORDERS) is None


def test_one_tick_examines_a_bounded_number_of_ids() -> None:
    coordinator = many(25)
    coordinator.tick(TIMEOUT_MS)
    for _ in range(3):
        coordinator.tick()
    for order in coordinator.markers:
        step = coordinator.shard.handle_marked(
            order.decision,
            FIRST,
            ErrorCode.NONE,
            now_ms=coordinator.now_ms,
            wall_ms=coordinator.wall_ms,
        )
        coordinator.take(step)
    coordinator.tick(8 * DAY_MS)
    left = []
    for _ in range(4):
        left.append(len(coordinator.shard.table))
        coordinator.tick()
    assert left == [15, 5, 0, 0]


@pytest.mark.parametrize(
    ("wanted_ms", "timeout_ms"),
    [(1, LEASE_MS), (300_000, 300_000), (PREPARED_MS + 1, PREPARED_MS), (0, PREPARED_MS)],
)
def test_a_query_chooses_how_long_its_prepared_members_wait(
    wanted_ms: int, timeout_ms: int
) -> None:
    """The driver died before the completion. The coordinator of the query then aborts the step in time."""
    coordinator = Coordinator()
    request = OpenStaged(query=QUERY, step=0, member="a", prepared_timeout_ms=wanted_ms)
    slot = coordinator.ask(request).slot
    assert coordinator.ask(request).slot == slot, "a repeated request got another slot"
    write(coordinator, slot)
    prepare(coordinator, slot)
    coordinator.tick(timeout_ms - 1)
    assert coordinator.ask(RenewStaged(members=(slot,))).errors == {slot: ErrorCode.NONE}
    coordinator.tick(timeout_ms - 1)
    coordinator.move()
    coordinator.tick(timeout_ms - 1)
    assert status(coordinator, slot) is TransactionStatus.ONGOING
    coordinator.tick(1)
    assert status(coordinator, slot) is TransactionStatus.PREPARE_ABORT
    assert complete(coordinator, slot).error is ErrorCode.TRANSACTION_ABORTABLE


def test_the_longest_time_out_of_its_members_is_that_of_a_step() -> None:
    """Some of the query's processes are of a release that knows no time-outs of queries."""
    coordinator = Coordinator()
    old = prepared(coordinator, member="old")
    request = OpenStaged(query=QUERY, step=0, member="new", prepared_timeout_ms=LEASE_MS)
    slot = coordinator.ask(request).slot
    write(coordinator, slot)
    prepare(coordinator, slot)
    coordinator.tick(PREPARED_MS - 1)
    assert status(coordinator, slot) is TransactionStatus.ONGOING
    assert complete(coordinator, old, slot).error is ErrorCode.NONE
