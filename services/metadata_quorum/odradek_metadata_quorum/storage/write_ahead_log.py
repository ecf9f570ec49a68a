"""The Raft log: entries in memory for the engine, and the same entries in segment files on disk.

The object has two groups of methods and fields. Each group is used by one thread, so no lock is needed. The methods for
the *event loop* append, truncate, reset and trim `entries` in memory, and record each change. The methods for the
*disk* (`write`, `remove_before`; always on the same disk queue) write the recorded changes as one frame with one sync.
`take` passes the recorded changes to a write, and `written` marks them as durable. `synced_index` is the last entry
that this node may acknowledge.

`entries[0]` is the *boundary*: the entry before the first one in use. Log matching needs the boundary's index and term;
its command may be missing. The boundary of an empty log is (1, 0), the genesis entry.

Old segments are removed as whole files, the oldest first, and no file is ever replaced. So no entry can be written to a
file that is about to be replaced. Truncations and resets are records in the log, too, so the log has all changes in
order.

The constructor makes durable what it read, before any message depends on it. If a process was killed between a write
and its sync, the bytes or the name of a segment may be only in the page cache, and the next process reads them. A sync
alone is not enough: after a failed sync the kernel marks the pages as clean, so the next sync succeeds although the
bytes are not on disk. Therefore the bytes are written again. At most one write is in progress at any time, so only the
last write can be affected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek_metadata_quorum.storage.disk import Disk, sync_file
from odradek_metadata_quorum.storage.log_frame import (
    ENTRY,
    RECORD_HEADER,
    RESET,
    SEGMENT_HEADER,
    TRUNCATE,
    SegmentHeader,
    encode_frame,
    encode_record,
    segment_name,
)
from odradek_metadata_quorum.storage.log_recovery import Entry, LastSegment, recover_log

GENESIS_INDEX: Final = 1
GENESIS_TERM: Final = 0


@dataclass(frozen=True, slots=True)
class LogWrite:
    """The recorded changes for one write. `parts`, joined together, are the body of its frame."""

    parts: list[bytes]
    entry_count: int
    last: tuple[int, int]  # (index, term) of the last entry of the log after these changes
    resets: bool  # whether one of the changes is a reset


class WriteAheadLog:
    """The log of one voter, in memory and on disk."""

    def __init__(self, disk: Disk, *, segment_bytes_max: int) -> None:
        """Read the log from disk, and make it durable.

        Raises `CorruptStorage` for damage that a crash cannot have caused, and `StorageMismatch` for files of a later
        format.
        """
        self._disk = disk
        self._segment_bytes_max = segment_bytes_max
        recovered = recover_log(disk)
        # Fields that only the event loop uses.
        self.entries: list[Entry] = recovered.entries
        self.payload_bytes = sum(len(entry[0]) for entry in self.entries)
        self.synced_index = self.entries[-1][1]
        self._parts: list[bytes] = []
        self._noted_bytes = 0  # size of the recorded commands that no write includes yet
        self._taken_bytes = 0  # size of the commands in the write in progress
        self._entry_count = 0
        self._resets = False
        # The value of `synced_index` when the write in progress is complete.
        self.in_flight_index = self.synced_index
        # Fields that only the disk thread uses, after the constructor.
        self._segments = recovered.segments
        self._file = disk.open(segment_name(self._segments[-1].base_position))
        self._file_bytes = self._file.size()
        self._position = recovered.end_position
        self._last = self.entries[-1][1:]
        self._make_durable(recovered.last_write_offset)
        self._last_segment = LastSegment(disk, self._segments[-1].base_position)

    @staticmethod
    def create(disk: Disk) -> None:
        """Create the files of an empty log. They are durable once the caller has called `sync_directory`."""
        file = disk.open(segment_name(0), create=True)
        file.write(SegmentHeader(0, GENESIS_INDEX, GENESIS_TERM).encode(), 0)
        file.sync()
        file.close()

    # Methods for the event loop.

    @property
    def first_index(self) -> int:
        """The index of the boundary. The log has the entries above it."""
        return self.entries[0][1]

    @property
    def last_index(self) -> int:
        """The index of the last entry."""
        return self.entries[-1][1]

    @property
    def dirty(self) -> bool:
        """Whether there are recorded changes that `take` has not returned yet."""
        return bool(self._parts)

    @property
    def unsynced_bytes(self) -> int:
        """The size in bytes of the commands that are not on disk yet, including those that were truncated meanwhile."""
        return self._noted_bytes + self._taken_bytes

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at `index`, or None if `index` is below the boundary or above the last entry."""
        position = index - self.entries[0][1]
        return self.entries[position][2] if 0 <= position < len(self.entries) else None

    def append(self, command: bytes, index: int, term: int) -> None:
        """Append one entry in memory, and record it for the next write. `index` must be the last index plus 1."""
        last = self.entries[-1]
        assert index == last[1] + 1, (index, term, last[1:])
        assert term >= last[2], (index, term, last[1:])
        self.entries.append((command, index, term))
        self.payload_bytes += len(command)
        self._parts.append(RECORD_HEADER.pack(ENTRY, len(command), index, term))
        self._parts.append(command)
        self._entry_count += 1
        self._noted_bytes += len(command)

    def truncate_from(self, index: int) -> None:
        """Remove the entries from `index` on in memory, and record that for the next write."""
        assert self.first_index < index, (self.first_index, index)
        keep = index - self.first_index
        if keep >= len(self.entries):
            return
        self.payload_bytes -= sum(len(entry[0]) for entry in self.entries[keep:])
        del self.entries[keep:]
        self.synced_index = min(self.synced_index, index - 1)
        self.in_flight_index = min(self.in_flight_index, index - 1)
        self._parts.append(encode_record(TRUNCATE, index, self.entries[-1][2]))

    def reset(self, index: int, term: int) -> None:
        """Remove all entries, because a snapshot that ends with the entry (index, term) replaces them. Record that for
        the next write.
        """
        self.entries = [(b"", index, term)]
        self.payload_bytes = 0
        self.synced_index = min(self.synced_index, index)
        self.in_flight_index = min(self.in_flight_index, index)
        self._parts.append(encode_record(RESET, index, term))
        self._resets = True

    def trim_to(self, index: int) -> None:
        """Make the entry at `index` the boundary, in memory only. `remove_before` later frees the disk space."""
        drop = index - self.first_index
        if drop > 0:
            assert drop < len(self.entries), (index, self.first_index, self.last_index)
            self.payload_bytes -= sum(len(entry[0]) for entry in self.entries[:drop])
            del self.entries[:drop]

    def take(self) -> LogWrite:
        """Return the recorded changes for one write, and clear them. At most one write may be in progress."""
        write = LogWrite(self._parts, self._entry_count, self.entries[-1][1:], self._resets)
        self._parts, self._entry_count, self._resets = [], 0, False
        self._taken_bytes, self._noted_bytes = self._noted_bytes, 0
        self.in_flight_index = self.last_index
        return write

    def written(self) -> None:
        """Record that the write in progress is durable, except for entries that were truncated since."""
        self.synced_index = self.in_flight_index
        self._taken_bytes = 0

    def _make_durable(self, last_write_offset: int) -> None:
        """Write the last write of an earlier process again, and sync all segments, because they may be only in the page
        cache.
        """
        for header in self._segments[:-1]:
            sync_file(self._disk, segment_name(header.base_position))
        last_write = self._file.read(self._file_bytes - last_write_offset, last_write_offset)
        self._file.write(last_write, last_write_offset)
        self._file.sync()
        self._disk.sync_directory()

    # Methods for the disk thread.

    def write(self, write: LogWrite) -> int:
        """Write the changes as one frame, and sync it. Return its size in bytes. The call waits for the disk."""
        body = b"".join(write.parts)
        frame = encode_frame(self._position, self._position, body)
        full = write.resets or self._file_bytes + len(frame) > self._segment_bytes_max
        if full and self._file_bytes > SEGMENT_HEADER.size:
            self._roll(frame)
        else:
            self._file.write(frame, self._file_bytes)
            self._file.sync()
            self._file_bytes += len(frame)
        self._position += len(frame)
        self._last = write.last
        # The reset is durable now, so the segments with older entries are not needed any more.
        if write.resets:
            self._remove_segments(len(self._segments) - 1)
        return len(frame)

    def remove_before(self, index: int) -> None:
        """Remove the segment files whose entries are all below `index`. The call waits for the disk."""
        count = 0
        while count + 1 < len(self._segments) and self._segments[count + 1].previous_index < index:
            count += 1
        self._remove_segments(count)

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        self._last_segment.close()

    def _roll(self, frame: bytes) -> None:
        """Create a new segment that begins with this frame. All frames of the old segment are already durable."""
        header = SegmentHeader(self._position, *self._last)
        self._file.close()
        self._file = self._disk.open(segment_name(self._position), create=True)
        self._file.write(header.encode() + frame, 0)
        self._file.sync()
        self._disk.sync_directory()
        self._last_segment.save(self._position)
        self._file_bytes = SEGMENT_HEADER.size + len(frame)
        self._segments.append(header)

    def _remove_segments(self, count: int) -> None:
        for header in self._segments[:count]:  # the oldest first, so that a crash leaves no gap
            self._disk.remove(segment_name(header.base_position))
            self._disk.sync_directory()
        del self._segments[:count]
