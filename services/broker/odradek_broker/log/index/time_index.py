"""When the records of one segment were made: `.timeindex`, sparse, in Kafka's format.

    each entry   int64   the greatest timestamp so far in the segment, ms since the epoch
                 int32   last offset of the first batch that has it, relative to the base offset

Both rise strictly, so a look-up of a time finds where records of that time or later may begin. A
closed segment's last entry is its greatest timestamp: retention reads nothing else.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from odradek_broker.log.index.offset_index import RELATIVE_OFFSET_MAX, CorruptIndex

ENTRY: Final = struct.Struct(">qi")
ENTRY_BYTES: Final = ENTRY.size
_MUST_SWAP: Final = sys.byteorder == "little"


class TimeIndex:
    """The entries of one segment, in memory; offsets are relative to its base offset."""

    __slots__ = ("_offsets", "_timestamps_ms")

    def __init__(self) -> None:
        self._timestamps_ms = array("q")
        self._offsets = array("i")

    @classmethod
    def from_bytes(cls, data: bytes) -> TimeIndex:
        """Read a file; raises CorruptIndex for what no segment's index can hold."""
        if len(data) % ENTRY_BYTES:
            raise CorruptIndex(f"{len(data)} bytes are no multiple of {ENTRY_BYTES}")
        index = cls()
        before_ms, before = -1, -1
        for timestamp_ms, relative_offset in ENTRY.iter_unpack(data):
            if timestamp_ms <= before_ms or not before < relative_offset <= RELATIVE_OFFSET_MAX:
                raise CorruptIndex(f"entry {timestamp_ms}, {relative_offset} does not rise")
            index._timestamps_ms.append(timestamp_ms)
            index._offsets.append(relative_offset)
            before_ms, before = timestamp_ms, relative_offset
        return index

    def to_bytes(self, first: int = 0) -> bytes:
        """The entries from number `first` on, as they stand in the file."""
        count = len(self._timestamps_ms)
        pairs = zip(self._timestamps_ms[first:count], self._offsets[first:count], strict=True)
        return b"".join(ENTRY.pack(*pair) for pair in pairs)

    def __len__(self) -> int:
        return len(self._offsets)

    def entry(self, number: int) -> tuple[int, int]:
        """(timestamp, relative offset) of one entry; negative numbers count from the end."""
        return self._timestamps_ms[number], self._offsets[number]

    def append(self, timestamp_ms: int, relative_offset: int) -> None:
        """Enter a new greatest timestamp; one that is not greater is left out, as Kafka does."""
        if self._offsets and (
            timestamp_ms <= self._timestamps_ms[-1] or relative_offset <= self._offsets[-1]
        ):
            return
        if timestamp_ms < 0:  # producers may leave timestamps out (-1)
            return
        self._offsets.append(relative_offset)
        self._timestamps_ms.append(timestamp_ms)

    def floor_of_timestamp(self, timestamp_ms: int) -> int:
        """A relative offset such that every record before it is older than `timestamp_ms`."""
        number = bisect_left(self._timestamps_ms, timestamp_ms)
        return self._offsets[number - 1] if number else 0

    def cut_offsets(self, relative_offset: int) -> None:
        """Forget entries of batches that end at or past `relative_offset`."""
        count = bisect_right(self._offsets, relative_offset - 1)
        del self._timestamps_ms[count:]
        del self._offsets[count:]
