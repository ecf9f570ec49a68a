"""Planted bugs: a patch disables one rule of the coordinator's core, and the test named for that
rule must then fail.

For some rules the explicit-state model must fail, too; the simulator finds the same bugs with whole
clusters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec import structs

from odradek_broker.coordinator_step import NOTHING, respond
from odradek_broker.settled_clock import SettledClock
from odradek_broker.transactions import transaction_codec
from odradek_broker.transactions.identity import Match, ProducerIdentity
from odradek_broker.transactions.markers_due import DueMarkers, MarkersDue
from odradek_broker.transactions.messages import AbortStaged, Added, SlotIdentity
from odradek_broker.transactions.staged_steps import StagedSteps
from odradek_broker.transactions.transaction import (
    Transaction,
    TransactionPartition,
    TransactionStatus,
)
from odradek_broker.transactions.transaction_shard import TransactionShard
from odradek_broker.transactions.transaction_table import TransactionTable
from tests.unit.transactions import (
    test_completion,
    test_identities,
    test_ledgers,
    test_staged_steps,
    test_timeouts,
)
from tests.unit.transactions.coordinator import WALL_MS
from tests.unit.transactions.test_shard_model import ShardMachine

Patch = Callable[[pytest.MonkeyPatch], None]
Test = Callable[[], None]


def complete_after_the_first_marker(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 12: a transaction is complete when its first marker is acknowledged."""

    def acknowledge(self: MarkersDue, decision: int, _: TransactionPartition) -> DueMarkers | None:
        return self._decisions.pop(decision, None)

    patch.setattr(MarkersDue, "acknowledge", acknowledge)


def retry_taken_as_current(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 13: a repeated request with the previous epoch is treated as a new one."""
    original = Transaction.match

    def match(self: Transaction, identity: ProducerIdentity) -> Match:
        matched = original(self, identity)
        return Match.CURRENT if matched is Match.RETRY else matched

    patch.setattr(Transaction, "match", match)


def acknowledgement_without_decision_number(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 47: an acknowledgement counts for a marker of any decision on that partition."""
    original = MarkersDue.acknowledge

    def acknowledge(
        self: MarkersDue, decision: int, partition: TransactionPartition
    ) -> DueMarkers | None:
        for number, due in list(self._decisions.items()):
            if partition in due.partitions:
                return original(self, number, partition)
        return None

    patch.setattr(MarkersDue, "acknowledge", acknowledge)


def init_does_not_bump(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 55: InitProducerId does not raise the producer epoch."""
    original = Transaction.initialized

    def initialized(self: Transaction, *args: Any, **kwargs: Any) -> Transaction:
        state = original(self, *args, **kwargs)
        return structs.replace(
            state, producer_epoch=self.producer_epoch, last_epoch=self.last_epoch
        )

    patch.setattr(Transaction, "initialized", initialized)


def last_epoch_and_other_ids_not_in_the_record(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 56: the record omits the last epoch, and the previous and next producer ids."""
    original = transaction_codec._tags

    def tags(state: Transaction) -> dict[int, bytes]:
        lost = (
            transaction_codec._PREVIOUS_ID_TAG,
            transaction_codec._NEXT_ID_TAG,
            transaction_codec._LAST_EPOCH_TAG,
        )
        return {tag: value for tag, value in original(state).items() if tag not in lost}

    patch.setattr(transaction_codec, "_tags", tags)


def time_out_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 57: transactions time out by the wall clock."""
    original = TransactionShard.tick

    def tick(self: TransactionShard, *, now_ms: int, wall_ms: int, can_write: bool = True) -> Any:
        by_wall_ms = wall_ms - WALL_MS + 5_000
        return original(self, now_ms=by_wall_ms, wall_ms=wall_ms, can_write=can_write)

    patch.setattr(TransactionShard, "tick", tick)


def time_out_decided_without_the_appended_decision(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 57: a time-out ignores a decision that is appended and not committed yet."""
    open_states: dict[str, Transaction] = {}
    replay, time_out = TransactionTable.replay, TransactionShard._time_out

    def replay_and_keep_deadline(self: TransactionTable, record: Any) -> None:
        deadline_ms = self._deadline_ms.get(record.transactional_id)
        replay(self, record)
        if record.state.status is TransactionStatus.ONGOING:
            open_states[record.transactional_id] = record.state
        elif deadline_ms is not None and record.state.status.is_decided:
            self._deadline_ms[record.transactional_id] = deadline_ms

    def time_out_of_open_state(self: TransactionShard, name: Any, **clocks: int) -> Any:
        self.table._states[name] = open_states[name]
        return time_out(self, name, **clocks)

    patch.setattr(TransactionTable, "replay", replay_and_keep_deadline)
    patch.setattr(TransactionShard, "_time_out", time_out_of_open_state)


def held_add_answered_before_the_completion(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 64: AddPartitionsToTxn succeeds before the previous transaction is complete."""
    original = TransactionShard._hold

    def hold(self: TransactionShard, request_id: Any, request: Any, *, now_ms: int) -> Any:
        if hasattr(request, "partitions"):
            return respond(request_id, Added())
        return original(self, request_id, request, now_ms=now_ms)

    patch.setattr(TransactionShard, "_hold", hold)


def step_completed_without_the_ledger(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 59: a step of staged writes completes without a record in the query's ledger."""
    patch.setattr(StagedSteps, "_move_ledger", lambda self, request, wall_ms: NOTHING)


def abort_of_all_of_the_step(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 60: an abort ends all members of the step, and not only those that it names."""
    original = StagedSteps.handle_abort

    def handle_abort(self: StagedSteps, request_id: Any, request: Any, **clocks: int) -> Any:
        table = self._shard.table
        members = tuple(
            SlotIdentity(name, state.next_identity)
            for member in request.members
            for name, state in table.slots_of(member.transactional_id.partition("\x1f")[0])
        )
        return original(self, request_id, AbortStaged(members=members), **clocks)

    patch.setattr(StagedSteps, "handle_abort", handle_abort)


def prepared_member_timed_out(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 61: a prepared member of a staged write times out."""
    patch.setattr(Transaction, "has_lease", property(lambda self: self.staged is not None))


def jump_of_the_wall_clock_counts_at_once(patch: pytest.MonkeyPatch) -> None:
    """A wall clock that is set forward makes everything old enough to be deleted."""
    patch.setattr(SettledClock, "read", lambda self, *, now_ms, wall_ms: wall_ms)


def step_too_large_for_one_batch(patch: pytest.MonkeyPatch) -> None:
    """Slots are opened although the completion of their step would have to be split."""
    patch.setattr(StagedSteps, "_has_room", lambda *_: True)


NAMED: list[tuple[Patch, Test]] = [
    (
        jump_of_the_wall_clock_counts_at_once,
        test_ledgers.test_a_wall_clock_that_is_set_forward_forgets_no_ledger,
    ),
    (
        step_too_large_for_one_batch,
        test_ledgers.test_a_step_whose_name_is_too_long_for_its_tasks_opens_no_more,
    ),
    (
        step_completed_without_the_ledger,
        test_staged_steps.test_a_step_that_is_complete_swallows_what_comes_for_it,
    ),
    (abort_of_all_of_the_step, test_staged_steps.test_two_drivers_on_one_checkpoint),
    (
        prepared_member_timed_out,
        test_staged_steps.test_a_prepared_member_is_not_timed_out_while_its_step_is_heard,
    ),
    (
        complete_after_the_first_marker,
        partial(
            test_completion.test_a_transaction_is_complete_when_every_partition_has_its_marker,
            is_commit=True,
        ),
    ),
    (
        retry_taken_as_current,
        partial(test_identities.test_a_late_end_does_not_end_the_next_transaction, is_commit=False),
    ),
    (
        acknowledgement_without_decision_number,
        test_completion.test_late_acknowledgement_of_a_marker,
    ),
    (init_does_not_bump, test_identities.test_a_new_producer_fences_the_one_before),
    (
        last_epoch_and_other_ids_not_in_the_record,
        partial(test_identities.test_epochs_run_out_during_a_failover, moves_meanwhile=True),
    ),
    (
        time_out_by_the_wall_clock,
        partial(
            test_timeouts.test_a_jump_of_the_wall_clock_ends_no_transaction,
            jump_ms=test_timeouts.DAY_MS,
        ),
    ),
    (time_out_decided_without_the_appended_decision, test_timeouts.test_time_out_beside_a_commit),
    (
        held_add_answered_before_the_completion,
        test_completion.test_the_next_transaction_waits_for_the_completion_and_begins_with_it,
    ),
]


def name_of(value: Any) -> str:
    return str(getattr(value, "__name__", value.func.__name__ if hasattr(value, "func") else value))


@pytest.mark.parametrize(("plant", "test"), NAMED, ids=name_of)
def test_a_planted_bug_is_noticed(
    plant: Patch, test: Test, monkeypatch: pytest.MonkeyPatch
) -> None:
    test()
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, KeyError)):
            test()


FOUND_BY_THE_MODEL: list[Patch] = [
    complete_after_the_first_marker,
    retry_taken_as_current,
    init_does_not_bump,
    last_epoch_and_other_ids_not_in_the_record,
    held_add_answered_before_the_completion,
]


@pytest.mark.parametrize("plant", FOUND_BY_THE_MODEL, ids=name_of)
def test_the_model_notices_a_planted_bug(plant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_settings = settings(
        max_examples=150,
        stateful_step_count=40,
        database=None,
        derandomize=True,
        phases=[Phase.generate],  # that it fails is enough
    )
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, KeyError)):
            run_state_machine_as_test(ShardMachine, settings=machine_settings)
