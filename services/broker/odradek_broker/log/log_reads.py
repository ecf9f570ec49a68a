"""Reading a range of a partition's log: decided on the loop, run there or in the pool.

Most readers want the tail, which is in memory, or what the page cache holds, which costs a copy;
those reads run at once. A read that would wait for the disk is handed to a pool thread. It opens
its own file: the segment may be closed, cut or deleted meanwhile, and then it finds nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from odradek_broker.log.segments.batch_walk import Header, header_at, walk_headers
from odradek_broker.log.segments.segment import Segment, Suffix
from odradek_broker.log.storage import (
    DamagedContent,
    DirectoryHealth,
    File,
    FileSlice,
    LogDamaged,
    Storage,
)
from odradek_protocol.identity import Offset
from odradek_protocol.records.batch_header import ATTRIBUTES_AT, HEADER_BYTES
from odradek_protocol.records.errors import CorruptBatch
from odradek_protocol.records.hashes import crc32c

RECENT_BYTES_MAX: Final = 8 << 20
PINNED_RATIO_MAX: Final = 32


class RecentAppend:
    """One append's bytes; `data` is None once it is dropped."""

    __slots__ = ("base_offset", "data", "end_offset", "tail")

    def __init__(
        self, base_offset: Offset, end_offset: Offset, data: bytes | memoryview, tail: Tail
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.data: bytes | memoryview | None = data
        self.tail = tail


Tail: TypeAlias = dict[Offset, RecentAppend]
"""A partition's kept appends by base offset, oldest first; each begins where the last one ends."""


class RecentAppends:
    """The last few MiB that were appended to a directory's partitions, kept for readers of the tail.

    Followers and most consumers want what was just written; handing them the very buffer costs no
    system call and no copy. All partitions of a directory share one bound: the oldest append goes
    first, of whatever partition.

    A view keeps the whole message alive that it lies in, and the rest of that message may have been
    refused. So a small piece of a large message is copied: what is kept alive is at most 32 times the
    bound.
    """

    __slots__ = ("_bytes_max", "_forgotten", "_queue", "size_bytes")

    def __init__(self, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._queue: deque[RecentAppend] = deque()
        self._forgotten = 0  # entries of the queue without data, at most
        self.size_bytes = 0

    def keep(
        self, tail: Tail, base_offset: Offset, end_offset: Offset, data: bytes | memoryview
    ) -> None:
        """Keep an append at the end of `tail`; older ones, of any tail, make room."""
        if len(data) > self._bytes_max:
            self.forget(tail)  # a gap would break the chain
            return
        if isinstance(data, memoryview):
            whole = data.obj
            assert isinstance(whole, bytes | bytearray), type(whole)
            if len(whole) > PINNED_RATIO_MAX * len(data):
                data = bytes(data)
        append = RecentAppend(base_offset, end_offset, data, tail)
        tail[base_offset] = append
        self._queue.append(append)
        self.size_bytes += len(data)
        while self.size_bytes > self._bytes_max:
            oldest = self._queue.popleft()
            if oldest.data is not None:
                self.size_bytes -= len(oldest.data)
                oldest.data = None
                del oldest.tail[oldest.base_offset]

    def forget(self, tail: Tail) -> None:
        """Drop all of one tail: its log was cut, or an append was not kept."""
        for append in tail.values():
            assert append.data is not None, append.base_offset
            self.size_bytes -= len(append.data)
            append.data = None
        self._forgotten += len(tail)
        tail.clear()
        if 2 * self._forgotten > len(self._queue):  # each costs one look, however long one waits
            self._queue = deque(append for append in self._queue if append.data is not None)
            self._forgotten = 0


SLICES_MAX: Final = 128
FILE_SLICE_BYTES_MIN: Final = 32 * 1024  # below, a read is cheaper than a descriptor
PROBE_BYTES_MIN: Final = 16 * 1024  # a first batch may be longer than asked for


class OffsetOutOfRange(LookupError):
    """The offset lies below the log start offset or above the log end offset."""


class DamagedBatch(CorruptBatch):
    """A batch whose header can be read, and whose bytes are wrong."""

    def __init__(self, offsets: tuple[int, int], message: str) -> None:
        super().__init__(message)
        self.offsets = offsets


class ReadResult(NamedTuple):
    """Whole batches, in order; no slices when there is nothing to read, or the segment left the
    log meanwhile: read again.

    `slices` are read-only and may be kept. `start_offset` is the base offset of the first batch
    (it may lie below the offset asked for), `end_offset` the exclusive end of the last one: where
    to read next. Without slices both are the offset asked for, unless compaction left no batch
    between that and the bound of the read: then `end_offset` is that bound. A `file_slice`, when
    it was asked for, holds all batches in place of `slices`.
    """

    slices: Sequence[bytes | memoryview]
    start_offset: Offset
    end_offset: Offset
    size_bytes: int
    file_slice: FileSlice | None = None


class ReadPlan:
    """A read decided upon: call `run` once, at once if `is_hot`, else in a pool thread."""

    __slots__ = (
        "_as_file_slice",
        "_bytes_max",
        "_end_offset",
        "_health",
        "_result",
        "_segments",
        "_size_bytes",
        "_start_offset",
        "_storage",
        "_verify",
        "is_hot",
    )

    def __init__(
        self,
        storage: Storage,
        health: DirectoryHealth,
        segments: list[Segment],
        start_offset: Offset,
        bytes_max: int,
        end_offset: Offset,
        verify: bool,
        result: ReadResult | None,
    ) -> None:
        self._storage = storage
        self._health = health
        self._segments = segments  # the one that holds the start, and those after it
        self._size_bytes = segments[0].size_bytes if segments else 0
        self._start_offset = start_offset
        self._bytes_max = bytes_max
        self._end_offset = end_offset
        self._verify = verify
        self._result = result
        self._as_file_slice = False
        self.is_hot = result is not None or (not verify and self._is_resident())

    def _is_resident(self) -> bool:
        segment = self._segments[0]
        if not segment.has_indexes:
            return False
        start = segment.offsets().floor_of_offset(self._start_offset - segment.base_offset)
        size_bytes = min(max(self._bytes_max, PROBE_BYTES_MIN), self._size_bytes - start)
        try:
            return size_bytes <= 0 or segment.file().is_resident(start, size_bytes)
        except OSError:
            return False  # let the read itself meet the error

    def run(self, *, as_file_slice: bool = False) -> ReadResult:
        """Read, or with `as_file_slice` find only what to send, if it is hot and large enough.

        Raises StorageFailed when the disk fails, or holds what is no batch.
        """
        self._as_file_slice = as_file_slice and self.is_hot
        if self._result is not None:
            return self._result
        try:
            for segment in self._segments:
                result = self._read_segment(segment)
                if result is not None:
                    return result
        except (OSError, CorruptBatch) as error:
            what = f"reading {self._segments[0].path(Suffix.LOG)}"
            cause = error if isinstance(error, OSError) else DamagedContent(error)
            raise self._health.fail_to_read(what, cause) from error
        return ReadResult((), self._start_offset, self._end_offset, 0)

    def _read_segment(self, segment: Segment) -> ReadResult | None:
        """None: nothing at or past the start offset in this segment, look into the next."""
        first = segment is self._segments[0]
        size_bytes = self._size_bytes if first else segment.size_bytes
        if self.is_hot and first:
            return self._read_file(segment, segment.file(), size_bytes)
        try:
            file = self._storage.open(segment.path(Suffix.LOG))
            try:
                if not segment.is_retired:  # else the name may be its successor's by now
                    result = self._read_file(segment, file, size_bytes)
                    if result is not None or not segment.is_retired:
                        return result
            finally:
                file.close()
        except (FileNotFoundError, CorruptBatch):  # it may have been cut under our eyes
            if not segment.is_retired:
                raise
        return ReadResult((), self._start_offset, self._start_offset, 0)

    def _read_file(self, segment: Segment, file: File, size_bytes: int) -> ReadResult | None:
        start, head = segment.locate(file, self._start_offset, size_bytes)
        if head is None:
            # A segment keeps its last batch, also through compaction: a damaged length hides it.
            if self._start_offset < min(segment.end_offset, self._end_offset):
                raise CorruptBatch(f"no batch with the offset {self._start_offset} or a later one")
            return None
        stop = size_bytes
        if head.last_offset >= self._end_offset:
            if head.last_offset >= segment.end_offset:
                raise CorruptBatch(f"{head} does not end in the segment {segment.base_offset}")
            return ReadResult((), self._start_offset, self._start_offset, 0)
        if self._end_offset < segment.end_offset:
            stop, _ = segment.locate(file, self._end_offset, size_bytes)
        cut = min(stop, start + max(self._bytes_max, head.size_bytes))
        if self._as_file_slice and cut - start >= FILE_SLICE_BYTES_MIN:
            last, length = _last_batch_before(segment, file, start, cut, head)
            piece = FileSlice(file, start, length)
            end_offset = Offset(last.last_offset + 1)
            return ReadResult((), Offset(head.base_offset), end_offset, length, piece)
        data = file.pread(cut - start, start)
        last, length = _last_whole_batch(segment, data, start, head)
        if self._verify:
            _check_crcs(data, length, start)
        whole = data if length == len(data) else memoryview(data)[:length]
        return ReadResult((whole,), Offset(head.base_offset), Offset(last.last_offset + 1), length)


def _check_crcs(data: bytes, length: int, start: int) -> None:
    view = memoryview(data)
    at = 0
    while at < length:
        header = header_at(data, at)
        if crc32c(view[at + ATTRIBUTES_AT : at + header.size_bytes]) != header.crc:
            raise DamagedBatch(
                (header.base_offset, header.last_offset + 1),
                f"the CRC of the batch with base offset {header.base_offset}, at position"
                f" {start + at}, is not that of its bytes",
            )
        at += header.size_bytes


def _last_whole_batch(
    segment: Segment, data: bytes, start: int, head: Header
) -> tuple[Header, int]:
    """The header of the last batch that is whole in `data`, and where it ends there.

    `data` begins at position `start` of the segment with the whole batch `head`. Walks from the
    last index entry inside; if its batch is cut short, or none, from the one before.
    """
    offsets = segment.offsets()
    floor = start + len(data)
    while floor > start:
        floor = max(offsets.floor_of_position(floor - 1), start)
        at, last = floor - start, None
        try:
            while at + HEADER_BYTES <= len(data):
                header = header_at(data, at)
                if at + header.size_bytes > len(data):
                    break
                last = header
                at += header.size_bytes
        except CorruptBatch:
            if floor == start:
                raise
            continue  # the disk may have changed the index
        if last is not None:
            return last, at
    if len(data) < head.size_bytes:
        raise CorruptBatch(f"the file ends inside the batch at position {start}")
    return head, head.size_bytes


def _last_batch_before(
    segment: Segment, file: File, start: int, cut: int, head: Header
) -> tuple[Header, int]:
    """As `_last_whole_batch`, of the file between positions `start` and `cut`."""
    offsets = segment.offsets()
    floor = cut
    while floor > start:
        floor = max(offsets.floor_of_position(floor - 1), start)
        last, end = None, floor
        try:
            for position, header in walk_headers(file, floor, cut):
                last, end = header, position + header.size_bytes
        except CorruptBatch:
            if floor == start:
                raise
            continue
        if last is not None:
            return last, end - start
    raise CorruptBatch(f"the file ends inside the batch at position {start}")


def end_before_damage(
    directory: Path, damage: tuple[int, int], start_offset: Offset, end_offset: Offset
) -> Offset:
    """Return where a read of a log has to end that holds a damaged batch, the offsets `damage`.

    Raises LogDamaged if the read would begin in that batch.
    """
    first, after = damage
    if first <= start_offset < after:
        raise LogDamaged(
            f"{directory}: the batch with the offsets {first} to {after - 1} is damaged, and no"
            f" other replica in sync has it; records from offset {after} on can be read",
            damage,
        )
    return min(end_offset, Offset(first)) if start_offset < first else end_offset


def read_tail(
    tail: Tail, start_offset: Offset, bytes_max: int, end_offset: Offset
) -> ReadResult | None:
    """Read from the appends kept in memory; None if they do not hold what is asked for."""
    append = tail.get(start_offset)
    slices: list[bytes | memoryview] = []
    size_bytes = 0
    next_offset = start_offset
    while append is not None and append.data is not None and append.end_offset <= end_offset:
        if slices and size_bytes + len(append.data) > bytes_max:
            break
        if len(slices) == SLICES_MAX:
            return None  # one read of the file costs less than so many buffers
        slices.append(append.data)
        size_bytes += len(append.data)
        next_offset = append.end_offset
        append = tail.get(next_offset)
    if not slices or (size_bytes > bytes_max and _is_several(slices[0])):
        return None
    return ReadResult(slices, start_offset, next_offset, size_bytes)


def _is_several(data: bytes | memoryview) -> bool:
    """Whether more than one batch was appended at once, so that a smaller read is possible."""
    return header_at(data, 0).size_bytes < len(data)
