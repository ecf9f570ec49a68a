"""One segment: a `.log` file of batches, named after its base offset, and the indexes beside it.

    00000000000000012345.log         the batches, back to back
    00000000000000012345.index       offset -> position       (indexes.py)
    00000000000000012345.timeindex   time -> offset           (indexes.py)
    00000000000000012345.txnindex    aborted transactions     (indexes.py)

The last segment of a log is *active*: it grows, and its indexes are in memory; each full sync writes the new entries to
the files. All other segments are *closed*: they do not change. Their files and indexes are opened when a read needs
them, and closed when too many are open. A *retired* segment is no longer part of the log (truncated, deleted,
compacted): nothing is written to it any more, and its file names may belong to its successor.

Threads: only the log's owner changes a segment. At the same time, disk threads may look up offsets and read batches,
and one disk thread may write the indexes. A truncation works on a copy, which then replaces the segment.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Container, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.open_files import OpenFiles
from odradek_broker.log.segments.batch_walk import Header, header_at, walk_headers
from odradek_broker.log.segments.indexes import (
    OFFSET_ENTRY_BYTES,
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY_BYTES,
    AbortedTransaction,
    CorruptIndex,
    OffsetIndex,
    TimeIndex,
    decode_transactions,
    encode_transactions,
)
from odradek_broker.log.storage import File, Storage, write_all
from odradek_protocol.records.batch_header import HEADER_BYTES, LENGTH_PREFIX_BYTES, ByteBuffer
from odradek_protocol.records.errors import CorruptBatch

NO_TIMESTAMP: Final = -1
INDEX_INTERVAL_BYTES: Final = 4096
_LOCK_OF_LOCKS: Final = threading.Lock()


class Suffix(Enum):
    """Suffixes of a partition's files. DELETED, CLEANED and SWAP are marks that follow the suffix of a segment's file
    that is not in use.
    """

    LOG = ".log"
    INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TXN_INDEX = ".txnindex"
    SNAPSHOT = ".snapshot"
    DELETED = ".deleted"
    CLEANED = ".cleaned"
    SWAP = ".swap"


INDEX_SUFFIXES: Final = (Suffix.INDEX, Suffix.TIME_INDEX, Suffix.TXN_INDEX)
_LOG_FIRST: Final = (Suffix.LOG, *INDEX_SUFFIXES)
_LOG_LAST: Final = (*INDEX_SUFFIXES, Suffix.LOG)


def file_name(base_offset: int, suffix: Suffix) -> str:
    """Return the name of a file as in Kafka: the offset has 20 digits, so that names sort like offsets."""
    return f"{base_offset:020d}{suffix.value}"


class Segment:
    """One segment. Offsets are absolute unless their name says relative; positions and sizes are in bytes.

    `end_offset` is exclusive. `first_timestamp_ms` is the greatest timestamp of the first batch. A timestamp is -1
    while the segment has no record with a timestamp.
    """

    __slots__ = (
        "_aborted",
        "_aborted_synced",
        "_directory",
        "_file",
        "_index_lock",
        "_indexes_written",
        "_mark",
        "_offsets",
        "_since_entry_bytes",
        "_storage",
        "_times",
        "base_offset",
        "end_offset",
        "first_timestamp_ms",
        "has_markers",
        "is_retired",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "open_files",
        "size_bytes",
        "synced_bytes",
    )

    def __init__(
        self, storage: Storage, directory: Path, base_offset: int, *, mark: str = ""
    ) -> None:
        self._storage = storage
        # A string takes a third of the memory of a Path, and the segments of a loaded log share one string.
        self._directory = str(directory)
        self._mark = mark  # ".cleaned" while compaction writes the segment
        self._file: File | None = None
        self.open_files: OpenFiles | None = None  # set when a log owns the segment
        self._index_lock: threading.Lock | None = None  # `_lock_of_indexes` creates it
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._aborted: list[AbortedTransaction] | None = None
        self._aborted_synced = -1  # number of durable entries of the transaction index; -1: unknown
        # The numbers of entries in the files of the offset index and the time index.
        self._indexes_written = (0, 0)
        self._since_entry_bytes = 0
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size_bytes = 0
        self.synced_bytes = 0  # the size that the last sync covered
        self.first_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.has_markers = False  # whether `note_all` has found a transaction marker
        self.is_retired = False

    def path(self, suffix: Suffix) -> Path:
        """Return the current path of the segment's file with this suffix."""
        return self._path(suffix, self._mark)

    def _path(self, suffix: Suffix, mark: str) -> Path:
        return Path(self._directory, file_name(self.base_offset, suffix) + mark)

    def newest_ms(self) -> int:
        """Return the greatest timestamp; if no record has one, the file's modification time, as Kafka does. Raises
        OSError."""
        if self.max_timestamp_ms >= 0:
            return self.max_timestamp_ms
        return self._storage.modified_ms(self.path(Suffix.LOG))

    def create(self) -> None:
        """Create an empty `.log` file and delete index files of the same name."""
        self._file = self._storage.open(self.path(Suffix.LOG), create=True)
        self._file.truncate(0)
        for suffix in INDEX_SUFFIXES:
            self._storage.remove(self.path(suffix))
        self._offsets, self._times, self._aborted = OffsetIndex(), TimeIndex(), []
        self._aborted_synced = 0

    def found(self, names: Container[str]) -> None:
        """Mark the transaction index as empty if `names`, the files of the directory, do not contain its file."""
        if file_name(self.base_offset, Suffix.TXN_INDEX) not in names:
            self._aborted = []

    def file(self) -> File:
        """Return the `.log` file, which is opened if needed. Raises OSError."""
        file = self._file
        if file is None:
            open_files = self.open_files
            if open_files is None:
                file = self._file = self._open()
            elif self.is_retired:
                # The name may belong to the segment's successor, or to a new topic of the same name.
                raise FileNotFoundError(errno.ENOENT, "the segment was removed from the log")
            else:
                file = self._file = open_files.open(self._open)
                open_files.opened(self)
        return file

    def _open(self) -> File:
        return self._storage.open(self.path(Suffix.LOG))

    def be_counted(self, open_files: OpenFiles) -> None:
        """Let `open_files`, which bounds the descriptors of all logs, count and close this segment's descriptor.

        The segment opens the file again when it is used. The segment counts as clean, because the recovery, truncation
        or compaction that made it has synced what it wrote.
        """
        self.synced_bytes = self.size_bytes
        self.open_files = open_files
        if self._file is not None:
            open_files.opened(self)

    def handle(self) -> File:
        """Return a separate handle of the `.log` file for a job, which must close the handle."""
        if self.open_files is None:
            return self._open() if self._file is None else self._file.duplicate()
        with self.open_files.lock:  # at the end of the process, disk threads sync and close logs
            return self._open() if self._file is None else self._file.duplicate()

    @property
    def is_dirty(self) -> bool:
        """Whether the `.log` file has unsynced bytes. Its descriptor must stay open until they are synced."""
        return self.size_bytes > self.synced_bytes

    def sync(self) -> None:
        """Sync the `.log` file in this thread. Raises OSError."""
        self.file().datasync()
        self.was_synced(self.size_bytes)

    def was_synced(self, size_bytes: int) -> None:
        """Record that a sync covered the first `size_bytes` of the file."""
        self.synced_bytes = max(self.synced_bytes, size_bytes)
        if self.open_files is not None and not self.is_dirty:
            self.open_files.synced(self)

    def close(self) -> None:
        """Close the file descriptor. The next use opens the file again."""
        open_files = self.open_files
        if open_files is None:
            file, self._file = self._file, None
        else:
            # A disk thread may close a log while the event loop closes files to open another one. A second close could
            # close another file that has got the same descriptor number.
            with open_files.lock:
                file, self._file = self._file, None
                open_files.closed(self)
        if file is not None:
            file.close()

    def drop_indexes(self) -> None:
        """Remove a closed segment's indexes from memory, unless their files are incomplete."""
        offsets, times, aborted = self._offsets, self._times, self._aborted
        if offsets is None or times is None:
            return
        if aborted is not None and len(aborted) != self._aborted_synced:
            return
        if self._indexes_written == (len(offsets), len(times)):
            self._offsets = self._times = self._aborted = None

    def write(self, data: ByteBuffer) -> None:
        """Write complete batches at the end of the file. The caller must then call `note` for each batch."""
        file = self._file
        if file is None:
            file = self.file()
        if self.size_bytes == self.synced_bytes and self.open_files is not None:
            self.open_files.written(self)
        write_all(file, data, self.size_bytes)

    def undo_write(self) -> None:
        """Truncate the file to the end of the last batch for which `note` was called."""
        self.file().truncate(self.size_bytes)

    def note(self, header: Header, interval_bytes: int) -> None:
        """Record the header of the next batch in the file. Add index entries if more than `interval_bytes` follow the
        last entry.
        """
        offsets, times = self._offsets, self._times
        assert offsets is not None, self.base_offset
        assert times is not None, self.base_offset
        last_offset = header.base_offset + header.last_offset_delta
        if header.max_timestamp_ms > self.max_timestamp_ms and header.record_count:
            self.max_timestamp_ms = header.max_timestamp_ms
            self.max_timestamp_offset = last_offset
        size_bytes = LENGTH_PREFIX_BYTES + header.batch_length
        if self._since_entry_bytes > interval_bytes:
            offsets.append(last_offset - self.base_offset, self.size_bytes)
            times.append(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
            self._since_entry_bytes = 0
        if self.size_bytes == 0:
            self.first_timestamp_ms = header.max_timestamp_ms
        self._since_entry_bytes += size_bytes
        self.size_bytes += size_bytes
        self.end_offset = last_offset + 1

    def note_all(
        self, batches: Iterable[tuple[int, Header]], interval_bytes: int = INDEX_INTERVAL_BYTES
    ) -> None:
        """Call `note` for each batch of a walk that begins at the segment's end, until a batch cannot follow."""
        for position, header in batches:
            assert position == self.size_bytes, (position, self.size_bytes)
            if not self.may_follow(header):
                return
            self.has_markers |= header.is_control
            self.note(header, interval_bytes)

    def may_follow(self, header: Header) -> bool:
        """Return whether the offsets of a batch can follow those of the last batch; no CRC covers a base offset."""
        return (
            header.base_offset >= self.end_offset
            and header.last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
        )

    def note_aborted(self, transaction: AbortedTransaction) -> None:
        """Record an aborted transaction whose marker was written to this segment."""
        self.aborted().append(transaction)

    def has_room(
        self, header: Header, pending_bytes: int, pending_first_ms: int, config: LogConfig
    ) -> bool:
        """Return whether a batch may be added to this segment after `pending_bytes` of unwritten batches.

        The limits are the segment's size, the size of its indexes, and its age (`roll_ms` between the timestamps of its
        first batch and of this batch; while the segment is empty, `pending_first_ms` is the timestamp of the first
        batch)."""
        assert self._offsets is not None, self.base_offset
        assert self._times is not None, self.base_offset
        first_ms = self.first_timestamp_ms if self.size_bytes else pending_first_ms
        return (
            self.size_bytes + pending_bytes + LENGTH_PREFIX_BYTES + header.batch_length
            <= config.segment_bytes
            and not 0 <= first_ms < header.max_timestamp_ms - config.roll_ms
            and header.base_offset + header.last_offset_delta - self.base_offset
            <= RELATIVE_OFFSET_MAX
            and (len(self._offsets) + 1) * OFFSET_ENTRY_BYTES <= config.segment_index_bytes
            and (len(self._times) + 2) * TIME_ENTRY_BYTES <= config.segment_index_bytes
        )

    def has_room_for_all(
        self, headers: Sequence[Header], size_bytes: int, newest_ms: int, config: LogConfig
    ) -> bool:
        """Return whether these batches certainly fit into this segment: `has_room` would accept each of them."""
        last, entries = headers[-1], len(self.offsets())
        first_ms = self.first_timestamp_ms if self.size_bytes else headers[0].max_timestamp_ms
        # The time index may have one entry more than the offset index, and gets one more when the segment is closed.
        return (
            self.size_bytes + size_bytes <= config.segment_bytes
            and not 0 <= first_ms < newest_ms - config.roll_ms
            and last.base_offset + last.last_offset_delta - self.base_offset <= RELATIVE_OFFSET_MAX
            and TIME_ENTRY_BYTES * (entries + len(headers) + 2) <= config.segment_index_bytes
        )

    def seal(self) -> None:
        """Close the segment for appends: add its greatest timestamp as the last entry of the time index."""
        if self.size_bytes:
            self.times().append(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)

    def offsets(self) -> OffsetIndex:
        """Return the offset index. If it is not in memory, this reads its file or rebuilds it (blocks)."""
        offsets = self._offsets
        return offsets if offsets is not None else self._load_indexes()[0]

    def times(self) -> TimeIndex:
        """Return the time index. If it is not in memory, this reads its file or rebuilds it (blocks)."""
        times = self._times
        return times if times is not None else self._load_indexes()[1]

    @property
    def has_indexes(self) -> bool:
        """Whether the offset index is in memory, so that a look-up reads only the `.log` file."""
        return self._offsets is not None

    def aborted(self) -> list[AbortedTransaction]:
        """Return the aborted transactions whose markers are in this segment, in the order of the markers (may block).

        Raises CorruptIndex if the file is damaged, because only recovery can rebuild it.
        """
        aborted = self._aborted
        if aborted is None:
            with self._lock_of_indexes():
                data = self._read(Suffix.TXN_INDEX)
                aborted = decode_transactions(data, base_offset=self.base_offset)
                self._aborted = aborted
        return aborted

    def trust_aborted(self) -> None:
        """Treat the file of the transaction index as durable, because all its entries are below the recovery point."""
        self._aborted_synced = len(self.aborted())

    def replace_aborted(self, aborted: list[AbortedTransaction]) -> None:
        """Set the transaction index to the result of a recovery or compaction."""
        self._aborted = aborted
        self._aborted_synced = -1

    def _read(self, suffix: Suffix) -> bytes:
        try:
            return self._storage.read(self.path(suffix))
        except FileNotFoundError:
            return b""

    def _lock_of_indexes(self) -> threading.Lock:
        """Return the lock that lets only one thread read the indexes from their files; create it at the first use."""
        with _LOCK_OF_LOCKS:
            if self._index_lock is None:
                self._index_lock = threading.Lock()
            return self._index_lock

    def _load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        with self._lock_of_indexes():
            if self._offsets is not None and self._times is not None:
                return self._offsets, self._times
            # This may run on a disk thread, which must not share the owner's descriptor.
            file = self._storage.open(self.path(Suffix.LOG))
            try:
                if self.is_retired:
                    raise FileNotFoundError(errno.ENOENT, "the segment was removed from the log")
                offsets, times = self._read_indexes(file)
            finally:
                file.close()
            self._times = times
            self._offsets = offsets
            return offsets, times

    def _read_indexes(self, file: File) -> tuple[OffsetIndex, TimeIndex]:
        try:
            offsets = OffsetIndex.from_bytes(
                self._read(Suffix.INDEX), log_size_bytes=self.size_bytes
            )
            times = TimeIndex.from_bytes(self._read(Suffix.TIME_INDEX))
            self._require_last_entry_fits(file, offsets)
            if self.size_bytes and not len(times):
                raise CorruptIndex("the time index is empty although the segment has batches")
            self._indexes_written = (len(offsets), len(times))
        except CorruptIndex:
            offsets, times = self._rebuilt_indexes(file)
            self._indexes_written = (0, 0)
        return offsets, times

    def _require_last_entry_fits(self, file: File, offsets: OffsetIndex) -> None:
        if not len(offsets):
            return
        relative_offset, position = offsets.entry(-1)
        head = file.pread(HEADER_BYTES, position)
        try:
            last_offset = header_at(head, 0).last_offset if len(head) == HEADER_BYTES else -1
        except CorruptBatch:
            last_offset = -1
        if last_offset != self.base_offset + relative_offset:
            raise CorruptIndex(
                f"the index entry is wrong: no batch at position {position} ends at relative offset {relative_offset}"
            )

    def _rebuilt_indexes(self, file: File) -> tuple[OffsetIndex, TimeIndex]:
        fresh = Segment(self._storage, Path(self._directory), self.base_offset)
        offsets, times = fresh._offsets, fresh._times = OffsetIndex(), TimeIndex()
        # The error is not lost: a later read of the damaged batch, or of a batch after it, raises it again.
        with contextlib.suppress(CorruptBatch):
            fresh.note_all(walk_headers(file, 0, self.size_bytes))
        self.has_markers |= fresh.has_markers
        fresh.seal()
        return offsets, times

    def write_indexes(self, *, sync: bool) -> bool:
        """Write the index entries that are only in memory to the files (on a disk thread).

        The transaction index is synced even without `sync`, because only a replay of the log could rebuild it. Return
        whether the transaction index was written; the caller must then sync the directory, too.
        """
        offsets, times, aborted = self._offsets, self._times, self._aborted
        if self.is_retired or offsets is None or times is None:
            return False
        offsets_written, times_written = self._indexes_written
        data = offsets.to_bytes(offsets_written)
        self._write_tail(Suffix.INDEX, offsets_written * OFFSET_ENTRY_BYTES, data, sync=sync)
        offsets_written += len(data) // OFFSET_ENTRY_BYTES
        data = times.to_bytes(times_written)
        self._write_tail(Suffix.TIME_INDEX, times_written * TIME_ENTRY_BYTES, data, sync=sync)
        times_written += len(data) // TIME_ENTRY_BYTES
        is_written = aborted is not None and self._write_aborted(aborted)
        self._indexes_written = (offsets_written, times_written)
        return is_written

    def _write_aborted(self, aborted: list[AbortedTransaction]) -> bool:
        count = len(aborted)
        if count == self._aborted_synced:
            return False
        needs_file = count or self._storage.exists(self.path(Suffix.TXN_INDEX))
        if needs_file:
            self._write_tail(Suffix.TXN_INDEX, 0, encode_transactions(aborted[:count]), sync=True)
        self._aborted_synced = count
        return bool(needs_file)

    def _write_tail(self, suffix: Suffix, position: int, data: bytes, *, sync: bool) -> None:
        file = self._storage.open(self.path(suffix), create=True)
        try:
            write_all(file, data, position)
            if file.size_bytes() != position + len(data):
                file.truncate(position + len(data))
            if sync:
                file.sync()
        finally:
            file.close()

    def locate(self, file: File, offset: int, end: int) -> tuple[int, Header | None]:
        """Return the position and the header of the first batch whose last offset is >= `offset`.

        Return (`end`, None) if there is no such batch before position `end`. If an index entry is wrong, because the
        disk has changed it, the segment is walked from its start. Raises CorruptBatch.
        """
        start = self.offsets().floor_of_offset(max(offset - self.base_offset, 0))
        header: Header | None = None
        try:
            for position, header in walk_headers(file, start, end):
                if header.base_offset + header.last_offset_delta >= offset:
                    if header.base_offset <= offset or position > start or not start:
                        return position, header
                    break
            else:
                is_whole = header is not None and position + header.size_bytes == end
                if is_whole or not 0 < start < end:
                    return end, None
        except CorruptBatch:
            if not start:
                raise
        for position, header in walk_headers(file, 0, end):
            if header.last_offset >= offset:
                return position, header
        return end, None

    def settle(self, position: int, next_offset: int) -> None:
        """Change the state in memory to that of a segment that ends at `position`, and whose next batch has offset
        `next_offset`.

        Truncates the indexes in memory. The other fields come from the time index's last entry, which covers all
        batches before the last entry of the offset index, and from the headers after that (blocks). The files on disk
        do not change. Raises CorruptBatch."""
        offsets, times = self.offsets(), self.times()
        offsets.cut_positions(position)
        times.cut_offsets(next_offset - self.base_offset)
        written = self._indexes_written
        self._indexes_written = (min(written[0], len(offsets)), min(written[1], len(times)))
        self.first_timestamp_ms = self.max_timestamp_ms = NO_TIMESTAMP
        self.end_offset = self.max_timestamp_offset = self.base_offset
        walk_from = offsets.entry(-1)[1] if len(offsets) else 0
        if len(times):
            self.max_timestamp_ms, relative_offset = times.entry(-1)
            self.max_timestamp_offset = self.base_offset + relative_offset
        self._since_entry_bytes = 0
        file = self.file()
        for at, header in walk_headers(file, walk_from, position):
            if not self.may_follow(header):
                raise CorruptBatch(f"the batch {header} cannot follow offset {self.end_offset - 1}")
            if header.max_timestamp_ms > self.max_timestamp_ms and header.record_count:
                self.max_timestamp_ms = header.max_timestamp_ms
                self.max_timestamp_offset = header.last_offset
            if len(offsets) and at == offsets.entry(-1)[1]:
                self._since_entry_bytes = 0
            self._since_entry_bytes += header.size_bytes
            self.end_offset = header.last_offset + 1
        for _, header in walk_headers(file, 0, position):
            self.first_timestamp_ms = header.max_timestamp_ms
            break
        self.size_bytes = position

    def complete(self, size_bytes: int) -> int:
        """Index the batches behind the last index entry of a file with `size_bytes`.

        Return the end of the last complete batch; it is less than `size_bytes` if invalid bytes follow. An index that
        is incomplete, empty, torn, lost or wrong is complete afterwards; for an intact index only a few headers are
        read.
        """
        self.size_bytes = size_bytes
        if not size_bytes:  # an empty segment has empty indexes, whatever the files contain
            self._offsets, self._times = OffsetIndex(), TimeIndex()
            return 0
        try:
            self._settle_at_last_entry()
        except CorruptBatch:
            # An index or the log is damaged, so rebuild the indexes from the batches.
            self._offsets, self._times = self._rebuilt_indexes(self.file())
            self._indexes_written = (0, 0)
            self._settle_at_last_entry()
        with contextlib.suppress(CorruptBatch):
            self.note_all(walk_headers(self.file(), self.size_bytes, size_bytes))
        return self.size_bytes

    def _settle_at_last_entry(self) -> None:
        offsets = self.offsets()
        start = offsets.entry(-1)[1] if len(offsets) else 0
        head = self.file().pread(HEADER_BYTES, start)
        next_offset = header_at(head, 0).base_offset if start else self.base_offset
        self.settle(start, next_offset)

    def copy_until(self, position: int, next_offset: int) -> Segment:
        """Return a copy of this segment that has only the batches before `position` (blocks).

        The files and this object do not change. The copy has its own descriptor.
        """
        copy = Segment(self._storage, Path(self._directory), self.base_offset, mark=self._mark)
        copy.size_bytes = self.size_bytes
        copy._offsets = OffsetIndex.from_bytes(
            self.offsets().to_bytes(), log_size_bytes=self.size_bytes
        )
        copy._times = TimeIndex.from_bytes(self.times().to_bytes())
        copy._aborted = [entry for entry in self.aborted() if entry.last_offset < next_offset]
        copy._indexes_written = self._indexes_written
        copy.settle(position, next_offset)
        return copy

    def rename_files(self, mark: str) -> None:
        """Replace the mark at the end of the names of all files of the segment, the `.log` file first if the new
        mark is DELETED, otherwise last: a start deletes indexes without a `.log` file, but uses a `.log` file without
        indexes.
        """
        for suffix in _LOG_FIRST if mark == Suffix.DELETED.value else _LOG_LAST:
            source = self.path(suffix)
            if self._storage.exists(source):
                self._storage.rename(source, self._path(suffix, mark))
        self._mark = mark

    def remove_files(self) -> None:
        """Delete the segment's files, the `.log` file first: a start deletes indexes without a `.log` file."""
        for suffix in _LOG_FIRST:
            self._storage.remove(self.path(suffix))
