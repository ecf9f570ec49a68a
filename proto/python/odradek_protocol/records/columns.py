"""Decoders of records to columns in Arrow's memory layout, for fast reads of whole partitions.

A `ColumnBuilder` decodes batches and returns buffers in the Arrow columnar format, for which the Arrow library is not
needed. `to_record_batch` creates an Arrow record batch from these buffers without a copy. Columns that are not selected
are not decoded. Source: https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Final

from odradek_protocol.records.batch_header import BatchHeader, ByteBuffer, check_crc, iter_headers
from odradek_protocol.records.batch_reader import append_time_ms, expanded_records
from odradek_protocol.records.codec import RecordColumns
from odradek_protocol.records.compression import BYTES_EXPANDED_MAX

if TYPE_CHECKING:
    import pyarrow as pa


class Column(IntFlag):
    """The columns that a reader can select. Values may be combined."""

    KEY = 1
    VALUE = 2
    HEADERS = 4
    OFFSET = 8
    TIMESTAMP = 16


ALL_COLUMNS: Final = Column(31)


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """A column of Arrow's type `binary`.

    Bit i of `validity` is 1 if row i is not null; `validity` is None if no row is null. `offsets` has one int32 more
    than there are rows.
    """

    null_count: int
    validity: bytearray | None
    offsets: bytearray
    data: bytearray


@dataclass(frozen=True, slots=True)
class HeadersColumn:
    """The column of record headers, of Arrow's type `list<struct<key: string, value: binary>>`.

    `offsets` has one int32 more than there are rows; they are positions in `keys` and `values`. Invalid UTF-8 in header
    keys is replaced by U+FFFD.
    """

    offsets: bytearray
    keys: BinaryColumn
    values: BinaryColumn


@dataclass(frozen=True, slots=True)
class Columns:
    """The decoded columns. A column that was not selected is None. `offset` and `timestamp` are buffers of int64."""

    row_count: int
    key: BinaryColumn | None
    value: BinaryColumn | None
    headers: HeadersColumn | None
    offset: bytearray | None
    timestamp: bytearray | None
    timestamp_unit: str


class ColumnBuilder:
    """Decodes batches to columns: call `append_batch` for each batch, then `finish`.

    `timestamp_unit` is "ms" or "us". `bytes_expanded_max` limits the decompressed size of a batch.
    """

    __slots__ = ("_bytes_expanded_max", "_columns", "_unit")

    def __init__(
        self,
        columns: Column = ALL_COLUMNS,
        *,
        timestamp_unit: str = "ms",
        bytes_expanded_max: int = BYTES_EXPANDED_MAX,
    ) -> None:
        if timestamp_unit not in ("ms", "us"):
            raise ValueError(f"timestamp_unit must be ms or us, not {timestamp_unit!r}")
        self._columns = RecordColumns(int(columns), 1000 if timestamp_unit == "us" else 1)
        self._unit = timestamp_unit
        self._bytes_expanded_max = bytes_expanded_max

    @property
    def row_count(self) -> int:
        return self._columns.row_count

    @property
    def size_bytes(self) -> int:
        """The size of all keys, values and headers so far, in bytes."""
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
        """Add the records of the batch at `position` whose offsets are at least `start_offset`, and return their
        number. The caller skips control batches.

        Raises CorruptBatch, also for a timestamp that exceeds 64 bits in microseconds. Raises OverflowError if keys,
        values and headers together exceed 2 GiB, the limit of 32-bit offsets. An error does not change the columns.
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
        """Return the columns, and empty the builder, which may be used again."""
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
    """Decode the records of all complete batches in these buffers, which have the form of records in fetch responses.

    Control batches and records below `start_offset` are skipped. Records of aborted transactions are included. Raises
    the errors of `ColumnBuilder.append_batch`.
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


def to_record_batch(
    columns: Columns, *, topic: str | None = None, partition: int | None = None
) -> pa.RecordBatch:
    """Return an Arrow record batch with the decoded columns.

    Its columns are, in this order: `topic` (string) and `partition` (int32) if the arguments are not None, then
    `offset` (int64), `timestamp` (timestamp[ms or us, UTC]), `key` and `value` (binary), and `headers`
    (list<struct<key: string, value: binary>>).
    """
    import pyarrow as pa

    rows = columns.row_count
    arrays: list[pa.Array] = []
    fields: list[pa.Field] = []
    if topic is not None:
        arrays.append(_repeated_text(topic, rows))
        fields.append(pa.field("topic", pa.string(), nullable=False))
    if partition is not None:
        number = pa.py_buffer(partition.to_bytes(4, sys.byteorder, signed=True))
        arrays.append(_repeated(pa.int32(), [None, number], rows))
        fields.append(pa.field("partition", pa.int32(), nullable=False))
    if columns.offset is not None:
        arrays.append(_int64(pa.int64(), rows, columns.offset))
        fields.append(pa.field("offset", pa.int64(), nullable=False))
    if columns.timestamp is not None:
        kind = pa.timestamp(columns.timestamp_unit, tz="UTC")
        arrays.append(_int64(kind, rows, columns.timestamp))
        fields.append(pa.field("timestamp", kind, nullable=False))
    for name, column in (("key", columns.key), ("value", columns.value)):
        if column is not None:
            arrays.append(_binary(pa.binary(), rows, column))
            fields.append(pa.field(name, pa.binary()))
    if columns.headers is not None:
        headers = _headers(rows, columns.headers)
        arrays.append(headers)
        fields.append(pa.field("headers", headers.type, nullable=False))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _repeated_text(text: str, rows: int) -> pa.Array:
    import pyarrow as pa

    data = text.encode()
    offsets = bytes(4) + len(data).to_bytes(4, sys.byteorder)
    return _repeated(pa.string(), [None, pa.py_buffer(offsets), pa.py_buffer(data)], rows)


def _repeated(kind: pa.DataType, buffers: list[pa.Buffer | None], rows: int) -> pa.Array:
    """Return an array that repeats one value, whose Arrow buffers are `buffers`.

    The simpler `pa.scalar` is not used, because it imports pandas, which takes most of a second.
    """
    import pyarrow as pa

    return pa.repeat(pa.Array.from_buffers(kind, 1, buffers, null_count=0)[0], rows)


def _int64(kind: pa.DataType, rows: int, data: bytearray) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)], null_count=0)


def _binary(kind: pa.DataType, rows: int, column: BinaryColumn) -> pa.Array:
    import pyarrow as pa

    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, rows, buffers, null_count=column.null_count)


def _headers(rows: int, column: HeadersColumn) -> pa.Array:
    import pyarrow as pa

    entries = len(column.keys.offsets) // 4 - 1
    struct = pa.StructArray.from_arrays(
        [
            _binary(pa.string(), entries, column.keys),
            _binary(pa.binary(), entries, column.values),
        ],
        fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())],
    )
    kind = pa.list_(pa.field("element", struct.type, nullable=False))
    offsets = pa.py_buffer(column.offsets)
    return pa.Array.from_buffers(kind, rows, [None, offsets], null_count=0, children=[struct])
