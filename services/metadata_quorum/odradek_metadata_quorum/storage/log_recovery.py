"""Recovery of the write-ahead log at a start: the segments are replayed, a torn tail is truncated, and damage is
refused.

A separate file has the position where the last segment begins (`LastSegment`). A missing segment in the middle is
detected by the positions in the segment headers. Without the separate file, a missing last segment would not be
detected. The file is written after the new segment is durable and before any entry in it is acknowledged, so it never
names a segment that does not exist. If the file is missing (the first release had none) or torn, it is ignored and
written again when the log is opened. Older programs do not update the file, so the position in it may be that of an
earlier segment.
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
    """The log as it was read from the files. `entries[0]` is the boundary: the entry before the first one in use.

    `last_write_offset` is the offset in the last segment file at which the last write began. A write has one frame or,
    at the beginning of a segment, the segment header and one frame.
    """

    entries: list[Entry]
    segments: list[SegmentHeader]
    end_position: int
    last_write_offset: int


def recover_log(disk: Disk) -> RecoveredLog:
    """Replay all segments, and truncate a torn tail. Raises `CorruptStorage`, and `StorageMismatch` for a later format.

    The result may not be durable: the bytes may exist only in the page cache, because an earlier process may have been
    killed before its sync.
    """
    segments = _read_segments(disk)
    entries: list[Entry] = [(b"", segments[0][0].previous_index, segments[0][0].previous_term)]
    last_write_offset = 0
    position = segments[0][0].base_position
    for number, (header, data) in enumerate(segments):
        if header.base_position != position:
            raise CorruptStorage(
                f"{segment_name(header.base_position)} does not continue the previous segment,"
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
            disk.remove(name)  # a process crashed while it created this segment
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
    """Return whether the segment has a valid frame. If so, a damaged header is not the result of a crash, because
    header and first frame are one write.
    """
    return next(later_frames(data, 0, base_position_of(name)), None) is not None


def _refuse_damage(segments: list[tuple[SegmentHeader, bytes]], offset: int, position: int) -> None:
    """Raise `CorruptStorage` if durable bytes follow the damage at `offset`, so that it is not a torn tail."""
    name = segment_name(segments[0][0].base_position)
    # A crash can tear only the last segment, because a segment is completely synced before the next one is created.
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
        # The truncation begins before the first segment that exists, so only the entry before the truncation remains.
        else:
            entries[:] = [(b"", index - 1, term)]
    elif kind == RESET:
        entries[:] = [(b"", index, term)]
    else:
        raise newer_format("a valid record of the log", kind, RESET)


LAST_SEGMENT_NAME: Final = "log-last-segment"
_NOTE: Final = struct.Struct("<4sIIQ")  # magic, version, crc of the position, position
_POSITION: Final = struct.Struct("<Q")
_MAGIC: Final = b"ODLS"
_VERSION: Final = 1


def read_last_segment(disk: Disk) -> int:
    """Return the base position of the last segment, as stored in the file LAST_SEGMENT_NAME. Return 0 if there is no
    valid file. Raises `StorageMismatch` for a file of a later format.
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
    """The open file with the base position of the last segment. The constructor and `save` wait for the disk."""

    def __init__(self, disk: Disk, position: int) -> None:
        create = LAST_SEGMENT_NAME not in disk.names()
        self._file: DiskFile = disk.open(LAST_SEGMENT_NAME, create=create)
        self.save(position)
        if create:
            disk.sync_directory()

    def save(self, position: int) -> None:
        """Store the base position of a new last segment. The segment itself must already be durable."""
        crc = zlib.crc32(_POSITION.pack(position))
        self._file.write(_NOTE.pack(_MAGIC, _VERSION, crc, position), 0)
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
