"""The C codec and its Python reference give the same bytes, records, columns and kinds of errors."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_protocol.records import CorruptBatch, Record
from tests.unit.protocol.codecs import (
    PYTHON,
    C,
    Codec,
    columns_of,
    each_codec,
    encoded,
    plain,
    read_all,
)
from tests.worlds import records as drawn


@given(drawn.records(gaps=True), st.one_of(st.none(), st.integers(-1, 1 << 61)))
def test_encoders_write_the_same_bytes(records: list[Record], base_ms: int | None) -> None:
    in_c = encoded(C, records, base_timestamp_ms=base_ms)
    in_python = encoded(PYTHON, records, base_timestamp_ms=base_ms)
    assert in_c.records() == in_python.records()
    for name in ("record_count", "last_offset_delta", "base_timestamp_ms", "max_timestamp_ms"):
        assert getattr(in_c, name) == getattr(in_python, name)


@given(
    drawn.records(gaps=True),
    st.integers(0, 1 << 62),
    st.one_of(st.none(), st.integers(0, 1 << 60)),
    st.integers(-1, 3_000),
)
def test_readers_and_columns_give_the_same(
    records: list[Record], base_offset: int, append_ms: int | None, skipped: int
) -> None:
    buffer = encoded(C, records)
    batch = (
        base_offset,
        buffer.last_offset_delta,
        buffer.base_timestamp_ms,
        append_ms,
        base_offset + skipped,
    )
    data = buffer.records()
    in_c = read_all(C, data, len(records), *batch, "topic", 7, 3)
    assert in_c == read_all(PYTHON, data, len(records), *batch, "topic", 7, 3)
    assert in_c == [
        (
            record.key,
            record.value,
            record.headers,
            record.timestamp_ms if append_ms is None else append_ms,
            base_offset + record.offset,
            "topic",
            7,
            3,
            0 if append_ms is None else 1,
        )
        for record in records
        if record.offset >= skipped
    ]
    assert columns_of(C, data, len(records), *batch) == columns_of(
        PYTHON, data, len(records), *batch
    )


@given(drawn.records(), st.lists(drawn.damages, min_size=1, max_size=3), st.integers(-1, 1))
def test_damaged_records_are_refused_alike(
    records: list[Record], damages: list[drawn.Damage], count_off: int
) -> None:
    buffer = encoded(C, records)
    data = buffer.records()
    for damage in damages:
        data = damage.apply(data)
    count = buffer.record_count + count_off
    batch = (0, buffer.last_offset_delta, buffer.base_timestamp_ms, None, 0)
    assert read_all(C, data, count, *batch) == read_all(PYTHON, data, count, *batch)
    for factor in (1, 1000):
        assert columns_of(C, data, count, *batch, factor=factor) == columns_of(
            PYTHON, data, count, *batch, factor=factor
        )


@given(st.binary(max_size=100), st.integers(-1, 14), st.integers(-1, 14))
def test_random_bytes_are_refused_alike(data: bytes, count: int, last_delta: int) -> None:
    batch = (0, last_delta, 0, None, 0)
    assert read_all(C, data, count, *batch) == read_all(PYTHON, data, count, *batch)
    assert columns_of(C, data, count, *batch) == columns_of(PYTHON, data, count, *batch)


@each_codec
@given(drawn.records(gaps=True), st.data())
def test_columns_after_a_damaged_batch_are_as_before(
    codec: Codec, records: list[Record], data: st.DataObject
) -> None:
    good = encoded(codec, records)
    batch = (good.record_count, 0, good.last_offset_delta, good.base_timestamp_ms, None, 0)
    damaged = good.records() + b"\x00"  # seen only after every record was read
    columns = codec.RecordColumns(31, 1)
    expected = codec.RecordColumns(31, 1)
    for good_one in data.draw(st.lists(st.booleans(), min_size=1, max_size=6)):
        if good_one:
            columns.append(good.records(), *batch)
            expected.append(good.records(), *batch)
        else:
            with pytest.raises(ValueError, match="after the last record"):
                columns.append(damaged, *batch)
        assert columns.row_count == expected.row_count
        assert columns.size_bytes == expected.size_bytes
    assert columns.finish() == expected.finish()
    assert columns.row_count == 0
    assert columns.finish() == codec.RecordColumns(31, 1).finish()


@given(st.binary(max_size=300), st.integers(0, (1 << 32) - 1))
def test_checksums_and_hashes_are_the_same(data: bytes, value: int) -> None:
    assert C.crc32c(data, value) == PYTHON.crc32c(data, value)
    assert C.crc32c(memoryview(bytearray(data))) == PYTHON.crc32c(memoryview(bytearray(data)))
    assert C.murmur2(data) == PYTHON.murmur2(data)
    assert C.murmur2(bytearray(data)) == C.murmur2(data)


@pytest.mark.parametrize("size", [767, 768, 769, 12_287, 12_288, 12_289, 131_072, 300_001])
def test_checksums_of_large_buffers_are_the_same(size: int) -> None:
    data = os.urandom(size)
    assert C.crc32c(data) == PYTHON.crc32c(data)
    assert C.crc32c(memoryview(data)[1:]) == PYTHON.crc32c(memoryview(data)[1:])
    assert C.crc32c(data[100:], C.crc32c(data[:100])) == C.crc32c(data)


@each_codec
@pytest.mark.parametrize("base_ms", [(1 << 63) - 1, -(1 << 63)])
def test_timestamps_beyond_64_bits_are_corrupt(codec: Codec, base_ms: int) -> None:
    buffer = codec.RecordBuffer(base_timestamp_ms=0)
    buffer.append(b"k", b"v", None, 1 if base_ms > 0 else -1)
    batch = (0, 0, base_ms, None, 0)
    assert read_all(codec, buffer.records(), 1, *batch) is CorruptBatch
    assert columns_of(codec, buffer.records(), 1, *batch) is CorruptBatch
    assert len(read_all(codec, buffer.records(), 1, 0, 0, base_ms, 5, 0)) == 1


@each_codec
def test_records_show_and_compare_what_they_hold(codec: Codec) -> None:
    arguments = (b"k", None, (("h", b"\x00"), ("i", None)), 17, 5, "t", 2, 4, 1)
    record = codec.Record(*arguments)
    assert plain(record) == arguments
    assert repr(record) == repr(PYTHON.Record(*arguments))
    assert record == codec.Record(*arguments)
    for position, other in enumerate((b"l", b"", (), 18, 6, None, 3, 5, 0)):
        changed = (*arguments[:position], other, *arguments[position + 1 :])
        assert record != codec.Record(*changed)
    assert plain(codec.Record()) == (None, None, (), -1, -1, None, -1, -1, 0)
    assert record != arguments
    with pytest.raises(TypeError):
        hash(record)


def test_records_of_the_c_codec_hold_bytes_only() -> None:
    wrong: list[dict[str, Any]] = [
        {"key": "text"},
        {"value": bytearray()},
        {"topic": b"t"},
        {"headers": [("h", b"")]},
        {"headers": (("h",),)},
        {"headers": ((b"h", b""),)},
        {"headers": (("h", "v"),)},
    ]
    for arguments in wrong:
        with pytest.raises(TypeError):
            C.Record(**arguments)
    with pytest.raises(AttributeError):
        C.Record().key = b"k"


def test_the_environment_chooses_python_with_the_same_bytes() -> None:
    script = """
from odradek_protocol.records import *
records = [Record(b"k", b"v" * i, (("h", b"x"),), 1000 + i) for i in range(50)]
batches = b"".join(encode_batch(records, compression=c, producer_id=3) for c in Compression)
decoded = [repr(r) for p, h in iter_headers(batches) for r in decode_batch(batches, p, h)]
columns = decode_to_arrow(batches)
print(IMPLEMENTATION, crc32c(repr((batches, decoded, columns)).encode()))
"""
    printed = {}
    for pure in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "ODRADEK_PURE_PYTHON": pure},
            check=True,
            capture_output=True,
            text=True,
        )
        implementation, checksum = done.stdout.split()
        printed[implementation] = checksum
    assert set(printed) == {"c", "python"}
    assert printed["c"] == printed["python"]
