"""The segments of one log, oldest first; the last one is active.

Readers in threads take a slice and keep it: a change puts a new list in place of the old one. At
most three closed segments hold descriptors, so a partition has four at most; retired segments wait
here, renamed, until their files may be removed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.segments.indexes import AbortedTransaction
from odradek_broker.log.segments.segment import Segment, Suffix
from odradek_broker.log.storage import ErrorClass, Storage, error_class

CLOSED_OPEN_MAX: Final = 3


@dataclass(slots=True, eq=False)
class _Retired:
    """A segment whose files wait to be removed."""

    segment: Segment
    delay_ms: int
    due_ms: int | None = None


class SegmentList:
    """At least one segment, each beginning where the one before ends."""

    __slots__ = ("_bases", "_open", "_retired", "active", "all")

    def __init__(self, segments: list[Segment]) -> None:
        self.all = segments
        self.active = segments[-1]
        self._bases = [segment.base_offset for segment in segments]
        self._open: list[Segment] = []  # closed ones with a descriptor, last used last
        self._retired: list[_Retired] = []

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
        """The segment that holds `offset`, and those after it."""
        return self.all[max(bisect_right(self._bases, offset) - 1, 0) :]

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those that overlap [start_offset, end_offset), in the order of their markers."""
        found: list[AbortedTransaction] = []
        for segment in self.since(start_offset):
            for entry in segment.aborted():
                if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                    found.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return found
        return found

    def use(self, segment: Segment, *, may_drop: Callable[[Segment], bool]) -> None:
        """A closed segment is wanted: close the one that was not for the longest time, and drop
        its indexes from memory if `may_drop` says that its files have them."""
        if segment is self.active:
            return
        if segment in self._open:
            self._open.remove(segment)
        self._open.append(segment)
        while len(self._open) > CLOSED_OPEN_MAX:
            oldest = self._open.pop(0)
            oldest.close()
            if may_drop(oldest):
                oldest.drop_indexes()

    def begin_next(self, storage: Storage, directory: Path) -> Segment:
        """Begin a new active segment where the old one ends, which is returned. Raises OSError, and
        nothing has changed then."""
        old = self.active
        segment = Segment(storage, directory, old.end_offset)
        segment.create()
        old.seal()
        self.add(segment)
        return old

    def add(self, segment: Segment) -> None:
        """A new active segment."""
        self._put([*self.all, segment])

    def replace_all(self, segments: list[Segment]) -> None:
        """What a cut or a reset left; those that are not in it any more are closed."""
        self._release([segment for segment in self.all if segment not in segments])
        self._put(segments)

    def retire(self, segments: list[Segment], *, delay_ms: int) -> None:
        """Take closed segments out and rename their files. Raises OSError."""
        self._rename_away(segments, delay_ms)
        self._put([segment for segment in self.all if segment not in segments])

    def swap(self, old: list[Segment], new: Segment, *, delay_ms: int) -> None:
        """Put one compacted segment in the place of neighbours. Raises OSError."""
        number = self.all.index(old[0])
        assert self.all[number : number + len(old)] == old, [s.base_offset for s in old]
        self._rename_away(old, delay_ms)
        new.rename_files("")
        new.close()
        new.drop_indexes()
        self._put([*self.all[:number], new, *self.all[number + len(old) :]])

    def take_retired(self, *, now_ms: int) -> list[Segment]:
        """Segments whose files may be removed now: their delay began when they were first asked for,
        so that only the clock of whoever asks counts, which must not jump."""
        for retired in self._retired:
            if retired.due_ms is None:
                retired.due_ms = now_ms + retired.delay_ms
        due = [r for r in self._retired if r.due_ms is not None and r.due_ms <= now_ms]
        self._retired = [retired for retired in self._retired if retired not in due]
        return [retired.segment for retired in due]

    def close(self, *, for_good: bool = False) -> None:
        """Give back all descriptors; `for_good`: the partition was deleted."""
        for segment in self.all:
            segment.is_retired |= for_good
            segment.close()
        self._open = []

    def _put(self, segments: list[Segment]) -> None:
        self.all = segments
        self.active = segments[-1]
        self._bases = [segment.base_offset for segment in segments]

    def _rename_away(self, segments: list[Segment], delay_ms: int) -> None:
        for segment in segments:
            segment.is_retired = True
            try:
                segment.rename_files(Suffix.DELETED.value)
            except OSError as error:
                if error_class(error) is ErrorClass.DISK:
                    raise
                segment.remove_files()  # a longer name takes room, too; who reads it has it open
                continue
            self._retired.append(_Retired(segment, delay_ms))
        self._release(segments)

    def _release(self, segments: list[Segment]) -> None:
        for segment in segments:
            segment.is_retired = True
            segment.close()
            if segment in self._open:
                self._open.remove(segment)


def expired_segments(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    now_ms: int,
    log_start_offset: int,
    last_stable_offset: int,
    high_watermark: int,
) -> tuple[int, bool]:
    """(how many of the oldest segments may go, whether to roll first so that all of these may).

    Nothing at or above the high watermark goes, and nothing whose successor may not go either: a
    log has no holes. Segments below the log start offset go whatever `cleanup.policy` says; age and
    size count with `delete` only, and below the last stable offset: nobody who reads committed records
    could see the rest yet. The active segment goes only by age, when nothing in it is young.
    Raises OSError, if a segment without timestamps cannot be asked for its file's.
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
