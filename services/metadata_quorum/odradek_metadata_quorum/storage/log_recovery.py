"""Recovery of the write-ahead log after any kind of stop: it replays the segments, truncates a torn tail, and
refuses damage.

A separate file notes where the last segment begins (`LastSegment`). Each segment names the entry that it follows, so
a missing segment in the middle is found; without the note, a missing last segment would go unnoticed. The note is
written after the segment is durable and before an entry in it is acknowledged, so it is never ahead of the log. A
note that is missing (the first release wrote none) or torn is ignored, and is written again when the log is opened.
Older programs do not update the file: its position is then behind the last segment, which is allowed.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from odradek_metadata_quorum.errors import CorruptStorage, is_newer, newer_format
from odradek_metadata_quorum.storage.disk import Disk, DiskFile, read_file
from odradek_metadata_quorum.storage.log_frame import (
    ENTRY,
    RESET,
    SEGMENT_HEADER,
    SEGMENT_VERSION,
    TRUNCATE,
    SegmentHeader,
    base_position_of,
    decode_frame,
    decode_records,
    is_segment,
    later_frames,
    segment_name,
    segment_version,
)

Entry = tuple[bytes, int, int]  # (command, index, term), as the engine needs it


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """The log as it was read from the files. `entries[0]` is the boundary: the last entry that is no longer used.

    `last_write_offset` is the position in the last segment where the last write began: that of a frame, or of a header
    with the first frame after it.
    """

    entries: list[Entry]
    segments: list[SegmentHeader]
    end_position: int
    last_write_offset: int


def recover_log(disk: Disk) -> RecoveredLog:
    """Replay every segment, and truncate a torn tail. Raises `CorruptStorage`, `StorageMismatch`.

    The bytes may exist only in the page cache, because an earlier process may have been killed before its sync.
    """
    segments = _read_segments(disk)
    entries: list[Entry] = [(b"", segments[0][0].previous_index, segments[0][0].previous_term)]
    last_write_offset = 0
    position = segments[0][0].base_position
    for number, (header, data) in enumerate(segments):
        if header.base_position != position:
            raise CorruptStorage(
                f"{segment_name(header.base_position)} does not continue the segment before it,"
                f" which ends at position {position}"
            )
        view = memoryview(data)
        offset = SEGMENT_HEADER.size
        last_write_offset = 0
        while offset < len(data):
            frame = decode_frame(view, offset, position)
            if frame is None:
                break
            for record in decode_records(frame.body):
                _replay(entries, record)
            position += frame.end - offset
            last_write_offset = offset if offset > SEGMENT_HEADER.size else 0
            offset = frame.end
        if offset < len(data):
            _refuse_damage(segments[number:], offset, position)
            _truncate(disk, segment_name(header.base_position), offset)
    return RecoveredLog(entries, [header for header, _ in segments], position, last_write_offset)


def _read_segments(disk: Disk) -> list[tuple[SegmentHeader, bytes]]:
    noted_position = read_last_segment(disk)
    names = [name for name in disk.names() if is_segment(name)]
    segments: list[tuple[SegmentHeader, bytes]] = []
    for name in names:
        data = read_file(disk, name)
        version = segment_version(data)
        if version is not None and is_newer(version, SEGMENT_VERSION):
            raise newer_format(name, version, SEGMENT_VERSION)
        header = SegmentHeader.decode(data)
        if header is not None and segment_name(header.base_position) == name:
            segments.append((header, data))
        elif (
            name == names[-1]
            and segments
            and base_position_of(name) > noted_position
            and not _holds_frames(name, data)
        ):
            disk.remove(name)  # the process crashed while it started this segment
            disk.sync_directory()
        else:
            raise CorruptStorage(
                f"{name}: the header is damaged, and a crash cannot have caused this"
            )
    if not segments:
        raise CorruptStorage("the directory is formatted, but the log has no segment")
    if segments[-1][0].base_position < noted_position:
        raise CorruptStorage(f"{segment_name(noted_position)}: the log's last segment is missing")
    return segments


def _holds_frames(name: str, data: bytes) -> bool:
    """Return whether a write to the segment was completed. The header belongs to the first write."""
    return next(later_frames(data, 0, base_position_of(name)), None) is not None


def _refuse_damage(segments: list[tuple[SegmentHeader, bytes]], offset: int, position: int) -> None:
    """Raise `CorruptStorage` if durable bytes follow the damage, because then it is not a torn tail."""
    name = segment_name(segments[0][0].base_position)
    # A crash can tear only the last segment, because each one is synced to its end before the next one is started.
    if len(segments) > 1:
        raise CorruptStorage(
            f"{name} is damaged at byte {offset}, and later entries exist in another segment"
        )
    for frame in later_frames(segments[0][1], offset + 1, segments[0][0].base_position):
        if frame.synced_upto > position:
            raise CorruptStorage(
                f"{name} is damaged at byte {offset}, and data after it had been synced to disk"
            )


def _truncate(disk: Disk, name: str, size: int) -> None:
    file = disk.open(name)
    file.truncate(size)
    file.sync()
    file.close()


def _replay(entries: list[Entry], record: tuple[int, int, int, bytes]) -> None:
    kind, index, term, payload = record
    if kind == ENTRY:
        if index != entries[-1][1] + 1:
            raise CorruptStorage(
                f"entries are missing: entry {index} follows entry {entries[-1][1]}"
            )
        entries.append((payload, index, term))
    elif kind == TRUNCATE:
        keep = index - entries[0][1]
        if keep > 0:
            del entries[keep:]
        # The log was truncated below this segment, so only the entry before the truncation is left.
        else:
            entries[:] = [(b"", index - 1, term)]
    elif kind == RESET:
        entries[:] = [(b"", index, term)]
    else:
        raise newer_format("the log, in a record that is whole,", kind, RESET)


LAST_SEGMENT_NAME: Final = "log-last-segment"
_NOTE: Final = struct.Struct("<4sIIQ")  # magic, version, crc of the position, position
_POSITION: Final = struct.Struct("<Q")
_MAGIC: Final = b"ODLS"
_VERSION: Final = 1


def read_last_segment(disk: Disk) -> int:
    """Return the base position of the last segment from its file; 0 if there is no such file. Raises
    `StorageMismatch`.
    """
    if LAST_SEGMENT_NAME not in disk.names():
        return 0
    data = read_file(disk, LAST_SEGMENT_NAME)[: _NOTE.size]
    if len(data) < _NOTE.size:
        return 0
    magic, version, crc, position = _NOTE.unpack(data)
    if magic == _MAGIC and is_newer(version, _VERSION):
        raise newer_format(LAST_SEGMENT_NAME, version, _VERSION)
    whole = magic == _MAGIC and version == _VERSION and crc == zlib.crc32(_POSITION.pack(position))
    return int(position) if whole else 0


class LastSegment:
    """The open file that contains the position of the last segment. The constructor and `save` wait for the disk."""

    def __init__(self, disk: Disk, position: int) -> None:
        create = LAST_SEGMENT_NAME not in disk.names()
        self._file: DiskFile = disk.open(LAST_SEGMENT_NAME, create=create)
        self.save(position)
        if create:
            disk.sync_directory()

    def save(self, position: int) -> None:
        """Store the base position of the new last segment, which must be durable already."""
        crc = zlib.crc32(_POSITION.pack(position))
        self._file.write(_NOTE.pack(_MAGIC, _VERSION, crc, position), 0)
        self._file.sync()

    def close(self) -> None:
        """Release the descriptor."""
        self._file.close()
