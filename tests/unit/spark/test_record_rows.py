"""Fetched batches become rows: aborted transactions, markers, partial ranges, and columns that were
not selected.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from odradek.partitions import TopicPartition
from odradek_protocol.records import ControlType, Record, encode_batch, encode_marker
from odradek_protocol.records.columns import Column, ColumnBuilder
from pyspark_odradek import record_rows
from pyspark_odradek.partition_stream import Chunk
from pyspark_odradek.record_rows import RecordRows
from pyspark_odradek.source_options import source_schema

NAME = TopicPartition("t", 3)


def of_transaction(producer_id: int, base_offset: int, *values: bytes) -> bytes:
    return encode_batch(
        [Record(value=value) for value in values],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def marker(kind: ControlType, producer_id: int, offset: int) -> bytes:
    return encode_marker(
        kind,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=0,
        base_offset=offset,
    )


LOG = b"".join(
    [
        of_transaction(1, 0, b"a0", b"a1"),
        of_transaction(2, 2, b"b2", b"b3"),
        marker(ControlType.ABORT, 1, 4),
        encode_batch([Record(value=b"p5")], base_offset=5),
        of_transaction(1, 6, b"a6"),  # the next one of the same producer
        marker(ControlType.COMMIT, 2, 7),
        marker(ControlType.COMMIT, 1, 8),
        of_transaction(2, 9, b"b9"),
        marker(ControlType.ABORT, 2, 10),
    ]
)
ABORTED = [(2, 9), (1, 0)]


def rows(
    *chunks: Chunk, end: int = 11, columns: tuple[str, ...] = ("offset", "value")
) -> list[tuple[object, ...]]:
    whole = source_schema(include_headers=True)
    schema = StructType([whole[name] for name in columns])
    batches = RecordRows(schema, NAME, end).batches(iter(chunks))
    table = pa.Table.from_batches(list(batches))
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_read_committed_leaves_out_what_was_aborted_and_nobody_sees_markers() -> None:
    committed = rows(Chunk(memoryview(LOG), 0, ABORTED))
    assert committed == [(2, b"b2"), (3, b"b3"), (5, b"p5"), (6, b"a6")]
    everything = rows(Chunk(memoryview(LOG), 0, None))
    assert [offset for offset, _ in everything] == [0, 1, 2, 3, 5, 6, 9]


def test_a_range_may_begin_within_an_aborted_transaction() -> None:
    assert rows(Chunk(memoryview(LOG), 1, ABORTED), end=6) == [(2, b"b2"), (3, b"b3"), (5, b"p5")]
    assert rows(Chunk(memoryview(LOG), 3, ABORTED), end=6) == [(3, b"b3"), (5, b"p5")]


@pytest.mark.parametrize(
    ("columns", "flags"),
    [
        (("offset",), Column.OFFSET),
        (("value", "timestamp"), Column.VALUE | Column.TIMESTAMP),
        (("key", "headers"), Column.KEY | Column.HEADERS),
        (("topic", "partition", "timestampType"), Column(0)),
    ],
)
def test_only_columns_of_the_schema_are_built(
    columns: tuple[str, ...], flags: Column, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Column] = []

    def spy(wanted: Column, *, timestamp_unit: str) -> ColumnBuilder:
        asked.append(wanted)
        return ColumnBuilder(wanted, timestamp_unit=timestamp_unit)  # type: ignore[arg-type]

    monkeypatch.setattr(record_rows, "ColumnBuilder", spy)
    plain = encode_batch([Record(b"k", b"v", headers=(("h", b"x"),), timestamp_ms=7)] * 3)
    found = rows(Chunk(memoryview(plain), 0, None), end=3, columns=columns)
    assert asked == [flags]
    assert len(found) == 3
    if columns[0] == "topic":
        assert found == [("t", 3, 0)] * 3
