"""Staged writes: the state of members and ledger, whichever process dies between any two calls."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from msgspec import structs

from odradek_broker.transactions.messages import (
    AbortStaged,
    AbortTransaction,
    CompleteStep,
    ForgetSteps,
    InitProducer,
    OpenStaged,
    PrepareStaged,
    RenewStaged,
    SlotIdentity,
)
from odradek_broker.transactions.settings import TransactionSettings
from odradek_broker.transactions.transaction import (
    EndedBy,
    Ledger,
    Staged,
    Transaction,
    TransactionalId,
    TransactionStatus,
)
from odradek_protocol.identity import ProducerEpoch
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.transactions.coordinator import FIRST, SECOND, Coordinator, add, end, identity

QUERY = TransactionalId("sales")
EMPTY = TransactionStatus.EMPTY
LEASE_MS, PREPARED_MS = 60_000, 3_600_000
DAY_MS = 24 * 3_600_000


def opened(coordinator: Coordinator, step: int = 0, member: str = "a") -> SlotIdentity:
    response = coordinator.ask(OpenStaged(query=QUERY, step=step, member=member))
    assert response.error is ErrorCode.NONE, response
    slot: SlotIdentity = response.slot
    return slot


def write(coordinator: Coordinator, slot: SlotIdentity, *partitions: Any) -> ErrorCode:
    request = replace(
        add(slot.identity, *(partitions or (FIRST,))), transactional_id=slot.transactional_id
    )
    error: ErrorCode = coordinator.ask(request).error
    return error


def prepare(coordinator: Coordinator, slot: SlotIdentity) -> ErrorCode:
    error: ErrorCode = coordinator.ask(PrepareStaged(member=slot)).error
    return error


def prepared(coordinator: Coordinator, step: int = 0, member: str = "a") -> SlotIdentity:
    slot = opened(coordinator, step, member)
    assert write(coordinator, slot) is ErrorCode.NONE
    assert prepare(coordinator, slot) is ErrorCode.NONE
    return slot


def complete(coordinator: Coordinator, *slots: SlotIdentity, step: int = 0) -> Any:
    return coordinator.ask(CompleteStep(query=QUERY, step=step, members=slots))


def status(coordinator: Coordinator, slot: SlotIdentity) -> TransactionStatus:
    state = coordinator.shard.table.get(slot.transactional_id)
    assert state is not None
    return state.status


def at_epoch(state: Transaction, epoch: int) -> Transaction:
    used = ProducerEpoch(epoch)
    return structs.replace(state, producer_epoch=used, last_epoch=ProducerEpoch(-1))


def mark_all(coordinator: Coordinator) -> None:
    """Acknowledge the markers of all decisions."""
    for order in coordinator.markers:
        for partition in sorted(order.partitions):
            step = coordinator.shard.handle_marked(
                order.decision, partition, ErrorCode.NONE, **coordinator._clocks
            )
            coordinator.take(step)


def test_a_step_commits_its_members_in_one_batch() -> None:
    coordinator = Coordinator()
    first, second = prepared(coordinator, member="a"), prepared(coordinator, member="b")
    other = opened(coordinator, member="speculation")
    write(coordinator, other, SECOND)
    before = len(coordinator.log)
    assert complete(coordinator, first, second).error is ErrorCode.NONE
    written = {record.transactional_id: record.state for record in coordinator.log[before:]}
    assert len(written) == 4, "ledger and decisions are one step, each once"
    assert coordinator.shard.staged.ledger_of(QUERY) == Ledger(last_step=0, members=2)
    assert status(coordinator, first) is TransactionStatus.PREPARE_COMMIT
    assert status(coordinator, second) is TransactionStatus.PREPARE_COMMIT
    assert status(coordinator, other) is TransactionStatus.PREPARE_ABORT
    assert [order.is_commit for order in coordinator.markers].count(True) == 2
    mark_all(coordinator)
    assert status(coordinator, first) is TransactionStatus.COMPLETE_COMMIT


def test_a_member_that_is_listed_twice_is_counted_once() -> None:
    coordinator = Coordinator()
    member = prepared(coordinator)
    assert complete(coordinator, member, member).error is ErrorCode.NONE
    assert coordinator.shard.staged.ledger_of(QUERY) == Ledger(last_step=0, members=1)


def test_steps_without_members_are_forgotten() -> None:
    """A client that opens and aborts a member of step after step must not fill the memory for the time-out of each."""
    coordinator = Coordinator()
    last_signs = coordinator.shard.staged._last_signs
    for step in range(20):
        coordinator.ask(AbortStaged(members=(opened(coordinator, step),)))
    kept = prepared(coordinator, step=20)
    coordinator.tick()
    assert list(last_signs) == [(QUERY, 20)]
    complete(coordinator, kept, step=20)
    coordinator.tick()
    assert not last_signs
    opened(coordinator, step=21)
    coordinator.tick(LEASE_MS)
    coordinator.tick()
    assert not last_signs
    prepared(coordinator, step=22)
    coordinator.move()
    coordinator.tick()
    assert list(coordinator.shard.staged._last_signs) == [(QUERY, 22)]


def test_slots_are_used_again_with_another_epoch() -> None:
    coordinator = Coordinator()
    first = prepared(coordinator)
    assert opened(coordinator, member="b").transactional_id == "sales\x1f1"
    complete(coordinator, first)
    mark_all(coordinator)
    again = opened(coordinator, step=1)
    assert again.transactional_id == first.transactional_id == "sales\x1f0"
    assert again.identity.producer_id == first.identity.producer_id
    assert again.identity.epoch == first.identity.epoch + 2


def test_a_repeated_open_gets_the_same_slot() -> None:
    coordinator = Coordinator()
    slot = opened(coordinator)
    assert opened(coordinator) == slot
    assert opened(coordinator, member="b") != slot


def test_a_step_that_is_complete_swallows_what_comes_for_it() -> None:
    """The driver died after CompleteStep, and repeats the step: the later writes are aborted."""
    coordinator = Coordinator()
    first = prepared(coordinator)
    late = opened(coordinator, member="late")
    write(coordinator, late)
    complete(coordinator, first)
    mark_all(coordinator)
    response = coordinator.ask(OpenStaged(query=QUERY, step=0, member="b"))
    assert response.is_completed
    assert response.slot is None
    records = len(coordinator.log)
    assert complete(coordinator, first).is_completed
    assert complete(coordinator).is_completed
    assert len(coordinator.log) == records


def test_what_was_written_again_for_a_complete_step_is_aborted() -> None:
    coordinator = Coordinator()
    written_again = prepared(coordinator, step=3)
    other = prepared(coordinator, step=3, member="b")
    complete(coordinator, other, step=3)
    assert status(coordinator, written_again) is TransactionStatus.PREPARE_ABORT
    assert complete(coordinator, written_again, step=3).is_completed


def test_two_drivers_on_one_checkpoint() -> None:
    """The older driver aborts its own members by name, and never all members of the step."""
    coordinator = Coordinator()
    older, newer = prepared(coordinator, member="old"), prepared(coordinator, member="new")
    coordinator.ask(AbortStaged(members=(older,)))
    assert status(coordinator, older) is TransactionStatus.PREPARE_ABORT
    assert complete(coordinator, newer).error is ErrorCode.NONE
    assert status(coordinator, newer) is TransactionStatus.PREPARE_COMMIT
    assert coordinator.ask(AbortStaged(members=(older, newer))).errors == {
        older: ErrorCode.NONE,
        newer: ErrorCode.NONE,
    }
    assert status(coordinator, newer) is TransactionStatus.PREPARE_COMMIT


def test_a_restored_checkpoint_is_refused_loudly() -> None:
    coordinator = Coordinator()
    complete(coordinator, prepared(coordinator, step=7), step=7)
    response = coordinator.ask(OpenStaged(query=QUERY, step=6, member="a"))
    assert response.error is ErrorCode.INVALID_TXN_STATE
    assert "older than step 7" in response.error_message


def test_an_empty_step_moves_the_ledger() -> None:
    coordinator = Coordinator()
    assert complete(coordinator, step=4).error is ErrorCode.NONE
    assert coordinator.shard.staged.ledger_of(QUERY) == Ledger(last_step=4, members=0)
    coordinator.move()
    assert complete(coordinator, step=4).is_completed


@pytest.mark.parametrize("case", ["unprepared", "another step", "stale", "unknown", "aborted"])
def test_a_step_with_an_unfit_member_writes_nothing(case: str) -> None:
    coordinator = Coordinator()
    good = prepared(coordinator)
    match case:
        case "unprepared":
            bad = opened(coordinator, member="b")
        case "another step":
            bad = prepared(coordinator, step=1, member="b")
        case "stale":
            slot = prepared(coordinator, member="b")
            bad = slot._replace(identity=identity(slot.identity.producer_id, 99))
        case "unknown":
            bad = SlotIdentity(TransactionalId("sales\x1f9"), identity(5, 0))
        case _:
            bad = prepared(coordinator, member="b")
            coordinator.ask(AbortStaged(members=(bad,)))
    records = len(coordinator.log)
    response = complete(coordinator, good, bad)
    assert response.error is ErrorCode.TRANSACTION_ABORTABLE
    assert response.unfit == (bad,)
    assert len(coordinator.log) == records
    assert coordinator.shard.staged.ledger_of(QUERY) is None


def test_a_member_that_is_not_renewed_is_aborted() -> None:
    coordinator = Coordinator()
    renewed, dead = opened(coordinator, member="a"), opened(coordinator, member="b")
    empty = opened(coordinator, member="c")
    for slot in (renewed, dead):
        write(coordinator, slot)
    coordinator.tick(LEASE_MS - 1)
    assert coordinator.ask(RenewStaged(members=(renewed,))).errors == {renewed: ErrorCode.NONE}
    coordinator.tick(1)
    assert status(coordinator, renewed) is TransactionStatus.ONGOING
    assert status(coordinator, dead) is TransactionStatus.PREPARE_ABORT
    assert status(coordinator, empty) is TransactionStatus.COMPLETE_ABORT
    lost = coordinator.ask(RenewStaged(members=(dead, empty))).errors
    assert set(lost.values()) == {ErrorCode.TRANSACTION_ABORTABLE}
    assert prepare(coordinator, dead) is ErrorCode.TRANSACTION_ABORTABLE
    assert write(coordinator, dead, SECOND) is ErrorCode.TRANSACTION_ABORTABLE


def test_a_member_has_no_other_time_out_and_a_whole_lease_after_a_load() -> None:
    coordinator = Coordinator()
    slot = opened(coordinator)
    write(coordinator, slot)
    for _ in range(100):
        coordinator.tick(LEASE_MS - 1)
        coordinator.ask(RenewStaged(members=(slot,)))
    coordinator.tick(LEASE_MS - 1)
    coordinator.move()
    coordinator.tick(LEASE_MS - 1)
    assert status(coordinator, slot) is TransactionStatus.ONGOING
    coordinator.tick(1)
    assert status(coordinator, slot) is TransactionStatus.PREPARE_ABORT


def test_a_prepared_member_is_not_timed_out_while_its_step_is_heard() -> None:
    coordinator = Coordinator()
    waiting, slow = prepared(coordinator), opened(coordinator, member="b")
    write(coordinator, slow)
    for _ in range(2 * PREPARED_MS // LEASE_MS):
        coordinator.tick(LEASE_MS - 1)
        coordinator.ask(RenewStaged(members=(slow,)))
    assert status(coordinator, waiting) is TransactionStatus.ONGOING
    assert prepare(coordinator, slow) is ErrorCode.NONE
    coordinator.tick(PREPARED_MS - 1)
    assert status(coordinator, waiting) is TransactionStatus.ONGOING
    coordinator.tick(1)
    state = coordinator.shard.table.get(waiting.transactional_id)
    assert state is not None
    assert (state.status, state.ended_by) == (TransactionStatus.PREPARE_ABORT, EndedBy.TIMEOUT)
    assert complete(coordinator, waiting, slow).error is ErrorCode.TRANSACTION_ABORTABLE


def test_a_prepared_member_takes_no_partition_and_is_ended_by_its_step_alone() -> None:
    coordinator = Coordinator()
    slot = prepared(coordinator)
    assert prepare(coordinator, slot) is ErrorCode.NONE
    assert write(coordinator, slot, SECOND) is ErrorCode.INVALID_TXN_STATE
    for is_tv2 in (False, True):
        for is_commit in (False, True):
            request = replace(
                end(slot.identity, is_commit=is_commit, is_tv2=is_tv2),
                transactional_id=slot.transactional_id,
            )
            assert coordinator.ask(request).error is ErrorCode.INVALID_TXN_STATE
    takeover = InitProducer(transactional_id=slot.transactional_id, timeout_ms=1_000)
    assert coordinator.ask(takeover).error is ErrorCode.INVALID_REQUEST
    abort = AbortTransaction(transactional_id=slot.transactional_id)
    assert coordinator.ask(abort).error is ErrorCode.INVALID_TXN_STATE
    assert status(coordinator, slot) is TransactionStatus.ONGOING
    assert coordinator.ask(replace(abort, is_forced=True)).error is ErrorCode.NONE
    assert status(coordinator, slot) is TransactionStatus.PREPARE_ABORT


def test_members_without_rows_are_freed_at_once() -> None:
    coordinator = Coordinator()
    slot = opened(coordinator)
    assert prepare(coordinator, slot) is ErrorCode.NONE
    assert complete(coordinator, slot).error is ErrorCode.NONE
    assert not coordinator.markers
    again = opened(coordinator, step=1)
    assert again.transactional_id == slot.transactional_id
    assert write(coordinator, slot) is not ErrorCode.NONE


@pytest.mark.parametrize(("is_final", "expires_ms"), [(False, 90 * DAY_MS), (True, 2 * 3_600_000)])
def test_ledgers_are_kept_longer_than_ids_except_final_ones(
    is_final: bool, expires_ms: int
) -> None:
    coordinator = Coordinator()
    coordinator.ask(CompleteStep(query=QUERY, step=0, members=(), is_final=is_final))
    coordinator.tick()
    coordinator.tick(expires_ms - 3_600_000 - 1)
    assert coordinator.shard.table.get(QUERY) is not None
    coordinator.tick(2 * 3_600_000)
    assert coordinator.shard.table.get(QUERY) is None


def test_the_slots_of_a_write_with_one_step_go_with_its_ledger() -> None:
    """Each batch write has slots of its own, which no other write uses."""
    coordinator = Coordinator()
    slots = tuple(prepared(coordinator, member=name) for name in ("a", "b"))
    coordinator.ask(CompleteStep(query=QUERY, step=0, members=slots, is_final=True))
    mark_all(coordinator)
    coordinator.tick()
    coordinator.tick(3_600_000)
    assert coordinator.shard.table.get(QUERY) is not None, "it says that its slots may go"
    assert not coordinator.shard.table.slots_of(QUERY)
    coordinator.tick(3_600_000)
    assert not len(coordinator.shard.table)
    assert not coordinator.shard.table._slots


def test_a_step_that_would_not_fit_one_batch_is_refused_when_it_grows() -> None:
    coordinator = Coordinator(settings=TransactionSettings(partitions_max=1 << 30))
    slot = opened(coordinator)
    partitions = tuple(FIRST._replace(partition=index) for index in range(260_000))  # type: ignore[arg-type]
    assert write(coordinator, slot, *partitions) is ErrorCode.TRANSACTION_ABORTABLE
    assert write(coordinator, slot, *partitions[:1_000]) is ErrorCode.NONE


def test_a_step_that_needs_more_producer_ids_than_there_are_waits() -> None:
    coordinator = Coordinator()
    slot = prepared(coordinator)
    state = coordinator.shard.table.get(slot.transactional_id)
    assert state is not None
    last = at_epoch(state, 32_766)
    coordinator.take(coordinator.shard.move(slot.transactional_id, last))
    exhausted = slot._replace(identity=last.next_identity)
    coordinator.has_producer_ids = False
    while coordinator.shard.reserve:
        coordinator.shard.reserve.take()
    assert complete(coordinator, exhausted).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    coordinator.has_producer_ids = True
    coordinator.tick()
    assert complete(coordinator, exhausted).error is ErrorCode.NONE


def test_a_step_whose_slots_reach_the_last_epoch_together_needs_no_producer_ids() -> None:
    """A query uses its slots equally often, so the epochs of all of them run out in one step."""
    coordinator = Coordinator()
    names = [f"{number}" for number in range(3 * coordinator.settings.reserve_size)]
    slots = [prepared(coordinator, member=name) for name in names]
    assert complete(coordinator, *slots).error is ErrorCode.NONE
    mark_all(coordinator)
    for slot in slots:
        state = coordinator.shard.table.get(slot.transactional_id)
        assert state is not None
        last = structs.replace(at_epoch(state, 32_765), status=EMPTY)
        coordinator.take(coordinator.shard.move(slot.transactional_id, last))
    again = [prepared(coordinator, step=1, member=name) for name in names]
    coordinator.has_producer_ids = False
    while coordinator.shard.reserve:
        coordinator.shard.reserve.take()
    assert complete(coordinator, *again, step=1).error is ErrorCode.NONE


def test_a_ledger_that_is_forgotten_lets_an_older_checkpoint_be_replayed() -> None:
    coordinator = Coordinator()
    forget = ForgetSteps(query=QUERY)
    assert coordinator.ask(forget).error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    complete(coordinator, prepared(coordinator, step=7), step=7)
    mark_all(coordinator)
    running = opened(coordinator, step=8)
    refused = coordinator.ask(forget)
    assert refused.error is ErrorCode.INVALID_TXN_STATE
    assert "step 8 of sales" in refused.error_message
    coordinator.ask(AbortStaged(members=(running,)))
    assert coordinator.ask(forget).error is ErrorCode.NONE
    assert coordinator.shard.staged.ledger_of(QUERY) is None
    assert complete(coordinator, prepared(coordinator, step=3), step=3).error is ErrorCode.NONE


def test_a_long_name_of_a_member_and_a_negative_time_out_are_refused() -> None:
    long = OpenStaged(query=QUERY, step=0, member="a" * 1_025)
    negative = OpenStaged(query=QUERY, step=0, member="a", prepared_timeout_ms=-1)
    for request in (long, negative):
        assert Coordinator().ask(request).error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("query", ["", "a\x1fb", "a" * 32_001])
def test_a_query_that_cannot_be_is_refused(query: str) -> None:
    coordinator = Coordinator()
    invalid = ErrorCode.INVALID_REQUEST
    assert coordinator.ask(OpenStaged(query=query, step=0, member="a")).error is invalid
    assert coordinator.ask(CompleteStep(query=query, step=0, members=())).error is invalid


def test_of_each_step_the_committed_members_are_those_of_one_completion() -> None:
    """Drivers and tasks die between any two calls, and the coordinator moves."""
    for seed in range(60):
        random, coordinator = Random(seed), Coordinator()
        completed: dict[int, frozenset[SlotIdentity]] = {}
        step, attempt = 0, 0
        for _ in range(40):
            attempt += 1
            members = []
            for task in range(random.randrange(3)):
                response = coordinator.ask(
                    OpenStaged(query=QUERY, step=step, member=f"{attempt}-{task}")
                )
                if response.is_completed:
                    continue
                write(coordinator, response.slot)
                if random.random() < 0.8 and prepare(coordinator, response.slot) is ErrorCode.NONE:
                    members.append(response.slot)
            if random.random() < 0.3:
                coordinator.move()
            if random.random() < 0.6:
                before = len(coordinator.log)
                response = complete(coordinator, *members, step=step)
                if response.error is ErrorCode.NONE and not response.is_completed:
                    assert step not in completed
                    completed[step] = frozenset(members)
                    decided = {
                        record.transactional_id
                        for record in coordinator.log[before:]
                        if record.state and record.state.status is TransactionStatus.PREPARE_COMMIT
                    }
                    assert decided == {member.transactional_id for member in members}
                assert response.error is ErrorCode.NONE
                # The driver may die here, before it notes that the step is complete.
                step += random.random() < 0.7
            mark_all(coordinator)
            coordinator.orders.clear()
        for state in (state for _, state in coordinator.shard.table.slots_of(QUERY)):
            assert state.staged is None or isinstance(state.staged, Staged)
        assert max(completed, default=-1) <= step
