"""Building a batch record by record: limits, order, and refused records, which leave the batch
unchanged.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_protocol.records import (
    BatchBuilder,
    Compression,
    CorruptBatch,
    Record,
    decode_batch,
    encode_batch,
    open_batch,
    read_header,
)
from tests.unit.protocol.codecs import Codec, each_codec, encoded
from tests.worlds import records as drawn

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


@each_codec
@given(drawn.records(min_size=2), st.integers(0, 20_000))
def test_a_full_buffer_refuses_and_stays_as_it_was(
    codec: Codec, records: list[Record], size_bytes_max: int
) -> None:
    buffer = codec.RecordBuffer(size_bytes_max)
    for record in records:
        before = (buffer.records(), buffer.record_count, buffer.size_bytes)
        size = buffer.append(record.key, record.value, record.headers, record.timestamp_ms)
        if size:
            assert size == buffer.size_bytes
            assert size <= size_bytes_max or buffer.record_count == 1
        else:
            assert before == (buffer.records(), buffer.record_count, buffer.size_bytes)
            assert buffer.record_count > 0
            alone = codec.RecordBuffer()
            alone.append(record.key, record.value, record.headers, record.timestamp_ms)
            # its deltas may be longer than alone, by 9 bytes of timestamp and 4 of offset at most
            assert buffer.size_bytes + alone.size_bytes - 61 + 18 > size_bytes_max


@given(drawn.records())
def test_the_size_told_is_the_size_of_the_batch(records: list[Record]) -> None:
    builder = BatchBuilder()
    for record in records:
        size = builder.append(record.key, record.value, record.headers, record.timestamp_ms)
        assert size == len(builder.build()) == builder.size_bytes


@each_codec
def test_any_buffer_of_bytes_is_taken(codec: Codec) -> None:
    buffer = codec.RecordBuffer()
    for kind in (bytes, bytearray, memoryview):
        buffer.append(kind(b"key"), kind(b"value"), [("h", kind(b"x"))], 1)
    alike = codec.RecordBuffer()
    for _ in range(3):
        alike.append(b"key", b"value", (("h", b"x"),), 1)
    assert buffer.records() == alike.records()
    source = bytearray(b"value")
    buffer.append(None, source)
    source += b"may grow again: nothing holds it"


@each_codec
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("key", b"v"), TypeError),
        ((b"k", "value"), TypeError),
        ((b"k", 7), TypeError),
        ((b"k", b"v", [(b"h", b"x")]), TypeError),
        ((b"k", b"v", [("h", "x")]), TypeError),
        ((b"k", b"v", [("h",)]), ValueError),
        ((b"k", b"v", [("h", b"x", b"y")]), ValueError),
        ((b"k", b"v", [("\ud800", b"x")]), UnicodeEncodeError),
        ((b"k", b"v", [7]), TypeError),
        ((b"k", b"v", 7), TypeError),
        ((b"k", b"v", None, "now"), TypeError),
        ((b"k", b"v", None, 1 << 63), ValueError),
        ((b"k", b"v", None, -(1 << 63) - 1), ValueError),
        ((b"k", b"v", None, 0, 0), ValueError),
        ((b"k", b"v", None, 0, -2), ValueError),
        ((b"k", b"v", None, 0, 1 << 31), ValueError),
        ((b"k", b"v", None, 0, 1 << 70), ValueError),
        ((b"k",), TypeError),
        ((b"k", b"v", None, 0, 1, 2), TypeError),
    ],
)
def test_what_is_no_record_is_refused_and_changes_nothing(
    codec: Codec, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    buffer = codec.RecordBuffer()
    buffer.append(b"first", b"record", (), 5)
    before = buffer.records()
    with pytest.raises(error):
        buffer.append(*arguments)
    assert (buffer.records(), buffer.record_count, buffer.last_offset_delta) == (before, 1, 0)
    assert buffer.append(b"next", b"record") == buffer.size_bytes


@each_codec
def test_timestamps_too_far_apart_are_refused(codec: Codec) -> None:
    buffer = codec.RecordBuffer(base_timestamp_ms=-(1 << 63))
    with pytest.raises(ValueError, match="timestamp"):
        buffer.append(b"k", b"v", None, INT64_MAX)
    buffer.append(b"k", b"v", None, -1)
    assert codec.RecordBuffer().append(b"k", b"v", None, INT64_MAX)


@each_codec
@pytest.mark.parametrize("size_bytes_max", [-1, 1 << 31, 1 << 80])
def test_a_senseless_bound_is_refused(codec: Codec, size_bytes_max: int) -> None:
    with pytest.raises(ValueError, match="size_bytes_max"):
        codec.RecordBuffer(size_bytes_max)


@each_codec
def test_header_keys_keep_bytes_that_are_not_utf8(codec: Codec) -> None:
    name = b"h\xff\xfe".decode("utf-8", "surrogateescape")
    buffer = codec.RecordBuffer()
    buffer.append(None, None, [(name, b"x")])
    assert b"h\xff\xfe" in buffer.records()
    (record,) = codec.RecordReader(buffer.records(), 1, 0, 0, 0).read()
    assert record.headers == ((name, b"x"),)
    columns = codec.RecordColumns(4)
    columns.append(buffer.records(), 1, 0, 0, 0, None, 0)
    headers = columns.finish()[3]
    assert headers[1][3] == b"h\xef\xbf\xbd\xef\xbf\xbd"


@each_codec
def test_many_headers_survive(codec: Codec) -> None:
    headers = tuple((f"h{i}", b"x" * i if i % 3 else None) for i in range(200))
    buffer = codec.RecordBuffer()
    buffer.append(b"k", b"v", headers)
    (record,) = codec.RecordReader(buffer.records(), 1, 0, 0, -1).read()
    assert record.headers == headers


def test_a_record_that_looks_back_into_its_builder_does_no_harm() -> None:
    class Sequence(list[tuple[str, bytes]]):
        def __iter__(self) -> Any:
            for _ in range(50):
                builder.append(b"inner", b"x" * 1000)
            return iter([("h", b"x")])

    builder = BatchBuilder()
    builder.append(b"outer", b"y", Sequence([("h", b"x")]))
    records = decode_batch(builder.build())
    assert [record.key for record in records] == [b"inner"] * 50 + [b"outer"]


def test_offsets_and_numbers_of_the_producer_are_kept() -> None:
    records = [Record(b"a", None, (), 5, 17), Record(b"b", None, (), 6, 23)]
    batch = encode_batch(
        records,
        base_offset=15,
        last_offset_delta=20,
        leader_epoch=4,
        producer_id=1 << 40,
        producer_epoch=9,
        base_sequence=77,
        transactional=True,
    )
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.record_count) == (15, 35, 2)
    assert (header.producer_id, header.producer_epoch) == (1 << 40, 9)
    assert (header.base_sequence, header.last_sequence) == (77, 97)
    assert [record.offset for record in decode_batch(batch)] == [17, 23]
    assert {record.leader_epoch for record in decode_batch(batch)} == {4}
    decoded = decode_batch(batch)
    again = encode_batch(
        decoded,
        base_offset=15,
        base_timestamp_ms=header.base_timestamp_ms,
        last_offset_delta=20,
        leader_epoch=4,
        producer_id=1 << 40,
        producer_epoch=9,
        base_sequence=77,
        transactional=True,
    )
    assert again == batch


def test_a_delete_horizon_is_the_base_of_the_timestamps() -> None:
    batch = encode_batch(
        [Record(b"a", None, (), 5_000), Record(b"b", None, (), 5_010)],
        base_timestamp_ms=9_000,
        delete_horizon=True,
    )
    header = read_header(batch)
    assert header.has_delete_horizon
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (9_000, 5_010)
    assert [record.timestamp_ms for record in decode_batch(batch)] == [5_000, 5_010]


def test_senseless_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="last offset delta -1"):
        BatchBuilder().build()
    builder = BatchBuilder()
    builder.append(b"k", b"v", None, 0, 5)
    with pytest.raises(ValueError, match="last offset delta 4"):
        builder.build(last_offset_delta=4)
    with pytest.raises(ValueError, match="offset 3 is below the base offset 4"):
        encode_batch([Record(offset=3)], base_offset=4)


@pytest.mark.parametrize("compression", Compression)
def test_a_reader_gives_a_batch_in_pieces(compression: Compression) -> None:
    records = [Record(b"k", b"%d" % i, (), i, i) for i in range(100)]
    batch = encode_batch(records, compression=compression)
    reader = open_batch(batch, start_offset=10, topic="t", partition=3)
    pieces = []
    while reader.remaining:
        piece = reader.read(7)
        assert len(piece) <= 7
        pieces += piece
    assert reader.read() == []
    assert [record.offset for record in pieces] == list(range(10, 100))
    assert {(record.topic, record.partition) for record in pieces} == {("t", 3)}


@each_codec
def test_a_reader_that_met_damage_stays_where_it_was(codec: Codec) -> None:
    buffer = encoded(codec, [Record(b"k", b"v", (), 1, i) for i in range(4)])
    reader = codec.RecordReader(buffer.records()[:-1], 4, 0, 3, 1)
    assert len(reader.read(2)) == 2
    for _ in range(2):
        with pytest.raises(CorruptBatch):
            reader.read()
        assert reader.remaining == 2
    assert [record.offset for record in reader.read(1)] == [2]
