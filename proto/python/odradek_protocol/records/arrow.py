"""Wraps decoded columns into pyarrow's types, without a copy. Needs the extra `odradek[arrow]`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from odradek_protocol.records.columns import BinaryColumn, Columns, HeadersColumn

if TYPE_CHECKING:
    import pyarrow as pa


def to_record_batch(
    columns: Columns, *, topic: str | None = None, partition: int | None = None
) -> pa.RecordBatch:
    """A record batch with the columns that were decoded, in this order, under these names:

    topic string and partition int32 (constants, when given), offset int64, timestamp
    timestamp[ms or us, UTC], key binary, value binary, headers
    list<struct<key: string, value: binary>>.
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
    """One value, laid out by hand: `pa.scalar` of a Python value imports pandas, most of a second."""
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
