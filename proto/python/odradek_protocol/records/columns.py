"""Records as columns in Arrow's memory layout, without Arrow: for whole tables at memory speed.

A `ColumnBuilder` takes batch after batch and gives the buffers that the Arrow columnar format
prescribes, which `arrow.to_record_batch` wraps without a copy. Columns that nobody asked for are
never built. Source: https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Final

from odradek_protocol.records.batch_header import (
    BatchHeader,
    ByteBuffer,
    check_crc,
    iter_headers,
)
from odradek_protocol.records.batch_reader import append_time_ms, expanded_records
from odradek_protocol.records.codec import RecordColumns
from odradek_protocol.records.compression import BYTES_EXPANDED_MAX


class Column(IntFlag):
    """The columns that can be asked for."""

    KEY = 1
    VALUE = 2
    HEADERS = 4
    OFFSET = 8
    TIMESTAMP = 16


ALL_COLUMNS: Final = Column(31)


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """Arrow `binary`: bit i of `validity` (absent without nulls), `offsets` int32 (rows + 1)."""

    null_count: int
    validity: bytearray | None
    offsets: bytearray
    data: bytearray


@dataclass(frozen=True, slots=True)
class HeadersColumn:
    """Arrow `list<struct<key: string, value: binary>>`: `offsets` int32 (rows + 1) into both.

    Header keys that are not UTF-8 have U+FFFD in place of what is wrong.
    """

    offsets: bytearray
    keys: BinaryColumn
    values: BinaryColumn


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows as buffers; a column is None when it was not asked for. Numbers are int64."""

    row_count: int
    key: BinaryColumn | None
    value: BinaryColumn | None
    headers: HeadersColumn | None
    offset: bytearray | None
    timestamp: bytearray | None
    timestamp_unit: str


class ColumnBuilder:
    """Collects batches into columns. `timestamp_unit` is "ms" or "us"."""

    __slots__ = ("_bytes_expanded_max", "_columns", "_unit")

    def __init__(
        self,
        columns: Column = ALL_COLUMNS,
        *,
        timestamp_unit: str = "ms",
        bytes_expanded_max: int = BYTES_EXPANDED_MAX,
    ) -> None:
        if timestamp_unit not in ("ms", "us"):
            raise ValueError(f"timestamp_unit is {timestamp_unit!r}, not ms or us")
        self._columns = RecordColumns(int(columns), 1000 if timestamp_unit == "us" else 1)
        self._unit = timestamp_unit
        self._bytes_expanded_max = bytes_expanded_max

    @property
    def row_count(self) -> int:
        return self._columns.row_count

    @property
    def size_bytes(self) -> int:
        """Of keys, values and headers so far."""
        return self._columns.size_bytes

    def append_batch(
        self,
        buffer: ByteBuffer,
        position: int,
        header: BatchHeader,
        *,
        check_crc_first: bool = True,
        start_offset: int = 0,
    ) -> int:
        """Add the records from `start_offset` on; return how many. Look for control batches first.

        Raises CorruptBatch (also for a timestamp beyond 64 bits in microseconds), or OverflowError
        when keys, values and headers together would pass the 2 GiB of 32-bit offsets; they then stay as they were.
        """
        if check_crc_first:
            check_crc(buffer, position, header)
        records = expanded_records(
            buffer, position, header, bytes_expanded_max=self._bytes_expanded_max
        )
        return self._columns.append(
            records,
            header.record_count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp_ms,
            append_time_ms(header),
            start_offset,
        )

    def finish(self) -> Columns:
        """The columns; the builder is empty afterwards and may be used again."""
        row_count, key, value, headers, offset, timestamp = self._columns.finish()
        return Columns(
            row_count=row_count,
            key=None if key is None else BinaryColumn(*key),
            value=None if value is None else BinaryColumn(*value),
            headers=None
            if headers is None
            else HeadersColumn(headers[0], BinaryColumn(*headers[1]), BinaryColumn(*headers[2])),
            offset=offset,
            timestamp=timestamp,
            timestamp_unit=self._unit,
        )


def decode_to_arrow(
    *buffers: ByteBuffer,
    columns: Column = ALL_COLUMNS,
    timestamp_unit: str = "ms",
    start_offset: int = 0,
    check_crc: bool = True,
    bytes_expanded_max: int = BYTES_EXPANDED_MAX,
) -> Columns:
    """The data records of all whole batches in these buffers (each as a fetch returned it).

    Control batches are passed over, and records below `start_offset`. Errors are those of
    `ColumnBuilder.append_batch`. Transactions that were aborted are the caller's to leave out.
    """
    builder = ColumnBuilder(
        columns, timestamp_unit=timestamp_unit, bytes_expanded_max=bytes_expanded_max
    )
    for buffer in buffers:
        for position, header in iter_headers(buffer):
            if header.is_control or header.next_offset <= start_offset:
                continue
            builder.append_batch(
                buffer, position, header, check_crc_first=check_crc, start_offset=start_offset
            )
    return builder.finish()
