"""Planted bugs: a patch disables one protection of the quorum, and the test named for it must then
fail.

A test that passes without the protection proves nothing about it. Random faults find some of the
bugs as well (`CHAOS`); 30 seeds did not find the others, so these have schedules of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from odradek_metadata_quorum.network import outbox, wire
from odradek_metadata_quorum.network.outbox import Outbox
from odradek_metadata_quorum.raft.elections import Elections, LoopTurns, PreVote, ReadIndex
from odradek_metadata_quorum.raft.joining import JoinRound
from odradek_metadata_quorum.raft.log_matching import LogMatching
from odradek_metadata_quorum.raft.replicated_state import ReplicatedState
from odradek_metadata_quorum.raft.replication import Replication
from odradek_metadata_quorum.raft.shell import StateMachine
from odradek_metadata_quorum.raft.snapshots import SnapshotReceiving
from odradek_metadata_quorum.storage.disk import DiskThread
from odradek_metadata_quorum.storage.snapshot_store import SnapshotStore
from odradek_metadata_quorum.storage.write_ahead_log import WriteAheadLog
from odradek_metadata_quorum.storage.write_barrier import WriteBarrier
from tests.sim.quorum.chaos import Chaos
from tests.unit.quorum import (
    test_committed_entries,
    test_disk_queue,
    test_elections,
    test_joining,
    test_raft_rules,
    test_read_index,
    test_snapshot_store,
    test_snapshot_transfer,
    test_write_barrier,
)

Patch = Callable[[pytest.MonkeyPatch], None]


def no_write_barrier(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outbox, "_may_leave", lambda self, needed: True)


def volatile_vote(patch: pytest.MonkeyPatch) -> None:
    def note_vote(self: WriteBarrier, term: int, vote: int | None) -> None:
        self.term, self.vote = term, vote

    patch.setattr(WriteBarrier, "note_vote", note_vote)


def acknowledgements_without_term(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replication, "_is_current", lambda self, message: self._engine.is_leader)


def no_prefix_match(patch: pytest.MonkeyPatch) -> None:
    def skip_nothing(self: Any, message: dict[str, Any]) -> None:
        message["commit_index"] = self._proven_commit(message)

    patch.setattr(LogMatching, "_skip_matching", skip_nothing)


def commit_index_taken_at_its_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        LogMatching, "_proven_commit", staticmethod(lambda message: message["commit_index"])
    )


def tail_thrown_away_on_snapshot_load(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ReplicatedState,
        "_keep_tail",
        lambda self, snapshot: self._log.reset(snapshot.offset, snapshot.epoch),
    )
    load = ReplicatedState.load

    def load_and_reset(
        machine: StateMachine, snapshots: SnapshotStore, log: WriteAheadLog
    ) -> tuple[int, int]:
        offset, epoch = load(machine, snapshots, log)
        if snapshots.current is not None:
            log.reset(offset, epoch)
        return offset, epoch

    patch.setattr(ReplicatedState, "load", staticmethod(load_and_reset))


def apply_errors_passed_over(patch: pytest.MonkeyPatch) -> None:
    def pass_over(self: Any, index: int, error: Exception) -> None:
        self._engine.applied = index

    patch.setattr(ReplicatedState, "_apply_failed", pass_over)


def votes_counted_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Elections, "_is_first_vote", lambda self, term, peer_id: True)


def votes_deduplicated_without_term(patch: pytest.MonkeyPatch) -> None:
    """A voter's vote is counted once for all terms, because a new term does not clear the mark."""

    def count(self: Any, peer_id: int, message: dict[str, Any]) -> None:
        if (0, peer_id) not in self._votes:
            self._votes.add((0, peer_id))
            self._engine.receive(peer_id, message)

    patch.setattr(Elections, "on_response_vote", count)


def no_pre_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Elections, "may_campaign", lambda self: self.may_vote)


def commit_index_from_snapshot_chunk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        SnapshotReceiving, "_commit_of_chunk", staticmethod(lambda message: message["offset"])
    )


def stale_snapshot_replaces_newer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicatedState, "is_stale", lambda self, snapshot: False)
    patch.setattr(SnapshotStore, "_is_newer", staticmethod(lambda snapshot, old: True))


def second_sync_passes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DiskThread, "_fail", lambda self, error: None)


def empty_voter_votes(patch: pytest.MonkeyPatch) -> None:
    always = property(lambda self: True, lambda self, value: None)
    patch.setattr(Elections, "may_vote", always, raising=False)


def no_floor_for_a_wiped_voter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JoinRound, "floor", property(lambda self: 0))


def own_stall_is_silence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Elections, "_forgive", lambda self, stall_s: None)


def silence_judged_before_reading(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LoopTurns, "read_until_s", lambda self, now_s: now_s)


def every_timer_begins_a_round(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PreVote, "is_running", lambda self, since_s: False)


def no_candidate_stands_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PreVote, "yields_to", lambda self, other, own: False)


def vote_given_is_no_leader_heard(patch: pytest.MonkeyPatch) -> None:
    nothing = property(lambda self: False, lambda self, value: None)
    patch.setattr(Elections, "_vote_leaves", nothing, raising=False)


def unnamed(kind: str) -> Patch:
    """Return a bug that sends messages of this kind before the entries that they name are on
    disk.
    """

    def names_nothing(patch: pytest.MonkeyPatch) -> None:
        named_index = outbox._named_index

        def named(message: dict[str, Any]) -> int:
            return 0 if message["type"] == kind else named_index(message)

        patch.setattr(outbox, "_named_index", named)

    names_nothing.__name__ = f"{kind}_waits_for_no_entry"
    return names_nothing


def heartbeat_names_an_unsynced_entry(patch: pytest.MonkeyPatch) -> None:
    def heartbeat(self: Any, peer_id: int) -> dict[str, Any]:
        _, last_index, last_term = self._engine.log.entries[-1]
        return {
            "type": wire.APPEND_ENTRIES,
            "term": self._engine.term,
            "commit_index": self._engine.commit_index,
            "entries": [],
            "prevLogIdx": last_index,
            "prevLogTerm": last_term,
        }

    patch.setattr(Replication, "_heartbeat", heartbeat)
    named_index = outbox._named_index
    patch.setattr(
        outbox,
        "_named_index",
        lambda message: named_index(message) if message.get("entries", True) else 0,
    )


def vote_leaves_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WriteBarrier, "needed_for_vote", lambda self: 0)


def write_under_way_vouches_for_later_entries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WriteBarrier, "needed_for_index", lambda self, index: self._writing or 0)


def leadership_confirmed_by_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Elections,
        "confirm_leadership",
        lambda self, confirmed: confirmed(self._engine.is_leader),
    )


def any_answer_confirms(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ReadIndex,
        "agree",
        lambda self, peer_id, number: (self._agreed.add(peer_id), self._conclude()),
    )


def forgetful_voter_confirms(patch: pytest.MonkeyPatch) -> None:
    always = property(lambda self: True, lambda self, value: None)
    patch.setattr(Elections, "may_vote", always, raising=False)


DIRECTED: list[tuple[Patch, Callable[[], Any]]] = [
    (leadership_confirmed_by_itself, test_read_index.test_a_deposed_leader_answers_no_read),
    (
        any_answer_confirms,
        test_read_index.test_only_answers_to_this_round_from_within_the_term_confirm,
    ),
    (
        forgetful_voter_confirms,
        test_read_index.test_a_voter_that_may_have_forgotten_a_vote_confirms_nobody,
    ),
    (no_write_barrier, test_write_barrier.test_at_every_message_the_disk_vouches_for_what_it_says),
    (
        no_write_barrier,
        test_write_barrier.test_a_vote_is_not_given_twice_when_the_power_goes_as_it_leaves,
    ),
    (
        no_write_barrier,
        test_write_barrier.test_an_entry_is_not_forgotten_when_the_power_goes_as_its_acknowledgement_leaves,
    ),
    (
        volatile_vote,
        test_write_barrier.test_a_vote_is_not_given_twice_when_the_power_goes_as_it_leaves,
    ),
    (
        acknowledgements_without_term,
        test_raft_rules.test_an_acknowledgement_of_an_earlier_term_commits_nothing,
    ),
    (no_prefix_match, test_raft_rules.test_a_repeated_message_cuts_nothing_that_follows_it),
    (
        commit_index_taken_at_its_word,
        test_committed_entries.test_a_heartbeat_commits_no_further_than_what_it_proves,
    ),
    (
        tail_thrown_away_on_snapshot_load,
        test_snapshot_transfer.test_an_installed_snapshot_acknowledges_its_own_index_and_keeps_the_tail,
    ),
    (
        tail_thrown_away_on_snapshot_load,
        test_raft_rules.test_a_restart_keeps_the_entries_behind_its_snapshot,
    ),
    (
        apply_errors_passed_over,
        test_raft_rules.test_an_entry_that_cannot_be_applied_ends_the_process,
    ),
    (votes_counted_again, test_elections.test_a_vote_counts_once),
    (
        votes_deduplicated_without_term,
        test_elections.test_a_late_vote_of_the_last_term_does_not_eat_the_real_one,
    ),
    (no_pre_vote, test_elections.test_an_isolated_voter_returns_without_deposing_the_leader),
    (
        commit_index_from_snapshot_chunk,
        test_snapshot_transfer.test_snapshot_chunks_commit_nothing_of_an_unverified_tail,
    ),
    (
        stale_snapshot_replaces_newer,
        test_snapshot_transfer.test_an_old_snapshot_sent_again_rolls_nothing_back,
    ),
    (
        stale_snapshot_replaces_newer,
        test_snapshot_store.test_a_stale_snapshot_received_whole_replaces_nothing,
    ),
    (
        empty_voter_votes,
        test_joining.test_an_empty_voter_gives_no_vote_and_no_consent_and_does_not_campaign,
    ),
    (
        no_floor_for_a_wiped_voter,
        test_joining.test_a_wiped_voter_cannot_vote_again_in_a_term_it_voted_in,
    ),
    (own_stall_is_silence, test_elections.test_a_stall_of_its_own_deposes_no_leader),
    (
        silence_judged_before_reading,
        test_elections.test_what_came_during_a_stall_is_read_before_silence_is_judged,
    ),
    (
        every_timer_begins_a_round,
        test_elections.test_an_answer_that_takes_longer_than_the_timer_still_counts,
    ),
    (
        no_candidate_stands_back,
        test_elections.test_a_candidate_stands_back_for_a_better_one_that_asks_at_the_same_time,
    ),
    (
        vote_given_is_no_leader_heard,
        test_elections.test_a_vote_counts_as_hearing_a_leader_from_when_it_leaves,
    ),
    (
        unnamed(wire.NEXT_NODE_IDX),
        test_write_barrier.test_at_every_message_the_disk_vouches_for_what_it_says,
    ),
    (
        unnamed(wire.APPEND_ENTRIES),
        test_write_barrier.test_at_every_message_the_disk_vouches_for_what_it_says,
    ),
    (
        heartbeat_names_an_unsynced_entry,
        test_write_barrier.test_at_every_message_the_disk_vouches_for_what_it_says,
    ),
    (
        vote_leaves_before_it_is_durable,
        test_write_barrier.test_at_every_message_the_disk_vouches_for_what_it_says,
    ),
    (
        write_under_way_vouches_for_later_entries,
        test_write_barrier.test_at_every_message_the_disk_vouches_for_what_it_says,
    ),
]


@pytest.mark.parametrize(
    ("bug", "test"), DIRECTED, ids=[f"{bug.__name__}-{test.__name__}" for bug, test in DIRECTED]
)
def test_the_named_test_catches_the_bug(
    monkeypatch: pytest.MonkeyPatch, bug: Patch, test: Callable[[], Any]
) -> None:
    test()
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        test()


async def test_the_disk_queue_test_catches_a_second_sync_that_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    second_sync_passes(monkeypatch)
    with pytest.raises(AssertionError):
        await test_disk_queue.test_a_second_sync_after_a_failed_one_never_passes()
    await asyncio.sleep(0)


CHAOS: list[tuple[Patch, int]] = [  # the bug, and within how many seeds random faults find it too
    (leadership_confirmed_by_itself, 20),
    (no_write_barrier, 20),
    (tail_thrown_away_on_snapshot_load, 20),
    (no_prefix_match, 20),
    (commit_index_from_snapshot_chunk, 20),
]


@pytest.mark.parametrize(("bug", "seeds"), CHAOS, ids=[bug.__name__ for bug, _ in CHAOS])
def test_chaos_finds_the_bug(monkeypatch: pytest.MonkeyPatch, bug: Patch, seeds: int) -> None:
    bug(monkeypatch)
    for seed in range(seeds):
        try:
            Chaos(seed).run()
        except AssertionError:
            return
    pytest.fail(f"{bug.__name__} went unnoticed for {seeds} seeds")
