"""The segments of one log, oldest first; the last one is active.

Readers in threads keep a list that they were given, so a change replaces the list and never modifies it. At most three
closed segments that are synced have open descriptors. Retired segments stay in a second list, with renamed files, until
their delete delay is over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from odradek_broker.compiled import Mutable
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.open_files import OpenFiles
from odradek_broker.log.segments.indexes import AbortedTransaction
from odradek_broker.log.segments.segment import Segment, Suffix
from odradek_broker.log.storage import ErrorClass, Storage, error_class

CLOSED_OPEN_MAX: Final = 3


class _Retired(Mutable):
    """A retired segment whose files are deleted after a delay. `due_ms` is None until the delay has begun."""

    segment: Segment
    delay_ms: int
    due_ms: int | None = None


class SegmentList:
    """The segments of one log: at least one, and each begins at the end offset of the previous one."""

    __slots__ = ("_bases", "_open", "_open_files", "_retired", "active", "all")

    def __init__(self, segments: list[Segment], open_files: OpenFiles) -> None:
        self._open_files = open_files
        for segment in segments:
            segment.close()  # recovery has opened the file; the event loop opens it again when it uses it
        self._put(segments)
        # Closed segments with an open file, the most recently used one last. A tuple, because most logs have no such
        # segment, and an empty list takes 56 bytes.
        self._open: tuple[Segment, ...] = ()
        self._retired: tuple[_Retired, ...] = ()

    @property
    def first_offset(self) -> int:
        return self._bases[0]

    @property
    def bases(self) -> Sequence[int]:
        return self._bases

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.all)

    def since(self, offset: int) -> list[Segment]:
        """Return the segment that contains `offset`, and all later ones."""
        return self.all[max(bisect_right(self._bases, offset) - 1, 0) :]

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap [start_offset, end_offset), in the order of their markers."""
        transactions: list[AbortedTransaction] = []
        for segment in self.since(start_offset):
            for entry in segment.aborted():
                if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                    transactions.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return transactions
        return transactions

    def use(self, segment: Segment, *, may_drop: Callable[[Segment], bool]) -> None:
        """Record that a segment is used. If too many closed segments have open files, close the files of the least
        recently used ones, and remove their indexes from memory if `may_drop` allows it.
        """
        if segment is self.active:
            return
        self._open = (*[other for other in self._open if other is not segment], segment)
        self.close_unused(may_drop=may_drop)

    def close_unused(self, *, may_drop: Callable[[Segment], bool]) -> None:
        """Close the files of the least recently used closed segments, if more than CLOSED_OPEN_MAX closed segments have
        open files. Unsynced files stay open.
        """
        excess = len(self._open) - CLOSED_OPEN_MAX
        if excess <= 0:
            return
        unused = [segment for segment in self._open[:excess] if not segment.is_dirty]
        self._open = tuple([segment for segment in self._open if segment not in unused])
        for segment in unused:
            segment.close()
            if may_drop(segment):
                segment.drop_indexes()

    def begin_next(self, storage: Storage, directory: Path) -> Segment:
        """Begin a new active segment at the end of the old one, and return the old one. If this raises OSError, the
        list has not changed.
        """
        old = self.active
        self._open_files.make_room()
        segment = Segment(storage, directory, old.end_offset)
        segment.create()
        old.seal()
        self.add(segment)
        return old

    def add(self, segment: Segment) -> None:
        """Add a new active segment."""
        self._put([*self.all, segment])

    def replace_all(self, segments: list[Segment]) -> None:
        """Set the segments after a truncation or a reset, and close the segments that were removed."""
        self._release([segment for segment in self.all if segment not in segments])
        for segment in segments:
            if segment.open_files is None:
                segment.close()  # the next read opens it again, so that `OpenFiles` counts its descriptor
        self._put(segments)

    def retire(self, segments: list[Segment], *, delay_ms: int) -> None:
        """Remove closed segments from the log, and rename their files for deletion. Raises OSError."""
        self._rename_away(segments, delay_ms)
        self._put([segment for segment in self.all if segment not in segments])

    def swap(self, old: list[Segment], new: Segment, *, delay_ms: int) -> None:
        """Replace adjacent segments by one compacted segment. Raises OSError."""
        number = self.all.index(old[0])
        assert self.all[number : number + len(old)] == old, [s.base_offset for s in old]
        self._rename_away(old, delay_ms)
        new.rename_files("")
        new.close()
        new.drop_indexes()
        self._put([*self.all[:number], new, *self.all[number + len(old) :]])

    def take_retired(self, *, now_ms: int) -> list[Segment]:
        """Return the retired segments whose files may be deleted now.

        The delay of a segment begins with the first call after it was retired, so that only the caller's monotonic
        clock is used.
        """
        if not self._retired:
            return []
        for retired in self._retired:
            if retired.due_ms is None:
                retired.due_ms = now_ms + retired.delay_ms
        due = [r for r in self._retired if r.due_ms is not None and r.due_ms <= now_ms]
        self._retired = tuple([retired for retired in self._retired if retired not in due])
        return [retired.segment for retired in due]

    def close(self, *, for_good: bool = False) -> None:
        """Close all descriptors. With `for_good`, mark the segments as retired, because the partition was deleted."""
        for segment in self.all:
            segment.is_retired |= for_good
            segment.close()
        self._open = ()

    def _put(self, segments: list[Segment]) -> None:
        for segment in segments:
            if segment.open_files is None:
                segment.be_counted(self._open_files)
        self.all = segments
        self.active = segments[-1]
        self._bases = tuple([segment.base_offset for segment in segments])

    def _rename_away(self, segments: list[Segment], delay_ms: int) -> None:
        for segment in segments:
            segment.is_retired = True
            try:
                segment.rename_files(Suffix.DELETED.value)
            except OSError as error:
                if error_class(error) is ErrorClass.DISK:
                    raise
                # A full disk may have no space even for a longer name, so the files that were not renamed are deleted
                # at once. Readers that have opened a file can still read it.
                segment.remove_files()
                segment.rename_files(Suffix.DELETED.value)  # only sets the mark: no file is left
            self._retired = (*self._retired, _Retired(segment, delay_ms))
        self._release(segments)

    def _release(self, segments: list[Segment]) -> None:
        for segment in segments:
            segment.is_retired = True
            segment.close()
        self._open = tuple([segment for segment in self._open if segment not in segments])


def expired_segments(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    now_ms: int,
    log_start_offset: int,
    last_stable_offset: int,
    high_watermark: int,
) -> tuple[int, bool]:
    """Return how many of the oldest segments may be deleted, and whether the active segment must be closed first.

    Segments are deleted from the oldest on without a hole, and only below the high watermark. Segments below the log
    start offset are deleted whatever `cleanup.policy` is. Age and size apply only with `delete`, and only below the
    last stable offset, because read_committed consumers cannot have read later records. The active segment is deleted
    only by age, if all its records are old enough; it must be closed first. Raises OSError if the modification time of
    a segment without timestamps cannot be read.
    """
    sizes_bytes = sum(segment.size_bytes for segment in segments)
    excess_bytes = sizes_bytes - config.retention_bytes if config.retention_bytes >= 0 else 0
    count = 0
    for segment, successor in pairwise(segments):
        if successor.base_offset > high_watermark:
            return count, False
        is_below = successor.base_offset <= log_start_offset
        is_excess = excess_bytes >= segment.size_bytes > 0
        is_deletable = (
            config.cleanup_delete
            and successor.base_offset <= last_stable_offset
            and (is_excess or _is_old(segment, config, now_ms))
        )
        if not is_below and not is_deletable:
            return count, False
        excess_bytes -= segment.size_bytes
        count += 1
    active = segments[-1]
    if (
        config.cleanup_delete
        and active.size_bytes
        and active.end_offset <= last_stable_offset
        and _is_old(active, config, now_ms)
    ):
        return count + 1, True
    return count, False


def _is_old(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    if config.retention_ms < 0:
        return False
    if segment.size_bytes == 0:
        return True
    return segment.newest_ms() < now_ms - config.retention_ms
