"""Where batches lie in one segment's file: `.index`, sparse, in Kafka's format.

    each entry   int32   last offset of a batch, relative to the segment's base offset
                 int32   position of that batch's first byte in the `.log` file

Both rise strictly. A look-up finds the last entry at or below what is sought; the reader walks the
batch headers from there. The file may lag behind (entries go to it with a full sync, not with the
append) and may be lost: it can always be made again from the segment.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Final

ENTRY_BYTES: Final = 8
RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1
_MUST_SWAP: Final = sys.byteorder == "little"


class CorruptIndex(ValueError):
    """These bytes are no index of this segment; make it again."""


class OffsetIndex:
    """The entries of one segment, in memory. Offsets given and returned are relative.

    One thread appends while others may look up: the position is there before its offset is.
    """

    __slots__ = ("_offsets", "_positions")

    def __init__(self) -> None:
        self._offsets = array("I")
        self._positions = array("I")

    @classmethod
    def from_bytes(cls, data: bytes, *, log_size_bytes: int) -> OffsetIndex:
        """Read a file. Entries at or past the end of the log are left out; an entry that cannot
        be one raises CorruptIndex."""
        if len(data) % ENTRY_BYTES:
            raise CorruptIndex(f"{len(data)} bytes are no multiple of {ENTRY_BYTES}")
        words = array("I")
        words.frombytes(data)
        if _MUST_SWAP:
            words.byteswap()
        index = cls()
        index._offsets = words[0::2]
        index._positions = words[1::2]
        index._require_rising()
        index.cut_positions(log_size_bytes)
        return index

    def _require_rising(self) -> None:
        for column in (self._offsets, self._positions):
            values = column.tolist()
            if any(a >= b for a, b in pairwise(values)):
                raise CorruptIndex("the entries do not rise")
            if values and values[-1] > RELATIVE_OFFSET_MAX:
                raise CorruptIndex(f"entry {values[-1]} is out of range")

    def to_bytes(self, first: int = 0) -> bytes:
        """The entries from number `first` on, as they stand in the file."""
        count = len(self._offsets)
        words = array("I", bytes(ENTRY_BYTES * (count - first)))
        words[0::2] = self._offsets[first:count]
        words[1::2] = self._positions[first:count]
        if _MUST_SWAP:
            words.byteswap()
        return words.tobytes()

    def __len__(self) -> int:
        return len(self._offsets)

    def entry(self, number: int) -> tuple[int, int]:
        """(relative last offset, position) of one entry; negative numbers count from the end."""
        return self._offsets[number], self._positions[number]

    def positions(self) -> list[int]:
        """The positions of all entries, rising."""
        return self._positions.tolist()

    def append(self, relative_offset: int, position: int) -> None:
        """Both greater than those of the last entry."""
        assert not self._offsets or (
            relative_offset > self._offsets[-1] and position > self._positions[-1]
        ), (relative_offset, position, self._offsets[-1], self._positions[-1])
        self._positions.append(position)
        self._offsets.append(relative_offset)

    def floor_of_offset(self, relative_offset: int) -> int:
        """Position to walk from to find the batch that holds the offset; 0 if no entry helps."""
        number = bisect_right(self._offsets, relative_offset)
        return self._positions[number - 1] if number else 0

    def floor_of_position(self, position: int) -> int:
        """The last known start of a batch at or below `position`; 0 if no entry helps."""
        number = bisect_right(self._positions, position)
        return self._positions[number - 1] if number else 0

    def cut_positions(self, size_bytes: int) -> None:
        """Forget batches that begin at or past `size_bytes`."""
        count = bisect_left(self._positions, size_bytes)
        del self._offsets[count:]
        del self._positions[count:]
