"""Planted bugs of the log's handling of its disk: recovery, checkpoints and syncs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

from odradek_broker.log import recovery
from odradek_broker.log.directory import checkpoints
from odradek_broker.log.segments.batch_walk import Header, walk_headers
from odradek_broker.log.segments.segment_list import SegmentList
from odradek_broker.log.storage import DirectoryHealth, File, StorageFailed
from odradek_broker.log.sync_progress import SyncProgress
from odradek_protocol.identity import Offset
from odradek_protocol.records.errors import CorruptBatch
from tests.sim.planted.bug import Bug, replace_in


def _crc_not_checked(stack: ExitStack) -> None:
    def walk(file: File, position: int, end: int) -> Iterator[tuple[int, Header]]:
        with suppress(CorruptBatch):  # the walk ends at a corrupt batch, as `walk_verified` does
            yield from walk_headers(file, position, end)

    replace_in(stack, recovery, "walk_verified", walk)


def _failed_sync_tried_again(stack: ExitStack) -> None:
    def fail(self: Any, what: str, error: OSError) -> StorageFailed:
        return StorageFailed(f"{what}: {error}")

    replace_in(stack, DirectoryHealth, "fail", fail)


def _durable_to_its_end_when_opened(stack: ExitStack) -> None:
    original = SyncProgress.__init__

    def opened(self: SyncProgress, segments: SegmentList, *args: Any, **kwargs: Any) -> None:
        original(self, segments, *args, **kwargs)
        self.durable_end = Offset(segments.active.end_offset)

    replace_in(stack, SyncProgress, "__init__", opened)


def _old_recovery_point_written_during_a_cut(stack: ExitStack) -> None:
    replace_in(stack, checkpoints, "_recovery_point", lambda log: log.recovery_point)


def _directory_not_synced_at_a_roll(stack: ExitStack) -> None:
    replace_in(stack, SyncProgress, "is_directory_dirty", property(lambda self: False))


DISK_BUGS = (
    Bug(number=17, name="CRC not checked at recovery", plant=_crc_not_checked, found_by=5),
    Bug(  # the in-memory storage often keeps what a failed sync did not write, so few seeds fail
        number=18,
        name="write again after a failed fsync",
        plant=_failed_sync_tried_again,
        is_rare=True,
    ),
    Bug(
        number=70,
        name="bytes found at a start count as synced",
        plant=_durable_to_its_end_when_opened,
    ),
    Bug(
        number=71,
        name="old recovery point written during a truncation",
        plant=_old_recovery_point_written_during_a_cut,
    ),
    Bug(
        number=72,
        name="directory not synced at a new segment",
        plant=_directory_not_synced_at_a_roll,
    ),
)
