"""Compaction: only the last value of each key is kept (`cleanup.policy=compact`).

A pass covers the closed segments up to the *limit*. Everything below the limit is durable and below the high
watermark, and belongs to no open transaction. A pass has two phases:

    1  read the dirty part (from the end of the last pass on) and map each key to its last offset
    2  copy each run of segments into one new segment, without the records for whose key the map has
       a later offset, and replace the run by the new segment (segments/swap.py)

The following is kept, with its offset and its timestamp:

    a record       if the map has no later record of its key; never a record of an aborted transaction
                   or without a key
    a tombstone    (null value) like a record, until its batch's delete horizon, which is
                   now + `delete.retention.ms` at the first compaction of the batch (KIP-534); longer if an
                   earlier batch has too many records to decode, because that batch may have values of the key
    a marker       as long as batches of its transaction are kept, even without records: without the
                   marker, a replay would find the transaction open; after that, until its delete horizon
    a batch        that cannot be decoded although its CRC matches, because the producer wrote it so,
                   or that has too many records to decode at once
    a header       (the batch has no records) if it has the last sequence numbers of its producer, or if
                   the batch is the last of its run: each segment must end where the next one begins

Invariants: offsets never change; for every key the last value below the limit stays; a consumer that reads from the
start within `delete.retention.ms` sees every tombstone that follows a value it has read.

Python code handles every record, so a disk thread works in slices of a few milliseconds. Memory is bounded: if the map
is full, the pass's dirty part ends early, between two batches.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.producer_state import ProducerStates
from odradek_broker.log.segments.batch_walk import Header, walk_headers
from odradek_broker.log.segments.indexes import AbortedTransaction
from odradek_broker.log.segments.segment import INDEX_INTERVAL_BYTES, Segment, Suffix
from odradek_broker.log.segments.segment_list import SegmentList
from odradek_broker.log.storage import NO_ROOM, DamagedContent, File, Storage
from odradek_protocol.identity import NO_OFFSET, Offset
from odradek_protocol.records.batch_header import (
    ATTRIBUTES_AT,
    BATCH_LENGTH_AT,
    BATCH_LENGTH_MIN,
    COMPRESSION_MASK,
    CRC_AT,
    DELETE_HORIZON_MASK,
    HEADER_BYTES,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE_MASK,
    Compression,
    check_crc,
    read_header,
)
from odradek_protocol.records.batch_reader import decode_batch
from odradek_protocol.records.builder import encode_batch
from odradek_protocol.records.codec import Record
from odradek_protocol.records.errors import CorruptBatch
from odradek_protocol.records.hashes import crc32c

KEYS_MAX: Final = 1_000_000
RECORDS_MAX: Final = 500_000  # a batch with more records is not decoded but kept
SLICE_MS: Final = 5
_KEY_BYTES_MAX: Final = 32  # instead of a longer key, the map has a digest of 33 bytes
WRITE_BYTES: Final = 1 << 20
_HORIZON_MS_MAX: Final = 1 << 62  # keeps now + delete.retention.ms below 2**63
_GIVING_UP: Final = NO_ROOM | {errno.ENOENT}


@dataclass(slots=True, kw_only=True)
class CompactedRun:
    """A run of adjacent segments, and the new segment that is to replace them. The files of the new segment are synced,
    and their names end in .swap.
    """

    old: list[Segment]
    new: Segment


@dataclass(slots=True, kw_only=True)
class CompactJob:
    """One compaction pass over one log. `run_slice` on a disk thread and `PartitionLog.install_compacted` on the event
    loop alternate until `is_done`.
    """

    storage: Storage
    directory: Path
    # The lock of the log's jobs, which prevents a truncation during the rename to .swap.
    lock: threading.Lock
    is_current: Callable[[], bool]  # false after the log was truncated or deleted
    segments: list[Segment]  # the closed segments up to the limit
    dirty_offset: Offset
    aborted: list[AbortedTransaction]
    last_batches: frozenset[int]  # the last offset of each producer's last batch
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    keys_max: int = KEYS_MAX
    is_done: bool = False
    error: OSError | None = None
    end_offset: Offset = NO_OFFSET  # after the pass, the log is compacted below this offset
    records_read: int = 0
    records_kept: int = 0
    ready: list[CompactedRun] = field(default_factory=list)
    _steps: Iterator[None] | None = None
    _map: dict[bytes, int] = field(default_factory=dict)
    _aborted_by_id: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    # Ids of the producers of kept transactional batches whose marker this pass has not reached yet.
    _open_transactions: set[int] = field(default_factory=set)
    # Whether a batch with too many records was kept. That batch may contain earlier values of any key, so tombstones
    # after the batch must be kept, too.
    _has_skipped_records: bool = False

    def run_slice(
        self, slice_ms: int = SLICE_MS, *, clock_s: Callable[[], float] = monotonic
    ) -> None:
        """Work for about `slice_ms` of `clock_s`, or until a run is ready (on a disk thread). An exception is stored in
        `error`.
        """
        deadline = clock_s() + slice_ms / 1000
        if self._steps is None:
            self._steps = self._work()
        try:
            for _ in self._steps:
                if self.ready or clock_s() >= deadline:
                    return
        except FileNotFoundError:
            # A segment was truncated, deleted or expired during the pass. A later pass compacts the same dirty part.
            self.end_offset = NO_OFFSET
        except OSError as error:
            self.error = error
        except CorruptBatch as error:
            if self.is_current():
                self.error = DamagedContent(error)
            self.end_offset = NO_OFFSET
        self.is_done = True

    def install(self, segments: SegmentList, *, is_truncating: bool, delay_ms: int) -> bool:
        """Replace old segments by the new segments that are ready (on the event loop). Return whether any were
        replaced.

        Raises OSError.
        """
        ready, self.ready = self.ready, []
        is_swapped = False
        for run in ready:
            is_cut = is_truncating or not self.is_current()
            present = [segment for segment in run.old if segment in segments.all]
            if not is_cut and present == run.old:
                segments.swap(run.old, run.new, delay_ms=delay_ms)
                is_swapped = True
                continue
            run.new.remove_files()
            run.new.close()
            # The pass goes on only if all segments of the run have expired since they were copied.
            if is_cut or present:
                self._give_up()
        return is_swapped

    def _give_up(self) -> None:
        """End the pass, because a run could not be replaced. A later pass compacts everything that was dirty before
        this pass.

        If this pass continued, it could remove the tombstone of a key that still has an earlier value in the run that
        was not replaced, or count that run as compacted. The earlier value would then be the last value of the key.
        """
        self._steps = iter(())  # the pass has just completed a run, so no new segment is unfinished
        self.end_offset, self.is_done = NO_OFFSET, True

    def _work(self) -> Iterator[None]:
        yield from self._map_dirty()
        for run in self._runs():
            yield from self._compact(run)
        self._map = {}

    def _require_current(self) -> None:
        if not self.is_current():
            raise FileNotFoundError(
                errno.ENOENT, "the log was truncated or deleted during the compaction"
            )

    def _open(self, segment: Segment) -> File:
        file = self.storage.open(segment.path(Suffix.LOG))
        if segment.is_retired:  # the file may belong to the segment that replaced this one
            file.close()
            raise FileNotFoundError(errno.ENOENT, "the segment was removed from the log")
        return file

    def _map_dirty(self) -> Iterator[None]:
        self.end_offset = Offset(self.segments[-1].end_offset)
        for segment in self.segments:
            if segment.end_offset <= self.dirty_offset:
                continue
            file = self._open(segment)
            try:
                for position, header in walk_headers(file, 0, segment.size_bytes):
                    if len(self._map) >= self.keys_max:
                        self.end_offset = Offset(header.base_offset)
                        break
                    if header.last_offset < self.dirty_offset or header.record_count == 0:
                        continue
                    if header.is_control or self._is_aborted(header):
                        continue
                    for record in _records(file.pread(header.size_bytes, position)) or ():
                        if record.key is not None and record.offset >= self.dirty_offset:
                            self._map[_short(record.key)] = record.offset
                    yield
            finally:
                file.close()
            if segment.end_offset > self.end_offset:
                break
        self.segments = [s for s in self.segments if s.base_offset < self.end_offset]

    def _is_aborted(self, header: Header) -> bool:
        if not header.is_transactional:
            return False
        if not self._aborted_by_id:
            for entry in self.aborted:
                ranges = self._aborted_by_id.setdefault(entry.producer_id, [])
                ranges.append((entry.first_offset, entry.last_offset))
        return any(
            first <= header.base_offset <= last
            for first, last in self._aborted_by_id.get(header.producer_id, ())
        )

    def _runs(self) -> list[list[Segment]]:
        """Return the segments in runs: adjacent segments whose records fit into one new segment."""
        runs: list[list[Segment]] = []
        size_bytes = 0
        for segment in self.segments:
            fits = runs and size_bytes + segment.size_bytes <= self.segment_bytes
            if fits and segment.end_offset - runs[-1][0].base_offset < (1 << 31):
                runs[-1].append(segment)
                size_bytes += segment.size_bytes
            else:
                runs.append([segment])
                size_bytes = segment.size_bytes
        return runs

    def _compact(self, run: list[Segment]) -> Iterator[None]:
        new = Segment(self.storage, self.directory, run[0].base_offset, mark=Suffix.CLEANED.value)
        try:
            new.create()
            kept_markers: set[int] = set()
            is_changed = len(run) > 1
            for segment in run:
                for is_same in self._copy(segment, new, run[-1].end_offset, kept_markers):
                    is_changed |= not is_same
                    yield
            self._require_current()
            assert new.end_offset == run[-1].end_offset, (new.end_offset, run[-1].end_offset)
            if not is_changed:
                new.remove_files()
                return
            aborted = [a for s in run for a in s.aborted() if a.last_offset in kept_markers]
            new.replace_aborted(aborted)
            new.seal()
            # The age of a segment without timestamps is its file's modification time, so the new file gets that of the
            # newest old file.
            if new.max_timestamp_ms < 0:
                newest_ms = max(segment.newest_ms() for segment in run)
                self.storage.set_modified_ms(new.path(Suffix.LOG), newest_ms)
            _sync(new)
            with self.lock:
                self._require_current()
                new.rename_files(Suffix.SWAP.value)
                self.storage.sync_directory(self.directory)
        except OSError as error:
            if error.errno in _GIVING_UP:
                new.remove_files()  # the file is incomplete, and a full disk needs the space
            raise
        except CorruptBatch:
            new.remove_files()
            raise
        finally:
            new.close()
        self.ready.append(CompactedRun(old=run, new=new))
        yield

    def _copy(
        self, segment: Segment, new: Segment, run_end: int, kept_markers: set[int]
    ) -> Iterator[bool]:
        """Copy the batches that are kept from one segment to `new`. After each batch of the segment, yield whether the
        batch is unchanged.
        """
        pending: list[tuple[bytes, Header]] = []
        pending_bytes = 0
        file = self._open(segment)
        try:
            for position, header in walk_headers(file, 0, segment.size_bytes):
                is_last = header.last_offset + 1 == run_end
                data, kept = self._rewrite(file, position, header, is_last)
                if kept is not None:
                    pending.append((data, kept))
                    pending_bytes += len(data)
                    if header.is_control:
                        kept_markers.add(header.last_offset)
                if pending_bytes >= WRITE_BYTES:
                    _write(new, pending)
                    pending_bytes = 0
                yield kept is header
            _write(new, pending)
        finally:
            file.close()

    def _rewrite(
        self, file: File, position: int, header: Header, is_last: bool
    ) -> tuple[bytes, Header | None]:
        """Return the compacted bytes of a batch and their header.

        The header is `header` itself if nothing changed, and None if the batch is removed.
        """
        data = file.pread(header.size_bytes, position)
        # The map of keys does not cover this batch. A later pass will compact it.
        if header.base_offset >= self.end_offset:
            return data, header
        if header.record_count == 0:
            kept_records: list[Record] = []
            horizon_ms: int | None = None
        else:
            records = _records(data)
            if records is None:
                self._has_skipped_records |= header.record_count > RECORDS_MAX
                self._note_kept(header)
                return data, header
            self.records_read += len(records)
            kept_records, horizon_ms = self._kept(header, records)
            self.records_kept += len(kept_records)
            has_horizon = bool(header.attributes & DELETE_HORIZON_MASK)
            if len(kept_records) == len(records) and (horizon_ms is None or has_horizon):
                self._note_kept(header)
                return data, header
        if not kept_records:
            is_needed = is_last or (
                header.producer_id >= 0 and header.last_offset in self.last_batches
            )
            if not is_needed:
                return b"", None
            self._note_kept(header)
            if header.record_count == 0:
                return data, header
            return _emptied(data), header._replace(
                batch_length=BATCH_LENGTH_MIN,
                attributes=header.attributes & ~COMPRESSION_MASK,
                record_count=0,
            )
        self._note_kept(header)
        return self._encoded(header, kept_records, horizon_ms)

    def _note_kept(self, header: Header) -> None:
        """Record that a batch, or at least its header, is kept, so that its transaction's marker is kept, too."""
        if header.is_transactional and not header.is_control:
            self._open_transactions.add(header.producer_id)

    def _kept(self, header: Header, records: list[Record]) -> tuple[list[Record], int | None]:
        """Return the records to keep, and the delete horizon of their batch; None if the batch needs no
        delete horizon.
        """
        horizon_ms: int | None = None
        if header.attributes & DELETE_HORIZON_MASK:
            horizon_ms = header.base_timestamp_ms
        is_past = horizon_ms is not None and horizon_ms <= self.now_ms
        later_ms = min(self.now_ms + self.delete_retention_ms, _HORIZON_MS_MAX)
        if horizon_ms is not None:
            later_ms = horizon_ms
        if header.is_control:
            is_needed = header.producer_id in self._open_transactions
            self._open_transactions.discard(header.producer_id)
            if is_needed:
                return records, horizon_ms
            return ([], None) if is_past else (records, later_ms)
        if self._is_aborted(header):
            return [], None
        kept: list[Record] = []
        needs_horizon = False
        for record in records:
            if record.key is None or self._map.get(_short(record.key), -1) > record.offset:
                continue
            if record.value is None:
                if is_past and not self._has_skipped_records:
                    continue
                needs_horizon = True
            kept.append(record)
        return kept, later_ms if needs_horizon else horizon_ms

    def _encoded(
        self, header: Header, records: list[Record], horizon_ms: int | None
    ) -> tuple[bytes, Header]:
        append_time_ms = None
        if header.attributes & TIMESTAMP_TYPE_MASK:
            append_time_ms = header.max_timestamp_ms
        base_timestamp_ms = horizon_ms if horizon_ms is not None else header.base_timestamp_ms
        records = [_within_reach(record, base_timestamp_ms) for record in records]
        data = encode_batch(
            records,
            base_offset=header.base_offset,
            base_timestamp_ms=base_timestamp_ms,
            compression=Compression(header.attributes & COMPRESSION_MASK),
            leader_epoch=header.leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
            control=header.is_control,
            append_time_ms=append_time_ms,
            delete_horizon=horizon_ms is not None,
            last_offset_delta=header.last_offset_delta,
        )
        newest_ms = max(record.timestamp_ms for record in records)
        return data, header._replace(
            batch_length=len(data) - (HEADER_BYTES - BATCH_LENGTH_MIN),
            max_timestamp_ms=append_time_ms if append_time_ms is not None else newest_ms,
            record_count=len(records),
        )


def _records(data: bytes) -> list[Record] | None:
    """Return the records of a batch; None if it cannot be decoded, or has more than RECORDS_MAX records.

    Raises CorruptBatch if the CRC does not match, because then the disk has changed the batch.
    """
    header = read_header(data)
    check_crc(data, 0, header)
    if header.record_count > RECORDS_MAX:
        return None
    try:
        return decode_batch(data, 0, header, check_crc=False)
    except CorruptBatch:
        return None


def _within_reach(record: Record, base_timestamp_ms: int) -> Record:
    """Return the record, with the nearest timestamp that a batch with this base timestamp can have.

    A batch stores timestamps as 64-bit differences from its base timestamp, and compaction may set the base timestamp
    to the delete horizon. A timestamp from a client may be too far from the new base timestamp.
    """
    lowest_ms = base_timestamp_ms - (1 << 63)
    timestamp_ms = min(max(record.timestamp_ms, lowest_ms), lowest_ms + (1 << 64) - 1)
    if timestamp_ms == record.timestamp_ms:
        return record
    return Record(
        record.key,
        record.value,
        record.headers,
        timestamp_ms=timestamp_ms,
        offset=record.offset,
    )


def _short(key: bytes) -> bytes:
    """Return the key, or a digest of a long key. A digest never equals a short key, because each digest is longer."""
    if len(key) <= _KEY_BYTES_MAX:
        return key
    return b"\x00" + blake2b(key, digest_size=_KEY_BYTES_MAX).digest()


def _emptied(data: bytes) -> bytes:
    """Return the batch without its records, but with the same offsets, sequences and timestamps.

    As in Kafka the empty batch is marked as uncompressed: in a compressed one, clients would take the missing records
    for a truncated frame.
    """
    header = bytearray(data[:HEADER_BYTES])
    header[BATCH_LENGTH_AT : BATCH_LENGTH_AT + 4] = BATCH_LENGTH_MIN.to_bytes(4, "big")
    header[ATTRIBUTES_AT + 1] &= ~COMPRESSION_MASK
    header[RECORD_COUNT_AT : RECORD_COUNT_AT + 4] = bytes(4)
    crc = crc32c(bytes(header[ATTRIBUTES_AT:]))
    header[CRC_AT:ATTRIBUTES_AT] = crc.to_bytes(4, "big")
    return bytes(header)


def _sync(new: Segment) -> None:
    """Sync a new segment, before the suffix `.swap` says that it may replace the old segments."""
    new.file().sync()
    new.write_indexes(sync=True)


def _write(segment: Segment, pending: list[tuple[bytes, Header]]) -> None:
    if not pending:
        return
    segment.write(b"".join(data for data, _ in pending))
    for _, header in pending:
        segment.note(header, INDEX_INTERVAL_BYTES)
    pending.clear()


class CompactedLog(Protocol):
    """The attributes of a `PartitionLog` that compaction reads."""

    @property
    def config(self) -> LogConfig: ...

    @property
    def producers(self) -> ProducerStates: ...

    @property
    def cleaned_offset(self) -> Offset: ...

    @property
    def log_start_offset(self) -> Offset: ...

    @property
    def last_stable_offset(self) -> Offset: ...

    @property
    def recovery_point(self) -> Offset: ...

    def aborted_transactions(
        self, start_offset: Offset, end_offset: Offset
    ) -> list[AbortedTransaction]: ...


def begin_compaction(
    log: CompactedLog, basics: dict[str, Any], segments: Sequence[Segment], *, now_ms: int
) -> CompactJob | None:
    """Return a compaction pass over `log`; None if its topic is not compacted, or the log is not dirty enough yet.

    `basics` are the fields that all jobs of the log have. Raises OSError.
    """
    config = log.config
    if not config.cleanup_compact:
        return None
    covered = _covered(log, segments, now_ms=now_ms)
    dirty = [s for s in covered if s.end_offset > log.cleaned_offset]
    if not dirty:
        return None
    dirty_bytes = sum(s.size_bytes for s in dirty)
    ratio = dirty_bytes / max(sum(s.size_bytes for s in covered), 1)
    late_ms = now_ms - config.max_compaction_lag_ms
    is_late = any(0 <= s.first_timestamp_ms < late_ms for s in dirty)
    if ratio < config.min_cleanable_dirty_ratio and not is_late:
        return None
    last_batches = frozenset(
        entry.batches[-1].last_offset for entry in log.producers.entries().values() if entry.batches
    )
    end_offset = Offset(covered[-1].end_offset)
    return CompactJob(
        **basics,
        segments=covered,
        dirty_offset=max(log.cleaned_offset, log.log_start_offset),
        aborted=log.aborted_transactions(Offset(covered[0].base_offset), end_offset),
        last_batches=last_batches,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
    )


def _covered(log: CompactedLog, segments: Sequence[Segment], *, now_ms: int) -> list[Segment]:
    """Return the closed segments below the limit: durable, below the last stable offset, and older than
    `min.compaction.lag.ms`.

    A transaction whose marker is not below the high watermark counts as open, because a truncation may remove the
    marker, and the next marker may have the other outcome.
    """
    limit = min(log.last_stable_offset, log.recovery_point)
    young_ms = now_ms - log.config.min_compaction_lag_ms
    covered: list[Segment] = []
    for segment in segments[:-1]:
        is_young = log.config.min_compaction_lag_ms > 0 and segment.newest_ms() > young_ms
        if segment.end_offset > limit or is_young:
            break
        covered.append(segment)
    return covered
