"""The file format of the write-ahead log: a segment contains frames, and a frame contains records.

    segment   header | frame | frame | ...
    header    magic, version, crc, base position, (index, term) of the entry before the segment
    frame     magic, crc, body length, position, synced_upto | body
    body      record | record | ...      as much as one sync made durable
    record    kind, payload length, index, term | payload

A *position* counts the frames' bytes since the log began, over all its segments. A frame is written
by one write and one sync; it names its own position, and up to which position the log was known to be
durable when it was written.

These two positions distinguish a torn tail from damage. After a crash any page of the unsynced bytes may be
missing while a later one is there. If the frame at position *o* fails its CRC, but a later one does
not, there are two cases. If the later one's `synced_upto` is above *o*, its writer knew *o* to be durable:
the log is damaged, and truncating it would lose acknowledged entries, so the voter does not start. Otherwise both
were in flight when the power failed: neither was acknowledged, and the log is truncated at *o*.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

ENTRY: Final = 1  # (index, term) and its command
TRUNCATE: Final = 2  # entries from `index` on are void; `term` is the term of the entry before
RESET: Final = 3  # the log is empty after (index, term): a snapshot took its place

SEGMENT_HEADER: Final = struct.Struct("<4sIIQQQ")  # magic, version, crc, base, index, term
FRAME_HEADER: Final = struct.Struct("<4sIIQQ")  # magic, crc, body length, position, synced_upto
RECORD_HEADER: Final = struct.Struct("<BIQQ")  # kind, payload length, index, term

SEGMENT_VERSION: Final = 1  # of the header and of all that follows it: frames and records

_SEGMENT_MAGIC: Final = b"ODSG"
_FRAME_MAGIC: Final = b"ODFR"
_PREFIX: Final = "log-"


def segment_name(base_position: int) -> str:
    """Return the file name of the segment that starts at this position; names sort by position."""
    return f"{_PREFIX}{base_position:020d}"


def is_segment(name: str) -> bool:
    """Return whether a file of this name is a segment."""
    return name.startswith(_PREFIX) and name[len(_PREFIX) :].isdigit()


def base_position_of(name: str) -> int:
    """Return the position in a segment's name."""
    return int(name[len(_PREFIX) :])


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment: the position where it starts, and the entry before its first one."""

    base_position: int
    previous_index: int
    previous_term: int

    def encode(self) -> bytes:
        """Return the header's bytes, `SEGMENT_HEADER.size` of them."""
        rest = struct.pack("<QQQ", self.base_position, self.previous_index, self.previous_term)
        return struct.pack("<4sII", _SEGMENT_MAGIC, SEGMENT_VERSION, zlib.crc32(rest)) + rest

    @staticmethod
    def decode(data: bytes) -> SegmentHeader | None:
        """Decode a header. Returns None if the bytes are not a complete header of a known version."""
        if len(data) < SEGMENT_HEADER.size:
            return None
        magic, version, crc, base, index, term = SEGMENT_HEADER.unpack_from(data)
        if magic != _SEGMENT_MAGIC or version != SEGMENT_VERSION:
            return None
        if crc != zlib.crc32(data[12 : SEGMENT_HEADER.size]):
            return None
        return SegmentHeader(base, index, term)


def segment_version(data: bytes) -> int | None:
    """Return the format version in a segment's header; None if the bytes are not a header."""
    if len(data) < SEGMENT_HEADER.size or not data.startswith(_SEGMENT_MAGIC):
        return None
    return int(SEGMENT_HEADER.unpack_from(data)[1])


def encode_record(kind: int, index: int, term: int, payload: bytes = b"") -> bytes:
    """Return one record of a frame's body."""
    return RECORD_HEADER.pack(kind, len(payload), index, term) + payload


def encode_frame(position: int, synced_upto: int, body: bytes) -> bytes:
    """Return the bytes of one frame. The caller writes and syncs them together."""
    rest = struct.pack("<IQQ", len(body), position, synced_upto)
    crc = zlib.crc32(body, zlib.crc32(rest))
    return b"".join((struct.pack("<4sI", _FRAME_MAGIC, crc), rest, body))


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame whose CRC matched; `end` is the offset in `data` after the frame."""

    position: int
    synced_upto: int
    body: memoryview
    end: int


def decode_frame(data: memoryview, offset: int, position: int | None) -> Frame | None:
    """Return the frame at `offset`; None if there is no complete frame, or one that has another position in
    its header.
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
    """Yield every frame from `offset` on whose CRC matches, and which is at the position in its header."""
    view = memoryview(data)
    at = data.find(_FRAME_MAGIC, offset)
    while at >= 0:
        frame = decode_frame(view, at, base_position + at - SEGMENT_HEADER.size)
        if frame is not None:
            yield frame
        at = data.find(_FRAME_MAGIC, at + 1)


def decode_records(body: memoryview) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield (kind, index, term, payload) of each record of a frame whose CRC matched."""
    offset = 0
    while offset < len(body):
        kind, length, index, term = RECORD_HEADER.unpack_from(body, offset)
        start = offset + RECORD_HEADER.size
        offset = start + length
        assert offset <= len(body), (offset, len(body))
        yield kind, index, term, bytes(body[start:offset])
