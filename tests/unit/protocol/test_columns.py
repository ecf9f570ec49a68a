"""Records as Arrow columns, compared column by column with columns that pyarrow builds from the
same data.
"""

from __future__ import annotations

import itertools
from array import array
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_protocol.records import (
    BatchBuilder,
    Column,
    ColumnBuilder,
    Compression,
    ControlType,
    CorruptBatch,
    Record,
    decode_to_arrow,
    encode_batch,
    encode_marker,
    iter_headers,
)
from odradek_protocol.records.columns import ALL_COLUMNS, to_record_batch
from tests.unit.protocol.codecs import PYTHON, C, Codec, each_codec
from tests.worlds import records as drawn

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(
            "headers",
            pa.list_(
                pa.field(
                    "element",
                    pa.struct(
                        [pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]
                    ),
                    nullable=False,
                )
            ),
            nullable=False,
        ),
    ]
)
batches_of_records = st.lists(
    st.tuples(drawn.records(gaps=True), drawn.compressions), min_size=1, max_size=4
)


def encode_all(drawn_batches: list[tuple[list[Record], Compression]]) -> tuple[bytes, list[Record]]:
    """Return the batches one after the other, and their records with their offsets in that log."""
    encoded, records, base_offset = [], [], 0
    for batch, compression in drawn_batches:
        moved = [
            Record(r.key, r.value, r.headers, min(r.timestamp_ms, 1 << 50), base_offset + r.offset)
            for r in batch
        ]
        encoded.append(encode_batch(moved, base_offset=base_offset, compression=compression))
        records += moved
        base_offset = moved[-1].offset + 1
    return b"".join(encoded), records


@given(batches_of_records, st.integers(-1, 3_000))
def test_columns_hold_what_pyarrow_would(
    drawn_batches: list[tuple[list[Record], Compression]], start_offset: int
) -> None:
    encoded, records = encode_all(drawn_batches)
    columns = decode_to_arrow(encoded, timestamp_unit="us", start_offset=start_offset)
    table = to_record_batch(columns, topic="flights", partition=3)
    table.validate(full=True)
    expected = pa.RecordBatch.from_pylist(
        [
            {
                "topic": "flights",
                "partition": 3,
                "offset": record.offset,
                "timestamp": record.timestamp_ms * 1000,
                "key": record.key,
                "value": record.value,
                "headers": [{"key": key, "value": value} for key, value in record.headers],
            }
            for record in records
            if record.offset >= start_offset
        ],
        schema=SCHEMA,
    )
    assert table.schema.equals(SCHEMA)
    assert table.equals(expected)


@each_codec
@given(st.sets(st.sampled_from(list(Column))))
def test_only_the_columns_asked_for_are_built(codec: Codec, wanted: set[Column]) -> None:
    buffer = codec.RecordBuffer()
    buffer.append(b"k", b"v", (("h", b"x"),), 7)
    columns = codec.RecordColumns(sum(wanted))
    assert columns.append(buffer.records(), 1, 0, 0, 7, None, 0) == 1
    assert columns.size_bytes == len(wanted & {Column.KEY, Column.VALUE}) + 2 * (
        Column.HEADERS in wanted
    )
    rows, *built = columns.finish()
    assert rows == 1
    order = [Column.KEY, Column.VALUE, Column.HEADERS, Column.OFFSET, Column.TIMESTAMP]
    assert [part is not None for part in built] == [column in wanted for column in order]


@each_codec
@pytest.mark.parametrize("nulls", ["none", "all", "last", "first"])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 64, 1_000])
def test_validity_bits_are_absent_or_exact(codec: Codec, nulls: str, rows: int) -> None:
    null = {
        "none": set(),
        "all": set(range(rows)),
        "last": {rows - 1},
        "first": {0},
    }[nulls]
    columns = codec.RecordColumns(int(Column.VALUE))
    for start in range(0, rows, 10):
        buffer = codec.RecordBuffer()
        part = range(start, min(start + 10, rows))
        for row in part:
            buffer.append(None, None if row in null else b"v")
        columns.append(buffer.records(), len(part), 0, len(part) - 1, -1, None, 0)
    _, _, (null_count, validity, offsets, data), *_ = columns.finish()
    assert null_count == len(null)
    assert len(offsets) == 4 * (rows + 1)
    assert data == b"v" * (rows - len(null))
    if not null:
        assert validity is None
    else:
        bits = int.from_bytes(validity, "little")
        assert len(validity) == (rows + 7) // 8
        assert {row for row in range(rows + 8) if bits >> row & 1} == set(range(rows)) - null


def test_a_builder_can_be_used_again_and_its_columns_are_independent() -> None:
    batch = encode_batch([Record(b"k", b"v" * 100)] * 50)
    ((position, header),) = iter_headers(batch)
    builder = ColumnBuilder(Column.VALUE)
    assert builder.append_batch(batch, position, header) == 50
    first = to_record_batch(builder.finish())
    assert builder.row_count == 0
    builder.append_batch(batch, position, header, start_offset=49)
    second = to_record_batch(builder.finish())
    assert (first.num_rows, second.num_rows) == (50, 1)
    assert first.column("value").to_pylist() == [b"v" * 100] * 50


def test_control_batches_and_cut_batches_are_no_rows() -> None:
    batch = encode_batch([Record(b"k", b"v")])
    marker = encode_marker(
        ControlType.ABORT, producer_id=1, producer_epoch=1, coordinator_epoch=1, timestamp_ms=1
    )
    columns = decode_to_arrow(batch + marker + batch, batch + batch[:-1])
    assert columns.row_count == 3


def test_nothing_is_a_table_too() -> None:
    table = to_record_batch(decode_to_arrow(b""), topic="t", partition=0)
    table.validate(full=True)
    assert table.num_rows == 0
    assert to_record_batch(decode_to_arrow(b"", columns=Column.KEY)).schema.names == ["key"]


def test_a_wrong_checksum_is_noticed_unless_told_otherwise() -> None:
    batch = bytearray(encode_batch([Record(b"k", b"value")]))
    batch[-2] ^= 1
    with pytest.raises(CorruptBatch, match="CRC32C"):
        decode_to_arrow(batch)
    assert decode_to_arrow(batch, check_crc=False).row_count == 1


def test_a_timestamp_that_microseconds_cannot_hold_is_corrupt() -> None:
    batch = encode_batch([Record(b"k", b"v", (), 1 << 60)])
    assert decode_to_arrow(batch).row_count == 1
    assert decode_to_arrow(batch, timestamp_unit="us", columns=Column.KEY).row_count == 1
    with pytest.raises(CorruptBatch, match="timestamp"):
        decode_to_arrow(batch, timestamp_unit="us")


@each_codec
@pytest.mark.parametrize("arguments", [(32, 1), (-1, 1), (31, 0), (31, 10)])
def test_senseless_columns_are_refused(codec: Codec, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="columns"):
        codec.RecordColumns(*arguments)


def test_a_unit_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="timestamp_unit must be ms or us, not 'ns'"):
        ColumnBuilder(ALL_COLUMNS, timestamp_unit="ns")


@each_codec
def test_columns_stop_before_32_bit_offsets_overflow(codec: Codec) -> None:
    """The large column is sparse memory that is never touched: only its length matters."""
    builder = BatchBuilder()
    builder.append(None, bytes(64 << 20))
    data = builder.records()
    columns = codec.RecordColumns(int(Column.VALUE))
    batch = (1, 0, 0, -1, None, 0)
    columns.append(data, *batch)
    with pytest.raises(OverflowError):
        columns.append(bytes(0x7FFFFFFF - 2 * (64 << 20)), *batch)
    assert columns.row_count == 1
    columns.append(data, *batch)
    assert len(columns.finish()[2][3]) == 2 * (64 << 20)


@given(st.lists(st.binary(max_size=9), max_size=20), st.data())
def test_rows_become_lines(values: list[bytes], data: st.DataObject) -> None:
    edges = array("i", itertools.accumulate(map(len, values), initial=0))
    rows = data.draw(st.integers(0, len(values)))
    expected = b"".join(value + b"\n" for value in values[:rows])
    for codec in (C, PYTHON):
        assert codec.lines(bytearray(b"".join(values)), bytearray(edges), rows) == expected


@each_codec
@pytest.mark.parametrize(
    ("edges", "rows"),
    [
        ([0, 3], 2),
        ([0, 3], -1),
        ([], 0),
        ([0, 4], 1),
        ([1, 3], 1),
        ([0, 3, 2], 2),
        ([0, -1, 3], 2),
        ([0, 2**31 - 1], 1),
    ],
)
def test_offsets_that_are_not_those_of_the_data_are_refused(
    codec: Codec, edges: list[int], rows: int
) -> None:
    with pytest.raises(ValueError, match=r"rows|offsets"):
        codec.lines(b"abc", bytearray(array("i", edges)), rows)
    with pytest.raises(TypeError):
        codec.lines("abc", bytearray(8), 1)
