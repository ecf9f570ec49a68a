"""Planted bugs: a patch removes one sync of the quorum's storage, or one check of a format's
version, and a test or random faults must then fail.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from odradek_metadata_quorum.errors import QuorumError
from odradek_metadata_quorum.raft import replicated_state
from odradek_metadata_quorum.raft.log_matching import LogMatching
from odradek_metadata_quorum.raft.replicated_state import ReplicatedState
from odradek_metadata_quorum.raft.replication import Replication, SendWindow
from odradek_metadata_quorum.storage import log_recovery, snapshot_store, vote_file
from odradek_metadata_quorum.storage.log_recovery import LastSegment
from odradek_metadata_quorum.storage.snapshot_store import SnapshotStore
from odradek_metadata_quorum.storage.vote_file import VoteFile
from odradek_metadata_quorum.storage.write_ahead_log import WriteAheadLog
from tests.sim.quorum.chaos import Chaos
from tests.sim.quorum.simulated_disk import SimulatedDisk, SimulatedFile
from tests.unit.quorum import (
    test_hung_disks,
    test_interrupted_writes,
    test_later_formats,
    test_snapshots_without_room,
    test_vote_file,
    test_write_barrier,
)

Patch = Callable[[pytest.MonkeyPatch], None]


def log_not_made_durable_at_opening(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WriteAheadLog, "_make_durable", lambda self, last_write_offset: None)


def log_only_synced_at_opening(patch: pytest.MonkeyPatch) -> None:
    """When the log is opened, it is synced but not written again.

    If the last sync before failed, this sync has nothing to write, and proves nothing.
    """

    def make_durable(self: Any, last_write_offset: int) -> None:
        self._file.sync()
        self._disk.sync_directory()

    patch.setattr(WriteAheadLog, "_make_durable", make_durable)


def directory_not_synced_at_opening(patch: pytest.MonkeyPatch) -> None:
    sync_directory = SimulatedDisk.sync_directory
    opening = False

    def sync_unless_opening(self: SimulatedDisk) -> None:
        if not opening:
            sync_directory(self)

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        def opened(*arguments: Any, **named: Any) -> None:
            nonlocal opening
            opening = True
            try:
                original(*arguments, **named)
            finally:
                opening = False

        return opened

    patch.setattr(SimulatedDisk, "sync_directory", sync_unless_opening)
    patch.setattr(WriteAheadLog, "_make_durable", wrap(WriteAheadLog._make_durable))
    patch.setattr(SnapshotStore, "__init__", wrap(SnapshotStore.__init__))


def vote_not_made_durable_at_opening(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VoteFile, "_make_durable", lambda self: None)


def vote_only_synced_at_opening(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VoteFile, "_make_durable", lambda self: self._file.sync())


def vote_in_one_slot(patch: pytest.MonkeyPatch) -> None:
    def write(self: Any, sequence: int, term: int, vote: int | None) -> None:
        self._file.write(vote_file._encode(sequence, term, vote), sequence % 2 * 4096)
        self._file.sync()

    patch.setattr(VoteFile, "_write", write)


def _without_sync_of(patch: pytest.MonkeyPatch, prefix: str) -> None:
    sync = SimulatedFile.sync

    def sync_others(self: SimulatedFile) -> None:
        if not self._name.startswith(prefix):
            sync(self)

    patch.setattr(SimulatedFile, "sync", sync_others)


def vote_not_synced(patch: pytest.MonkeyPatch) -> None:
    _without_sync_of(patch, "vote")


def snapshot_named_before_it_is_synced(patch: pytest.MonkeyPatch) -> None:
    _without_sync_of(patch, "writing-snapshot")


def received_snapshot_named_before_it_is_synced(patch: pytest.MonkeyPatch) -> None:
    _without_sync_of(patch, "receiving-snapshot")


def _without_directory_sync_after(patch: pytest.MonkeyPatch, call: str) -> None:
    sync_directory = SimulatedDisk.sync_directory

    def sync_after_others(self: SimulatedDisk) -> None:
        if not self.call_names[-1].startswith(call):
            sync_directory(self)

    patch.setattr(SimulatedDisk, "sync_directory", sync_after_others)


def segments_name_not_synced(patch: pytest.MonkeyPatch) -> None:
    _without_directory_sync_after(patch, "sync log-")


def last_segment_not_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LastSegment, "save", lambda self, position: None)


def later_segment_taken_for_damage(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_recovery, "segment_version", lambda data: None)


def unknown_entry_passed_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replicated_state, "COMMAND_NO_OP", b"\2")


def large_snapshot_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicatedState, "_may_store", staticmethod(lambda size, size_max: True))


def full_disk_is_the_disks_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(snapshot_store, "_full_disk_is_no_failure", lambda abandon: nullcontext())


def window_ends_at_the_own_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SendWindow, "sent", lambda self, entries: None)


def full_window_not_probed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replication, "_probe", lambda self, peer_ids: None)


def follower_takes_all_it_is_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogMatching, "_unsynced_bytes_max", lambda self: 1 << 60)


def _killed(begin: Callable[[], Any]) -> Callable[[], None]:
    def test() -> None:
        test_interrupted_writes.test_a_life_after_a_kill_within_a_disk_job_vouches_for_durable_bytes_only(
            begin
        )

    test.__name__ = f"killed_while_{begin.__name__}"
    return test


def _failed(begin: Callable[[], Any], prefix: str) -> Callable[[], None]:
    def test() -> None:
        test_interrupted_writes.test_what_a_failed_sync_left_in_the_page_cache_is_written_again(
            begin, prefix
        )

    test.__name__ = f"sync_failed_while_{begin.__name__}"
    return test


def _later_segment() -> None:
    test_later_formats.test_a_segment_of_a_later_format_is_refused_as_that_and_stays(-1, b"ODF2")


DIRECTED: list[tuple[Patch, Callable[[], None]]] = [
    (log_not_made_durable_at_opening, _killed(test_interrupted_writes.appending)),
    (log_not_made_durable_at_opening, _killed(test_interrupted_writes.rolling)),
    (
        log_not_made_durable_at_opening,
        test_interrupted_writes.test_a_log_that_goes_on_in_another_segment_after_a_kill_opens_after_a_power_cut,
    ),
    (log_only_synced_at_opening, _failed(test_interrupted_writes.appending, "log-")),
    (log_only_synced_at_opening, _failed(test_interrupted_writes.rolling, "log-")),
    (directory_not_synced_at_opening, _killed(test_interrupted_writes.rolling)),
    (directory_not_synced_at_opening, _killed(test_interrupted_writes.receiving_a_snapshot)),
    (directory_not_synced_at_opening, _killed(test_interrupted_writes.joining)),
    (vote_not_made_durable_at_opening, _killed(test_interrupted_writes.voting)),
    (vote_only_synced_at_opening, _failed(test_interrupted_writes.voting, "vote")),
    (vote_in_one_slot, test_vote_file.test_a_flipped_bit_takes_no_vote_away),
    (vote_not_synced, test_write_barrier.test_at_every_message_the_disk_vouches_for_what_it_says),
    (
        vote_not_synced,
        test_write_barrier.test_a_vote_is_not_given_twice_when_the_power_goes_as_it_leaves,
    ),
    (last_segment_not_noted, test_later_formats.test_a_missing_last_segment_is_noticed),
    (
        last_segment_not_noted,
        test_later_formats.test_a_last_segment_that_was_durable_is_not_removed_as_half_started,
    ),
    (
        window_ends_at_the_own_queue,
        test_hung_disks.test_a_follower_whose_disk_hangs_is_sent_no_more_than_a_window,
    ),
    (
        full_window_not_probed,
        test_hung_disks.test_a_window_that_was_lost_on_the_way_is_sent_again,
    ),
    (
        follower_takes_all_it_is_sent,
        test_hung_disks.test_a_hung_follower_takes_a_few_windows_at_most_from_a_leader_that_knows_none,
    ),
    (
        large_snapshot_stored,
        test_snapshots_without_room.test_a_snapshot_above_the_limit_is_not_stored_and_its_voters_keep_their_logs,
    ),
    (
        full_disk_is_the_disks_failure,
        test_snapshots_without_room.test_a_received_snapshot_without_room_is_taken_when_there_is_some,
    ),
    (later_segment_taken_for_damage, _later_segment),
    (
        unknown_entry_passed_over,
        test_later_formats.test_an_entry_of_an_unknown_kind_ends_the_process_and_is_not_passed_over,
    ),
    (
        segments_name_not_synced,
        test_interrupted_writes.test_a_log_that_goes_on_in_another_segment_after_a_kill_opens_after_a_power_cut,
    ),
]


@pytest.mark.parametrize(
    ("bug", "test"), DIRECTED, ids=[f"{bug.__name__}-{test.__name__}" for bug, test in DIRECTED]
)
def test_the_named_test_catches_the_bug(
    monkeypatch: pytest.MonkeyPatch, bug: Patch, test: Callable[[], None]
) -> None:
    test()
    bug(monkeypatch)
    with pytest.raises((AssertionError, QuorumError, FileNotFoundError, pytest.fail.Exception)):
        test()


SEEDS_MAX = 25
CHAOS: list[Patch] = [
    log_not_made_durable_at_opening,
    log_only_synced_at_opening,
    vote_not_made_durable_at_opening,
    vote_not_synced,
    snapshot_named_before_it_is_synced,
    received_snapshot_named_before_it_is_synced,
    segments_name_not_synced,
]


@pytest.mark.parametrize("bug", CHAOS)
def test_chaos_finds_the_bug(monkeypatch: pytest.MonkeyPatch, bug: Patch) -> None:
    bug(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            Chaos(seed).run()
        except (AssertionError, QuorumError, FileNotFoundError):
            return
    pytest.fail(f"{bug.__name__} went unnoticed for {SEEDS_MAX} seeds")
