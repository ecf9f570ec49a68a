"""Reads of a range of a partition's log. The event loop plans a read; the event loop or a disk thread runs it.

Most reads run at once on the event loop: reads of the tail of the log, which is in memory, and reads of bytes in the
page cache. A read that would wait for the disk runs on a disk thread. Such a read opens the file by itself, because the
segment may be closed, truncated or deleted during the read; the result is then empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from odradek_broker.compiled import Mutable
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
from odradek_protocol.records.batch_header import ATTRIBUTES_AT, HEADER_BYTES, ByteBuffer
from odradek_protocol.records.errors import CorruptBatch
from odradek_protocol.records.hashes import crc32c

RECENT_BYTES_MAX: Final = 8 << 20
PINNED_RATIO_MAX: Final = 32
# Copying at most this many bytes costs less than the work of the garbage collector for a memoryview.
COPIED_BYTES_MAX: Final = 1024


class RecentAppend(Mutable):
    """The bytes of one append in memory. `data` is None after they were removed from memory.

    The garbage collector does not track these objects, because there may be tens of thousands. Their reference cycle
    with `tail` is broken when `data` becomes None.
    """

    base_offset: Offset
    end_offset: Offset
    data: bytes | memoryview | None
    tail: Tail


Tail: TypeAlias = dict[Offset, RecentAppend]
"""The appends of one partition that are kept in memory, by base offset, oldest first. Each begins at the end offset of
the one before.
"""


class RecentAppends:
    """The last few MiB that were appended to the logs of one directory, kept in memory for readers of the tail.

    Followers and most consumers read what was just written; passing them the same buffer costs no system call and no
    copy. All partitions of a directory share one limit, and the oldest append of all partitions is removed first.

    A memoryview keeps the whole request message in memory from which it was cut, even if the broker refused the other
    parts of the message. So a small part of a large message is copied: the memory in use is at most 32 times the limit.
    """

    __slots__ = ("_bytes_max", "_forgotten", "_queue", "size_bytes")

    def __init__(self, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._queue: deque[RecentAppend] = deque()
        self._forgotten = 0  # an upper bound of the number of queue entries without data
        self.size_bytes = 0

    def keep(
        self, tail: Tail, base_offset: Offset, end_offset: Offset, batches: ByteBuffer
    ) -> None:
        """Keep an append at the end of `tail`, and remove older appends of any partition as needed. The buffer must not
        change afterwards.
        """
        size_bytes = len(batches)
        if size_bytes > self._bytes_max:
            self.forget(tail)  # without this append, the kept appends would have a gap
            return
        data = bytes(batches) if size_bytes <= COPIED_BYTES_MAX else _kept(batches)
        append = RecentAppend(base_offset, end_offset, data, tail)
        tail[base_offset] = append
        self._queue.append(append)
        self.size_bytes += size_bytes
        while self.size_bytes > self._bytes_max:
            oldest = self._queue.popleft()
            if oldest.data is not None:
                self.size_bytes -= len(oldest.data)
                oldest.data = None
                del oldest.tail[oldest.base_offset]

    def forget(self, tail: Tail) -> None:
        """Remove all kept appends of one log, because the log was truncated or compacted, or an append was not kept."""
        for append in tail.values():
            assert append.data is not None, append.base_offset
            self.size_bytes -= len(append.data)
            append.data = None
        self._forgotten += len(tail)
        tail.clear()
        # The queue is rebuilt only when half of its entries are empty, so the cost for each append is constant.
        if 2 * self._forgotten > len(self._queue):
            self._queue = deque(append for append in self._queue if append.data is not None)
            self._forgotten = 0


def _kept(batches: ByteBuffer) -> bytes | memoryview:
    """Return the bytes as a read-only buffer. They are copied if they are only a small part of their
    request message.
    """
    if isinstance(batches, bytes):
        return batches
    data = memoryview(batches).toreadonly()
    whole = data.obj
    assert isinstance(whole, bytes | bytearray), type(whole)
    return bytes(data) if len(whole) > PINNED_RATIO_MAX * len(data) else data


SLICES_MAX: Final = 128
# For fewer bytes, reading costs less than duplicating a file descriptor for sendfile.
FILE_SLICE_BYTES_MIN: Final = 32 * 1024
# A read is hot, and done on the event loop, if its range is in the page cache. At least this many bytes are checked:
# the first batch is returned whole, and may be longer than `bytes_max`.
PROBE_BYTES_MIN: Final = 16 * 1024


class OffsetOutOfRange(LookupError):
    """The requested offset is below the log start offset or above the log end offset."""


class DamagedBatch(CorruptBatch):
    """The header of a batch is valid, but its CRC is wrong. `offsets`: its first offset, and its last offset + 1."""

    def __init__(self, offsets: tuple[int, int], message: str) -> None:
        super().__init__(message)
        self.offsets = offsets


class ReadResult(NamedTuple):
    """Complete batches, in order. There are no slices if there is nothing to read, or if the segment was removed from
    the log during the read; in the second case the caller should read again.

    `slices` are read-only and may be kept. `start_offset` is the base offset of the first batch; it may be below the
    requested offset. `end_offset` is the exclusive end of the last batch, where the next read begins. Without slices,
    `start_offset` and `end_offset` are the requested offset, with one exception: if compaction left no batch between
    the requested offset and the end of the range, `end_offset` is the end of the range. A `file_slice`, if the caller
    asked for one, contains all batches instead of `slices`.
    """

    slices: Sequence[bytes | memoryview]
    start_offset: Offset
    end_offset: Offset
    size_bytes: int
    file_slice: FileSlice | None = None


class ReadPlan:
    """A planned read. The caller calls `run` once: immediately if `is_hot`, otherwise on a disk thread."""

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
        self._segments = segments  # the segment that contains `start_offset`, and all later ones
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
            return False  # the read itself will raise the error

    def run(self, *, as_file_slice: bool = False) -> ReadResult:
        """Read the batches. With `as_file_slice`, a large result of a hot read is a `file_slice` for sendfile.

        Raises StorageFailed when the disk fails, and LogDamaged for a damaged batch.
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
            operation = f"reading {self._segments[0].path(Suffix.LOG)}"
            cause = error if isinstance(error, OSError) else DamagedContent(error)
            raise self._health.fail_to_read(operation, cause) from error
        return ReadResult((), self._start_offset, self._end_offset, 0)

    def _read_segment(self, segment: Segment) -> ReadResult | None:
        """Read from one segment; None if the segment has no batch at or past the start offset."""
        first = segment is self._segments[0]
        size_bytes = self._size_bytes if first else segment.size_bytes
        if self.is_hot and first:
            return self._read_file(segment, segment.file(), size_bytes)
        try:
            file = self._storage.open(segment.path(Suffix.LOG))
            try:
                # The path of a retired segment may lead to the file of the segment's successor.
                if not segment.is_retired:
                    result = self._read_file(segment, file, size_bytes)
                    if result is not None or not segment.is_retired:
                        return result
            finally:
                file.close()
        except (FileNotFoundError, CorruptBatch):
            # The segment may have been truncated during the read.
            if not segment.is_retired:
                raise
        return ReadResult((), self._start_offset, self._start_offset, 0)

    def _read_file(self, segment: Segment, file: File, size_bytes: int) -> ReadResult | None:
        start, head = segment.locate(file, self._start_offset, size_bytes)
        if head is None:
            # Compaction keeps a segment's last batch. So if no batch is found, a damaged length field hides that batch.
            if self._start_offset < min(segment.end_offset, self._end_offset):
                raise CorruptBatch(
                    f"the segment has no batch with the offset {self._start_offset} or a later one"
                )
            return None
        stop = size_bytes
        if head.last_offset >= self._end_offset:
            if head.last_offset >= segment.end_offset:
                raise CorruptBatch(
                    f"the batch {head} does not end in the segment {segment.base_offset}"
                )
            return ReadResult((), self._start_offset, self._start_offset, 0)
        if self._end_offset < segment.end_offset:
            stop, _ = segment.locate(file, self._end_offset, size_bytes)
        end = min(stop, start + max(self._bytes_max, head.size_bytes))
        if self._as_file_slice and end - start >= FILE_SLICE_BYTES_MIN:
            last, length = _last_batch_before(segment, file, start, end, head)
            file_slice = FileSlice(file, start, length)
            end_offset = Offset(last.last_offset + 1)
            return ReadResult((), Offset(head.base_offset), end_offset, length, file_slice)
        data = file.pread(end - start, start)
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
                f" {start + at}, does not match its bytes",
            )
        at += header.size_bytes


def _last_whole_batch(
    segment: Segment, data: bytes, start: int, head: Header
) -> tuple[Header, int]:
    """Return the header of the last complete batch in `data`, and the position in `data` at which that batch ends.

    `data` begins at position `start` of the segment, with the complete batch `head`. The search begins at the last
    index entry in the range; if the batch at that entry is incomplete or invalid, the search continues at the entry
    before.
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
            continue  # the index entry, or a batch after it, may be damaged
        if last is not None:
            return last, at
    if len(data) < head.size_bytes:
        raise CorruptBatch(f"the file ends inside the batch at position {start}")
    return head, head.size_bytes


def _last_batch_before(
    segment: Segment, file: File, start: int, stop: int, head: Header
) -> tuple[Header, int]:
    """Return the same as `_last_whole_batch`, for the bytes of the file between the positions `start` and `stop`."""
    offsets = segment.offsets()
    floor = stop
    while floor > start:
        floor = max(offsets.floor_of_position(floor - 1), start)
        last, end = None, floor
        try:
            for position, header in walk_headers(file, floor, stop):
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
    """Return the offset at which a read must end in a log with a damaged batch. `damage` has the first offset of the
    batch and its last offset + 1.

    Raises LogDamaged if the read would begin in the damaged batch.
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
    """Read from the appends kept in memory; None if they do not contain the whole requested range."""
    append = tail.get(start_offset)
    slices: list[bytes | memoryview] = []
    size_bytes = 0
    next_offset = start_offset
    while append is not None and append.data is not None and append.end_offset <= end_offset:
        if slices and size_bytes + len(append.data) > bytes_max:
            break
        if len(slices) == SLICES_MAX:
            return None  # for this many buffers, one read of the file costs less
        slices.append(append.data)
        size_bytes += len(append.data)
        next_offset = append.end_offset
        append = tail.get(next_offset)
    if not slices or (size_bytes > bytes_max and _is_several(slices[0])):
        return None
    return ReadResult(slices, start_offset, next_offset, size_bytes)


def _is_several(data: bytes | memoryview) -> bool:
    """Return whether an append has more than one batch, so that a reader with a small limit can get fewer batches."""
    return header_at(data, 0).size_bytes < len(data)
