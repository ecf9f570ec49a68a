"""The file format of the write-ahead log: a segment contains frames, and a frame contains records.

    segment   header | frame | frame | ...
    header    magic, version, crc, base position, (index, term) of the entry before the segment
    frame     magic, crc, body length, position, synced_upto | body
    body      record | record | ...      the records of one write
    record    kind, payload length, index, term | payload

A *position* is the number of bytes of all frames since the log began, over all segments. A frame is written with one
write and one sync. It has its own position, and in `synced_upto` the position up to which the log was durable when the
frame was written.

These two positions distinguish a torn tail from damage. After a crash, any page of unsynced bytes may be missing while
a later page exists. Suppose the frame at position *o* has a wrong CRC, and a later frame has a correct one. If
`synced_upto` of the later frame is above *o*, the frame at *o* was durable when the later one was written. So the log
is damaged, truncating it would lose acknowledged entries, and the voter does not start. Otherwise neither frame was
synced when the power failed, no entry of them was acknowledged, and the log is truncated at *o*.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

ENTRY: Final = 1  # (index, term) and its command
# The entries from `index` on are removed; `term` is the term of the entry before `index`.
TRUNCATE: Final = 2
RESET: Final = 3  # all entries are removed; a snapshot that ends with (index, term) replaces them

SEGMENT_HEADER: Final = struct.Struct("<4sIIQQQ")  # magic, version, crc, base, index, term
FRAME_HEADER: Final = struct.Struct("<4sIIQQ")  # magic, crc, body length, position, synced_upto
RECORD_HEADER: Final = struct.Struct("<BIQQ")  # kind, payload length, index, term

# The version of the format of a whole segment: header, frames and records.
SEGMENT_VERSION: Final = 1

_SEGMENT_MAGIC: Final = b"ODSG"
_FRAME_MAGIC: Final = b"ODFR"
_PREFIX: Final = "log-"


def segment_name(base_position: int) -> str:
    """Return the file name of the segment that starts at this position. The names sort by position."""
    return f"{_PREFIX}{base_position:020d}"


def is_segment(name: str) -> bool:
    """Return whether this is the name of a segment file."""
    return name.startswith(_PREFIX) and name[len(_PREFIX) :].isdigit()


def base_position_of(name: str) -> int:
    """Return the base position in the name of a segment file."""
    return int(name[len(_PREFIX) :])


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment: the position where the segment starts, and the entry before its first entry."""

    base_position: int
    previous_index: int
    previous_term: int

    def encode(self) -> bytes:
        """Encode the header as `SEGMENT_HEADER.size` bytes."""
        rest = struct.pack("<QQQ", self.base_position, self.previous_index, self.previous_term)
        return struct.pack("<4sII", _SEGMENT_MAGIC, SEGMENT_VERSION, zlib.crc32(rest)) + rest

    @staticmethod
    def decode(data: bytes) -> SegmentHeader | None:
        """Decode a header. Return None if the bytes are not a complete, valid header of the known version."""
        if len(data) < SEGMENT_HEADER.size:
            return None
        magic, version, crc, base, index, term = SEGMENT_HEADER.unpack_from(data)
        if magic != _SEGMENT_MAGIC or version != SEGMENT_VERSION:
            return None
        if crc != zlib.crc32(data[12 : SEGMENT_HEADER.size]):
            return None
        return SegmentHeader(base, index, term)


def segment_version(data: bytes) -> int | None:
    """Return the format version in a segment's header, or None if the bytes are not a header."""
    if len(data) < SEGMENT_HEADER.size or not data.startswith(_SEGMENT_MAGIC):
        return None
    return int(SEGMENT_HEADER.unpack_from(data)[1])


def encode_record(kind: int, index: int, term: int, payload: bytes = b"") -> bytes:
    """Encode one record of a frame's body. `kind` is ENTRY, TRUNCATE or RESET."""
    return RECORD_HEADER.pack(kind, len(payload), index, term) + payload


def encode_frame(position: int, synced_upto: int, body: bytes) -> bytes:
    """Encode one frame, which the caller writes and syncs as a whole."""
    rest = struct.pack("<IQQ", len(body), position, synced_upto)
    crc = zlib.crc32(body, zlib.crc32(rest))
    return b"".join((struct.pack("<4sI", _FRAME_MAGIC, crc), rest, body))


@dataclass(frozen=True, slots=True)
class Frame:
    """A decoded frame whose CRC is correct. `end` is the offset after the frame in the decoded bytes."""

    position: int
    synced_upto: int
    body: memoryview
    end: int


def decode_frame(data: memoryview, offset: int, position: int | None) -> Frame | None:
    """Decode the frame at `offset` of `data`. Return None if there is no complete, valid frame, or if its position is
    not `position` (None: any position).
    """
    start = offset + FRAME_HEADER.size
    if start > len(data):
        return None
    magic, crc, length, at, synced_upto = FRAME_HEADER.unpack_from(data, offset)
    end = start + length
    if magic != _FRAME_MAGIC or end > len(data) or (position is not None and at != position):
        return None
    if crc != zlib.crc32(data[start:end], zlib.crc32(data[offset + 8 : start])):
        return None
    return Frame(at, synced_upto, data[start:end], end)


def later_frames(data: bytes, offset: int, base_position: int) -> Iterator[Frame]:
    """Yield each frame at or after `offset` whose CRC is correct and whose position fits its place in the segment.

    `data` is a whole segment that begins at `base_position`.
    """
    view = memoryview(data)
    at = data.find(_FRAME_MAGIC, offset)
    while at >= 0:
        frame = decode_frame(view, at, base_position + at - SEGMENT_HEADER.size)
        if frame is not None:
            yield frame
        at = data.find(_FRAME_MAGIC, at + 1)


def decode_records(body: memoryview) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield (kind, index, term, payload) of each record in the body of a valid frame."""
    offset = 0
    while offset < len(body):
        kind, length, index, term = RECORD_HEADER.unpack_from(body, offset)
        start = offset + RECORD_HEADER.size
        offset = start + length
        assert offset <= len(body), (offset, len(body))
        yield kind, index, term, bytes(body[start:offset])
