"""Where the log's last segment begins, in a file of its own: without it a lost one would go unnoticed.

A segment says what it follows, so a hole in the middle shows; that the last one is missing shows
nowhere else. The note is written after the segment is durable and before anybody is told of an entry
in it, so it is never ahead of the log. A note that is missing (the first release wrote none) or torn
says nothing, and is written again when the log is opened. Programs that do not know the file leave it
alone: the position that it names only ever falls behind.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from odradek_metadata_quorum.quorum.errors import is_newer, newer_format
from odradek_metadata_quorum.quorum.storage.disk import Disk, DiskFile, read_file

LAST_SEGMENT_NAME: Final = "log-last-segment"
_NOTE: Final = struct.Struct("<4sIIQ")  # magic, version, crc of the position, position
_POSITION: Final = struct.Struct("<Q")
_MAGIC: Final = b"ODLS"
_VERSION: Final = 1


def read_last_segment(disk: Disk) -> int:
    """The base position of the last segment that was noted, 0 where none was. Raises `StorageMismatch`."""
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
    """The note, open for writing. Opening and `save` wait for the disk."""

    def __init__(self, disk: Disk, position: int) -> None:
        create = LAST_SEGMENT_NAME not in disk.names()
        self._file: DiskFile = disk.open(LAST_SEGMENT_NAME, create=create)
        self.save(position)
        if create:
            disk.sync_directory()

    def save(self, position: int) -> None:
        """Note a segment that is durable."""
        crc = zlib.crc32(_POSITION.pack(position))
        self._file.write(_NOTE.pack(_MAGIC, _VERSION, crc, position), 0)
        self._file.sync()

    def close(self) -> None:
        """Release the descriptor."""
        self._file.close()
