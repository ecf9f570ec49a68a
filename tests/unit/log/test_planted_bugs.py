"""Planted bugs: a patch disables one protection of the log, and the test named for it must then
fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from odradek_broker.log import compaction, log_directory, log_jobs, partition_log, recovery, storage
from odradek_broker.log.compaction import CompactJob
from odradek_broker.log.directory.restart_markers import RestartMarkers
from odradek_broker.log.log_directory import LogDirectory
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.segments import segment, swap
from odradek_broker.log.segments.batch_walk import walk_headers
from odradek_broker.log.segments.segment import Segment, Suffix
from odradek_broker.log.storage import DirectoryHealth, ErrorClass, Storage, StorageFailed
from odradek_protocol.identity import Offset
from odradek_protocol.records.control import ControlType
from tests.sim.planted.bug import Bug
from tests.sim.planted.disk_bugs import DISK_BUGS
from tests.unit.log import (
    test_compaction,
    test_compaction_crashes,
    test_errors_of_the_process,
    test_files_at_a_start,
    test_lives,
    test_log_directory,
    test_open_files,
    test_recovery,
    test_retention,
    test_storage_faults,
    test_transactions,
)

pytestmark = pytest.mark.interpreted

Patch = Callable[[pytest.MonkeyPatch], None]


def crc_not_checked_at_recovery(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "walk_verified", walk_headers)


def sync_tried_again_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    def fail(self: DirectoryHealth, what: str, error: OSError) -> StorageFailed:
        return StorageFailed(f"{what}: {error}")

    patch.setattr(DirectoryHealth, "fail", fail)


def name_of_the_data_directory_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_directory, "sync_name", lambda storage, path: None)


def copy_taken_for_the_directory(patch: pytest.MonkeyPatch) -> None:
    begin = RestartMarkers.begin

    def begin_anywhere(self: RestartMarkers, *, lock_inode: int, **named: Any) -> Any:
        return begin(self, lock_inode=0, **named)

    patch.setattr(RestartMarkers, "begin", begin_anywhere)


def transaction_index_taken_for_missing(patch: pytest.MonkeyPatch) -> None:
    """A start treats an existing transaction index like one that was never written."""
    patch.setattr(Segment, "found", lambda self, names: setattr(self, "_aborted", []))


def compaction_up_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark))


def retention_up_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 49: retention deletes up to the high watermark, and not only up to the last
    stable offset.
    """
    original = partition_log.expired_segments

    def expired_segments(*args: Any, high_watermark: int, **kwargs: Any) -> Any:
        kwargs["last_stable_offset"] = high_watermark
        return original(*args, high_watermark=high_watermark, **kwargs)

    patch.setattr(partition_log, "expired_segments", expired_segments)


def marker_goes_with_the_last_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CompactJob, "_note_kept", lambda job, header: None)


def transaction_index_not_synced(patch: pytest.MonkeyPatch) -> None:
    original = Segment._write_tail

    def write(self: Segment, suffix: Suffix, *args: Any, sync: bool) -> None:
        original(self, suffix, *args, sync=sync and suffix is not Suffix.TXN_INDEX)

    patch.setattr(Segment, "_write_tail", write)


def name_of_a_transaction_index_not_synced(patch: pytest.MonkeyPatch) -> None:
    original = Segment.write_indexes

    def write(self: Segment, *, sync: bool) -> bool:
        original(self, sync=sync)
        return False

    patch.setattr(Segment, "write_indexes", write)


def transaction_index_believed_after_a_power_cut(patch: pytest.MonkeyPatch) -> None:
    original = recovery.Recovery._check_transaction_index

    def check(self: Any, *args: Any, is_doubtful: bool) -> None:
        original(self, *args, is_doubtful=False)

    patch.setattr(recovery.Recovery, "_check_transaction_index", check)


def cut_restores_producers_from_above_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 48: a truncation restores producers from a snapshot above the high watermark."""
    original = log_jobs.read_newest_snapshot

    def read(*args: Any, offset_max: Offset) -> Any:
        return original(*args, offset_max=Offset(1 << 62))

    patch.setattr(log_jobs, "read_newest_snapshot", read)


def compacted_segment_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction, "_sync", lambda new: new.write_indexes(sync=False))


def compaction_goes_on_past_a_run_that_expired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CompactJob, "_give_up", lambda job: None)


def damaged_swap_taken_for_whole(patch: pytest.MonkeyPatch) -> None:
    def end_offset(storage: Storage, path: Path, base_offset: int) -> int:
        file = storage.open(path)
        headers = [header for _, header in walk_headers(file, 0, file.size_bytes())]
        file.close()
        return headers[-1].last_offset + 1

    patch.setattr(swap, "_end_offset", end_offset)


def log_file_retired_after_its_indexes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segment, "_LOG_FIRST", segment._LOG_LAST)


def old_index_taken_for_that_of_the_new_segment(patch: pytest.MonkeyPatch) -> None:
    """A start takes the files with final names for new ones as soon as the old `.log` is gone."""
    patch.setattr(swap, "_has_old_names", lambda storage, directory, base_offset: False)


def new_segment_used_though_the_old_ones_expired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(swap, "_is_expired", lambda bases, end_offset: False)


def log_start_left_to_the_checkpoint(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partition_log, "write_log_start", lambda *args: None)


def dirty_file_closed_without_a_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "sync", lambda self: None)


def failed_sync_kept_from_the_directory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogDirectory, "__init__", _without_hook(LogDirectory.__init__))


def _without_hook(original: Callable[..., None]) -> Callable[..., None]:
    def init(self: LogDirectory, **kwargs: Any) -> None:
        original(self, **kwargs)
        kwargs["storage"].open_files.on_sync_failed = None

    return init


def every_error_counts_as_the_disks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(storage, "error_class", lambda error: ErrorClass.DISK)


def read_without_a_descriptor() -> None:
    test_errors_of_the_process.test_a_read_that_finds_no_descriptor_fails_alone("EMFILE")


def call_without_a_descriptor() -> None:
    test_errors_of_the_process.test_an_error_that_is_not_the_disks_is_taken_back_at_any_call_and_ends_nothing(
        "EMFILE", "once"
    )


def records_bits() -> None:
    test_recovery.test_the_log_ends_before_the_first_batch_with_a_wrong_bit(75)


NAMED: list[tuple[Patch, Callable[[], None]]] = [
    (crc_not_checked_at_recovery, records_bits),
    (
        sync_tried_again_after_a_failure,
        test_storage_faults.test_a_failed_sync_is_never_tried_again,
    ),
    (
        name_of_the_data_directory_not_synced,
        test_lives.test_a_directory_that_was_formatted_by_a_killed_process_is_there_after_a_power_cut,
    ),
]

NAMED += [
    (
        copy_taken_for_the_directory,
        test_log_directory.test_the_lock_file_tells_a_copy_from_the_directory,
    ),
    (log_start_left_to_the_checkpoint, test_lives.test_a_kill_does_not_undo_delete_records),
    (
        compaction_up_to_the_high_watermark,
        partial(
            test_transactions.test_a_transaction_whose_marker_is_not_replicated_is_not_compacted,
            ControlType.COMMIT,
        ),
    ),
    (
        retention_up_to_the_high_watermark,
        test_transactions.test_retention_stops_at_the_last_stable_offset_and_delete_records_does_not,
    ),
    (
        compaction_goes_on_past_a_run_that_expired,
        test_compaction.test_a_deleted_key_stays_deleted_though_a_segment_expires_during_the_compaction,
    ),
    (
        compacted_segment_not_synced,
        partial(test_compaction_crashes.test_a_crash_at_any_step_of_a_swap_loses_nothing, "power"),
    ),
    (
        damaged_swap_taken_for_whole,
        partial(
            test_compaction_crashes.test_a_compacted_segment_that_the_disk_damaged_is_given_up, -1
        ),
    ),
    (
        marker_goes_with_the_last_record,
        partial(
            test_transactions.test_a_marker_stays_while_an_emptied_batch_of_its_transaction_does,
            ControlType.ABORT,
        ),
    ),
    (
        transaction_index_not_synced,
        test_transactions.test_an_abort_of_a_segment_that_was_closed_since_is_known_after_a_power_cut,
    ),
    (
        name_of_a_transaction_index_not_synced,
        test_transactions.test_an_abort_of_a_segment_that_was_closed_since_is_known_after_a_power_cut,
    ),
    (
        transaction_index_believed_after_a_power_cut,
        test_transactions.test_a_transaction_index_that_was_not_synced_is_made_again_after_a_power_cut,
    ),
    (
        transaction_index_taken_for_missing,
        test_files_at_a_start.test_an_abort_below_the_recovery_point_of_the_active_segment_is_known_after_a_kill,
    ),
    (
        cut_restores_producers_from_above_the_high_watermark,
        test_transactions.test_a_cut_forgets_no_marker_that_is_not_replicated,
    ),
]


HIDES_NOTHING = test_compaction_crashes.test_a_crash_at_any_step_of_a_swap_hides_no_committed_record
NAMED += [
    (
        log_file_retired_after_its_indexes,
        partial(
            test_retention.test_a_kill_while_segments_are_deleted_shows_no_aborted_record, False
        ),
    ),
    (old_index_taken_for_that_of_the_new_segment, partial(HIDES_NOTHING, "full disk")),
    (new_segment_used_though_the_old_ones_expired, partial(HIDES_NOTHING, "expired")),
]


NAMED += [
    (
        dirty_file_closed_without_a_sync,
        test_open_files.test_no_descriptor_of_unsynced_bytes_is_closed_before_a_sync,
    ),
    (
        failed_sync_kept_from_the_directory,
        test_open_files.test_a_read_that_needs_the_descriptor_hides_no_error_of_writing_back,
    ),
    (every_error_counts_as_the_disks, read_without_a_descriptor),
    (every_error_counts_as_the_disks, call_without_a_descriptor),
]


@pytest.mark.parametrize(("bug", "test"), NAMED, ids=[bug.__name__ for bug, _ in NAMED])
def test_the_named_test_catches_the_bug(
    monkeypatch: pytest.MonkeyPatch, bug: Patch, test: Callable[[], None]
) -> None:
    test()
    bug(monkeypatch)
    with pytest.raises((AssertionError, StorageFailed, pytest.fail.Exception)):
        test()


OF_THE_SIMULATOR: dict[int, Callable[[], None]] = {
    70: lambda: test_lives.test_what_a_killed_life_never_synced_the_next_does_not_vouch_for(False),
    71: test_lives.test_a_checkpoint_while_a_cut_is_under_way_does_not_write_the_old_recovery_point,
    72: test_lives.test_a_stop_syncs_the_name_of_a_segment_that_an_unfinished_sync_was_to_sync,
}


@pytest.mark.parametrize("bug", [b for b in DISK_BUGS if b.number >= 70], ids=lambda bug: bug.name)
def test_the_named_test_catches_the_bug_of_the_simulator(bug: Bug) -> None:
    test = OF_THE_SIMULATOR[bug.number]
    test()
    with bug.planted(), pytest.raises(AssertionError):
        test()
