"""The three indexes of a segment, in Kafka's formats: by offset, by time, and of aborted transactions.

`.index` maps offsets to the positions of batches in the segment's file. It is sparse.

    each entry   int32   last offset of a batch, relative to the segment's base offset
                 int32   position of that batch's first byte in the `.log` file

Both numbers rise strictly. A look-up finds the last entry at or below the requested offset; the reader walks the batch
headers from the position of this entry.

`.timeindex` maps timestamps to offsets. It is sparse, too.

    each entry   int64   the greatest timestamp so far in the segment, ms since the epoch
                 int32   last offset of the first batch with this timestamp, relative to the base offset

Both numbers rise strictly, so a look-up of a timestamp finds the first offset that may have this or a later timestamp.
The last entry of a closed segment is the segment's greatest timestamp, by which retention judges the segment's age.

`.index` and `.timeindex` may lack the newest entries (a full sync writes them, not the append) and may be lost: they
can always be rebuilt from the segment.

`.txnindex` lists the aborted transactions of a segment in the order of their markers.

    each entry   int16   version, 0
                 int64   producer id
                 int64   first offset of the transaction
                 int64   last offset: its abort marker, which is in this segment
                 int64   last stable offset when the marker was written

A `read_committed` reader gets the entries that overlap its range. If the last stable offset of an entry is at or past
the end of the range, later entries cannot overlap the range.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import islice
from operator import ge
from typing import Final

from odradek_broker.compiled import Value
from odradek_protocol.identity import Offset, ProducerId

OFFSET_ENTRY_BYTES: Final = 8
RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1
_MUST_SWAP: Final = sys.byteorder == "little"


# Indexes without entries share these arrays and never change them: an empty array takes 80 bytes, and most partitions
# of a broker are idle.
_NO_POSITIONS: Final = array("I")
_NO_OFFSETS: Final = array("i")
_NO_TIMESTAMPS: Final = array("q")


class CorruptIndex(ValueError):
    """The bytes are not a valid index of this segment. The index must be rebuilt."""


def _require_rising(column: array[int]) -> None:
    values = column.tolist()
    if any(map(ge, values, islice(values, 1, None))):
        raise CorruptIndex("the index entries are not in rising order")


class OffsetIndex:
    """The offset index of one segment, in memory. Offsets are relative to the segment's base offset.

    One thread may append while others look up: an entry's position is added before its offset, and the number of
    offsets is the number of entries.
    """

    __slots__ = ("_offsets", "_positions")

    def __init__(self) -> None:
        self._offsets = self._positions = _NO_POSITIONS

    @classmethod
    def from_bytes(cls, data: bytes, *, log_size_bytes: int) -> OffsetIndex:
        """Decode an index file. Entries at or past the end of the `.log` file are left out. Raises CorruptIndex."""
        if len(data) % OFFSET_ENTRY_BYTES:
            raise CorruptIndex(
                f"the size of {len(data)} bytes is not a multiple of {OFFSET_ENTRY_BYTES}"
            )
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
            _require_rising(column)
            if column and column[-1] > RELATIVE_OFFSET_MAX:
                raise CorruptIndex(f"the entry {column[-1]} is out of range")

    def to_bytes(self, first: int = 0) -> bytes:
        """Return the entries from number `first` on, in the format of the index file."""
        count = len(self._offsets)
        words = array("I", bytes(OFFSET_ENTRY_BYTES * (count - first)))
        words[0::2] = self._offsets[first:count]
        words[1::2] = self._positions[first:count]
        if _MUST_SWAP:
            words.byteswap()
        return words.tobytes()

    def __len__(self) -> int:
        return len(self._offsets)

    def entry(self, number: int) -> tuple[int, int]:
        """Return (relative last offset, position) of one entry; negative numbers count from the end."""
        return self._offsets[number], self._positions[number]

    def positions(self) -> list[int]:
        """Return the positions of all entries, in rising order."""
        return self._positions.tolist()

    def append(self, relative_offset: int, position: int) -> None:
        """Add an entry. Its offset and its position must be greater than those of the last entry."""
        assert not self._offsets or (
            relative_offset > self._offsets[-1] and position > self._positions[-1]
        ), (relative_offset, position, self._offsets[-1], self._positions[-1])
        if not self._offsets:
            # Empty indexes share one array, which must stay empty.
            self._positions = array("I")
            self._offsets = array("I")
        # The position is appended first, because a reader in another thread counts the entries by their offsets.
        self._positions.append(position)
        self._offsets.append(relative_offset)

    def floor_of_offset(self, relative_offset: int) -> int:
        """Return the position from which to search for the batch with this offset; 0 if no entry is at or below it."""
        number = bisect_right(self._offsets, relative_offset)
        return self._positions[number - 1] if number else 0

    def floor_of_position(self, position: int) -> int:
        """Return the greatest indexed batch position at or below `position`; 0 if there is none."""
        number = bisect_right(self._positions, position)
        return self._positions[number - 1] if number else 0

    def cut_positions(self, size_bytes: int) -> None:
        """Remove the entries of batches that begin at or past `size_bytes`."""
        count = bisect_left(self._positions, size_bytes)
        del self._offsets[count:]
        del self._positions[count:]


_TIME_ENTRY: Final = struct.Struct(">qi")
TIME_ENTRY_BYTES: Final = _TIME_ENTRY.size


class TimeIndex:
    """The time index of one segment, in memory. Offsets are relative to the segment's base offset."""

    __slots__ = ("_offsets", "_timestamps_ms")

    def __init__(self) -> None:
        self._timestamps_ms = _NO_TIMESTAMPS
        self._offsets = _NO_OFFSETS

    @classmethod
    def from_bytes(cls, data: bytes) -> TimeIndex:
        """Decode an index file. Raises CorruptIndex if the bytes cannot be a segment's time index."""
        if len(data) % TIME_ENTRY_BYTES:
            raise CorruptIndex(
                f"the size of {len(data)} bytes is not a multiple of {TIME_ENTRY_BYTES}"
            )
        index = cls()
        # Whole columns are copied: a loop over the 262,144 entries of a full segment would take twice as long.
        words = array("I")
        words.frombytes(data)
        if _MUST_SWAP:
            words.byteswap()
        halves = array("I", bytes(8 * (len(words) // 3)))
        halves[_MUST_SWAP::2] = words[0::3]
        halves[not _MUST_SWAP :: 2] = words[1::3]
        if words:
            index._timestamps_ms = array("q", halves.tobytes())
            index._offsets = array("i", words[2::3].tobytes())
        for column in (index._timestamps_ms, index._offsets):
            _require_rising(column)
            if column and column[0] < 0:
                raise CorruptIndex(f"the first entry, {column[0]}, is negative")
        return index

    def to_bytes(self, first: int = 0) -> bytes:
        """Return the entries from number `first` on, in the format of the index file."""
        count = len(self._timestamps_ms)
        pairs = zip(self._timestamps_ms[first:count], self._offsets[first:count], strict=True)
        return b"".join(_TIME_ENTRY.pack(*pair) for pair in pairs)

    def __len__(self) -> int:
        return len(self._offsets)

    def entry(self, number: int) -> tuple[int, int]:
        """Return (timestamp, relative offset) of one entry; negative numbers count from the end."""
        return self._timestamps_ms[number], self._offsets[number]

    def append(self, timestamp_ms: int, relative_offset: int) -> None:
        """Add an entry if both its numbers are greater than those of the last entry; otherwise ignore it, as Kafka
        does.
        """
        if self._offsets and (
            timestamp_ms <= self._timestamps_ms[-1] or relative_offset <= self._offsets[-1]
        ):
            return
        if timestamp_ms < 0:  # producers may leave timestamps out (-1)
            return
        if not self._offsets:
            self._timestamps_ms = array("q")
            self._offsets = array("i")
        self._offsets.append(relative_offset)
        self._timestamps_ms.append(timestamp_ms)

    def floor_of_timestamp(self, timestamp_ms: int) -> int:
        """Return a relative offset such that all records before it are older than `timestamp_ms`; 0 if no entry is
        older.
        """
        number = bisect_left(self._timestamps_ms, timestamp_ms)
        return self._offsets[number - 1] if number else 0

    def cut_offsets(self, relative_offset: int) -> None:
        """Remove the entries of batches that end at or past `relative_offset`."""
        count = bisect_right(self._offsets, relative_offset - 1)
        del self._timestamps_ms[count:]
        del self._offsets[count:]


_TRANSACTION_ENTRY: Final = struct.Struct(">hqqqq")
_TRANSACTION_ENTRY_BYTES: Final = _TRANSACTION_ENTRY.size
_VERSION: Final = 0


class AbortedTransaction(Value, frozen=True):
    """An aborted transaction, whose records read_committed readers skip. `last_offset` is inclusive: the
    abort marker.
    """

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset


def decode_transactions(data: bytes, *, base_offset: int) -> list[AbortedTransaction]:
    """Decode a transaction index file. Raises CorruptIndex if it cannot be that of the segment at `base_offset`."""
    if len(data) % _TRANSACTION_ENTRY_BYTES:
        raise CorruptIndex(
            f"the size of {len(data)} bytes is not a multiple of {_TRANSACTION_ENTRY_BYTES}"
        )
    entries: list[AbortedTransaction] = []
    before = base_offset - 1
    for version, producer_id, first, last, stable in _TRANSACTION_ENTRY.iter_unpack(data):
        if version != _VERSION or producer_id < 0 or not 0 <= first <= last or last <= before:
            raise CorruptIndex(
                f"an entry is invalid or out of order: version {version}, producer {producer_id},"
                f" offsets {first} to {last}"
            )
        before = last
        entries.append(AbortedTransaction(ProducerId(producer_id), first, last, stable))
    return entries


def encode_transactions(entries: list[AbortedTransaction]) -> bytes:
    """Return the content of a transaction index file."""
    return b"".join(
        _TRANSACTION_ENTRY.pack(
            _VERSION, e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset
        )
        for e in entries
    )
