"""Planted bugs: a patch disables one rule of offsets in transactions, and the test named for that
rule must then fail.

docs/mechanisms.md lists all planted bugs; the numbers are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest

from odradek_broker.coordination.group_coordinator import GroupKind
from odradek_broker.groups.group_shard import GroupShard
from odradek_broker.groups.group_table import CommittedOffsets
from odradek_broker.groups.messages import FetchedOffsets
from odradek_broker.groups.offset_shard import OffsetShard
from odradek_broker.groups.pending_offsets import PendingOffsets
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.groups import test_pending_offsets

pytestmark = pytest.mark.interpreted

Patch = Callable[[pytest.MonkeyPatch], None]
Test = Callable[[], None]


def pending_offsets_applied_on_abort(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 50: offsets of an aborted transaction become committed."""
    original = CommittedOffsets.end_transaction

    def end(self: CommittedOffsets, producer_id: Any, *, is_commit: bool) -> Any:
        return original(self, producer_id, is_commit=True)

    patch.setattr(CommittedOffsets, "end_transaction", end)


def pending_offsets_ended_by_any_marker(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 50: a marker ends the transaction of any producer."""
    original = PendingOffsets.end

    def end(self: PendingOffsets, producer_id: Any) -> Any:
        return original(self, next(iter(self._transactions), producer_id))

    patch.setattr(PendingOffsets, "end", end)


def stable_fetch_returns_with_pending_offsets(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 51: OffsetFetch with require_stable does not wait for pending offsets."""
    original = OffsetShard._fetched

    def fetched(self: OffsetShard, fetch: Any) -> FetchedOffsets:
        response = original(self, fetch)
        return FetchedOffsets(error=response.error, offsets=response.offsets)

    patch.setattr(OffsetShard, "_fetched", fetched)


def no_generation_check(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 52: commits in transactions are accepted from old generations."""
    patch.setattr(
        OffsetShard, "_check_commit_in_transaction", lambda self, request, now_ms: ErrorCode.NONE
    )


def load_skips_markers(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 53: a coordinator ignores the markers in the log that it loads."""
    patch.setattr(GroupKind, "replay_marker", lambda self, shard, marker: None)


def later_marker_wins_over_later_record(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 54: the transaction that ends later wins, and not the one whose record is
    later.
    """
    patch.setattr(PendingOffsets, "supersede", lambda self, *args, **kwargs: None)


def guard_not_voided_by_a_marker(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 42, at the group coordinator: a registration stays valid after a marker has ended
    the transaction.
    """
    patch.setattr(PendingOffsets, "is_registered", lambda self, producer_id, guard: guard)


def guard_not_voided_by_an_offset(patch: pytest.MonkeyPatch) -> None:
    """A hanging transaction is ended although its producer has written since the coordinators were
    asked.
    """
    original = PendingOffsets.add

    def add(self: PendingOffsets, producer_id: Any, *args: Any) -> None:
        guards = dict(self._guards)
        original(self, producer_id, *args)
        self._guards.update(guards)

    patch.setattr(PendingOffsets, "add", add)


def guards_begin_again_at_a_load(patch: pytest.MonkeyPatch) -> None:
    """A shard that is loaded again gives out the guards of its predecessor."""

    def create(self: GroupKind) -> GroupShard:
        return GroupShard(settings=self.settings, guards=count(1))

    patch.setattr(GroupKind, "create", create)


NAMED: list[tuple[Patch, Test]] = [
    (
        pending_offsets_applied_on_abort,
        partial(
            test_pending_offsets.test_offsets_count_when_the_transaction_commits, is_commit=False
        ),
    ),
    (
        pending_offsets_ended_by_any_marker,
        test_pending_offsets.test_a_marker_of_another_producer_changes_nothing,
    ),
    (
        stable_fetch_returns_with_pending_offsets,
        test_pending_offsets.test_a_stable_fetch_waits_for_the_end_of_the_transaction,
    ),
    (
        no_generation_check,
        partial(
            test_pending_offsets.test_a_consumer_that_lost_its_partitions_is_fenced,
            changes={"generation_or_epoch": 0, "member_id": "leader"},
            error=ErrorCode.ILLEGAL_GENERATION,
        ),
    ),
    (
        load_skips_markers,
        partial(test_pending_offsets.test_a_load_knows_what_is_pending, is_commit=True),
    ),
    (
        later_marker_wins_over_later_record,
        test_pending_offsets.test_two_transactions_commit_one_offset,
    ),
    (guard_not_voided_by_a_marker, test_pending_offsets.test_yes_for_a_transaction_that_ended),
    (
        guard_not_voided_by_an_offset,
        test_pending_offsets.test_a_transaction_whose_producer_came_back_does_not_hang,
    ),
    (
        guards_begin_again_at_a_load,
        test_pending_offsets.test_yes_for_a_shard_that_was_loaded_again,
    ),
]


@pytest.mark.parametrize(("plant", "test"), NAMED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_is_noticed(
    plant: Patch, test: Test, monkeypatch: pytest.MonkeyPatch
) -> None:
    test()
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError):
            test()
