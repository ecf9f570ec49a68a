"""Look-ups of records by timestamp, on a disk thread. These are the only look-ups that decode records.

A batch with a matching CRC has not changed since the producer sent it, and a broker does not decode batches when it
appends them. So if the records of such a batch cannot be decoded, the disk is not at fault, and the look-up uses the
header of the batch.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from odradek_broker.log.segments.batch_walk import Header, walk_headers
from odradek_broker.log.segments.segment import Segment, Suffix
from odradek_broker.log.segments.segment_list import SegmentList
from odradek_broker.log.storage import DamagedContent, DirectoryHealth, File, Storage
from odradek_protocol.identity import LeaderEpoch, Offset
from odradek_protocol.records.batch_header import check_crc, read_header
from odradek_protocol.records.batch_reader import open_batch
from odradek_protocol.records.errors import CorruptBatch

_RECORDS_AT_ONCE: Final = 1_000  # a client's batch may contain millions of records
_LOOKS_MAX: Final = 10


class TimestampOffset(NamedTuple):
    """The timestamp and the offset of a record, with the leader epoch of its batch."""

    timestamp_ms: int
    offset: Offset
    leader_epoch: LeaderEpoch


def find_timestamp(
    storage: Storage,
    health: DirectoryHealth,
    segments: SegmentList,
    timestamp_ms: int,
    log_start_offset: Offset,
) -> TimestampOffset | None:
    """Return the first record at or past `log_start_offset` whose timestamp is at least `timestamp_ms`; None if there
    is none.

    Raises StorageFailed when the disk fails, and LogDamaged for a damaged batch.
    """

    def find(current: Sequence[Segment]) -> TimestampOffset | None:
        return _find(storage, current, timestamp_ms, log_start_offset)

    return _look(health, segments, find)


def find_greatest(
    storage: Storage,
    health: DirectoryHealth,
    segments: SegmentList,
    log_start_offset: Offset,
) -> TimestampOffset | None:
    """Return the first record with the greatest timestamp of the log; None if there is no record. Raises the
    same errors as `find_timestamp`.
    """

    def find(current: Sequence[Segment]) -> TimestampOffset | None:
        kept = [s for s in current if s.end_offset > log_start_offset and s.max_timestamp_ms >= 0]
        newest = max(kept, key=lambda s: s.max_timestamp_ms, default=None)
        if newest is None:
            return None
        record = _find(storage, [newest], newest.max_timestamp_ms, log_start_offset)
        if record is not None or newest is not kept[0]:
            return record
        # The greatest timestamp of the first segment may be that of a deleted record, so search above the log start.
        above_ms = _greatest_above(storage, newest, log_start_offset)
        greatest_ms = max([above_ms, *(segment.max_timestamp_ms for segment in kept[1:])])
        return None if greatest_ms < 0 else _find(storage, kept, greatest_ms, log_start_offset)

    return _look(health, segments, find)


def _look(
    health: DirectoryHealth,
    segments: SegmentList,
    find: Callable[[Sequence[Segment]], TimestampOffset | None],
) -> TimestampOffset | None:
    """Call `find`, and call it again if a segment expired or was compacted or deleted during the call.

    The segment's file name may then belong to another file or to none, which is not the disk's fault. Return None after
    several such calls, because then the partition was probably deleted.
    """
    for _ in range(_LOOKS_MAX):
        current = segments.all
        try:
            return find(current)
        except (OSError, CorruptBatch) as error:
            if any(segment.is_retired for segment in current):
                continue
            cause = error if isinstance(error, OSError) else DamagedContent(error)
            directory = current[-1].path(Suffix.LOG).parent
            operation = f"looking for a timestamp in {directory}"
            raise health.fail_to_read(operation, cause) from error
    return None


def _find(
    storage: Storage, segments: Sequence[Segment], timestamp_ms: int, log_start_offset: Offset
) -> TimestampOffset | None:
    for segment in segments:
        if segment.max_timestamp_ms < timestamp_ms or segment.end_offset <= log_start_offset:
            continue
        relative_offset = segment.times().floor_of_timestamp(timestamp_ms)
        floor = max(segment.base_offset + relative_offset, log_start_offset)
        record = _scan(storage, segment, floor, timestamp_ms, log_start_offset)
        if record is not None:
            return record
    return None


def _scan(
    storage: Storage, segment: Segment, floor: int, timestamp_ms: int, log_start_offset: int
) -> TimestampOffset | None:
    with _opened(storage, segment) as file:
        size_bytes = segment.size_bytes
        start, _ = segment.locate(file, floor, size_bytes)
        for position, header in walk_headers(file, start, size_bytes):
            if header.max_timestamp_ms >= timestamp_ms:
                for record in _records(file, position, header, log_start_offset):
                    if record.timestamp_ms >= timestamp_ms:
                        return record
        return None


def _greatest_above(storage: Storage, segment: Segment, log_start_offset: int) -> int:
    """Return the greatest timestamp of the segment's records at or past the log start; -1 if there is none."""
    greatest_ms = -1
    with _opened(storage, segment) as file:
        size_bytes = segment.size_bytes
        start, _ = segment.locate(file, log_start_offset, size_bytes)
        for position, header in walk_headers(file, start, size_bytes):
            if not header.record_count:
                continue
            if header.base_offset >= log_start_offset:
                greatest_ms = max(greatest_ms, header.max_timestamp_ms)
                continue
            for record in _records(file, position, header, log_start_offset):
                greatest_ms = max(greatest_ms, record.timestamp_ms)
    return greatest_ms


@contextmanager
def _opened(storage: Storage, segment: Segment) -> Iterator[File]:
    file = storage.open(segment.path(Suffix.LOG))
    try:
        if segment.is_retired:  # the file may belong to the segment that replaced this one
            raise FileNotFoundError(errno.ENOENT, "the segment was removed from the log")
        yield file
    finally:
        file.close()


def _records(
    file: File, position: int, header: Header, log_start_offset: int
) -> Iterator[TimestampOffset]:
    """Yield the records of a batch from the log start on. If the records cannot be decoded, yield the batch's greatest
    timestamp with the batch's first offset.
    """
    data = file.pread(header.size_bytes, position)
    epoch = LeaderEpoch(header.leader_epoch)
    whole = read_header(data)
    check_crc(data, 0, whole)
    try:
        reader = open_batch(data, 0, whole, check_crc=False, start_offset=log_start_offset)
        while reader.remaining:
            for record in reader.read(_RECORDS_AT_ONCE):
                yield TimestampOffset(record.timestamp_ms, Offset(record.offset), epoch)
    except CorruptBatch:
        first = max(header.base_offset, log_start_offset)
        yield TimestampOffset(header.max_timestamp_ms, Offset(first), epoch)
