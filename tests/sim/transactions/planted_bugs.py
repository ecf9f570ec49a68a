"""The planted bugs of transactions that seeds look for. Each removes one rule from the production code.

Other tests plant most of these bugs, too, and find them with a schedule.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import pytest

from odradek_broker.coordination.transaction_coordinator import TransactionKind
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.producer_state import ProducerStates
from tests.sim.machine import WALL_BEGINS_MS

Patch = Callable[[pytest.MonkeyPatch], None]
_GROUPS: Final = "tests.unit.groups.test_planted_bugs"
_PARTITIONS: Final = "tests.unit.partition.test_transaction_schedules"
_COORDINATORS: Final = "tests.unit.transactions.test_planted_bugs"
_RUNTIME: Final = "tests.unit.transactions.test_planted_runtime_bugs"


def last_stable_offset_is_the_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark))


def unreplicated_markers_forgotten(patch: pytest.MonkeyPatch) -> None:
    note = ProducerStates.note_marker

    def forget(self: ProducerStates, *args: Any, **kwargs: Any) -> Any:
        aborted = note(self, *args, **kwargs)
        self._unreplicated.clear()
        return aborted

    patch.setattr(ProducerStates, "note_marker", forget)


def transaction_index_forgotten(patch: pytest.MonkeyPatch) -> None:
    note = ProducerStates.note_marker

    def forget(self: ProducerStates, *args: Any, **kwargs: Any) -> None:
        note(self, *args, **kwargs)

    patch.setattr(ProducerStates, "note_marker", forget)


def time_out_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    original = TransactionKind.tick

    def tick(self: TransactionKind, shard: Any, partition: Any) -> Any:
        tick_of_shard = shard.tick

        class ByTheWallClock:
            reserve = shard.reserve

            def tick(self, *, now_ms: int, wall_ms: int, can_write: bool) -> Any:
                now_ms = wall_ms - WALL_BEGINS_MS
                return tick_of_shard(now_ms=now_ms, wall_ms=wall_ms, can_write=can_write)

        return original(self, ByTheWallClock(), partition)  # type: ignore[arg-type]

    patch.setattr(TransactionKind, "tick", tick)


def _of(module: str, name: str) -> Patch:
    """Return a bug that another test plants, too."""
    bug: Patch = getattr(importlib.import_module(module), name)
    return bug


FOUND_BY_SEEDS: Final[list[tuple[int, Patch, int]]] = [
    # Number, function that plants the bug, and a seed that finds it.
    (11, last_stable_offset_is_the_watermark, 0),
    (12, _of(_COORDINATORS, "complete_after_the_first_marker"), 0),
    (40, _of(_RUNTIME, "markers_leave_before_the_decision_is_committed"), 0),
    (41, _of(_PARTITIONS, "no_verification"), 0),
    (48, unreplicated_markers_forgotten, 0),
    (48, transaction_index_forgotten, 0),
    (50, _of(_GROUPS, "pending_offsets_applied_on_abort"), 0),
]
HUNTED: Final[list[tuple[int, Patch]]] = [
    # Bugs that schedules find. `python -m tests.sim.transactions --planted` looks for a seed, too.
    (13, _of(_COORDINATORS, "retry_taken_as_current")),
    (13, _of(_RUNTIME, "late_end_ends_the_next_transaction")),
    (42, _of(_PARTITIONS, "guard_not_voided_by_a_marker")),
    (43, _of(_PARTITIONS, "coordinator_epoch_not_checked")),
    (44, _of(_PARTITIONS, "coordinator_epoch_checked_in_the_entry_only")),
    (45, _of(_PARTITIONS, "repeated_marker_refused")),
    (46, _of(_RUNTIME, "partition_without_leader_is_skipped")),
    (47, _of(_COORDINATORS, "acknowledgement_without_decision_number")),
    (47, _of(_RUNTIME, "acknowledgements_are_matched_by_their_decision_alone")),
    (50, _of(_GROUPS, "pending_offsets_ended_by_any_marker")),
    (51, _of(_GROUPS, "stable_fetch_returns_with_pending_offsets")),
    (52, _of(_GROUPS, "no_generation_check")),
    (53, _of(_GROUPS, "load_skips_markers")),
    (54, _of(_GROUPS, "later_marker_wins_over_later_record")),
    (55, _of(_COORDINATORS, "init_does_not_bump")),
    (57, time_out_by_the_wall_clock),
    (57, _of(_COORDINATORS, "time_out_decided_without_the_appended_decision")),
    (59, _of(_COORDINATORS, "step_completed_without_the_ledger")),
    (60, _of(_COORDINATORS, "abort_of_all_of_the_step")),
    (61, _of(_COORDINATORS, "prepared_member_timed_out")),
    (64, _of(_COORDINATORS, "held_add_answered_before_the_completion")),
]
