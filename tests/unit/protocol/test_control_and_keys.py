"""Transaction markers, and the choice of a partition by a key's hash."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from odradek_protocol.records import (
    ControlRecord,
    ControlType,
    CorruptBatch,
    Record,
    decode_batches,
    decode_to_arrow,
    encode_batch,
    encode_marker,
    murmur2,
    parse_control_record,
    partition_for_key,
    read_control,
    read_header,
)
from tests.unit.protocol.codecs import Codec, each_codec


@pytest.mark.parametrize("marker", [ControlType.COMMIT, ControlType.ABORT])
def test_a_marker_says_how_the_transaction_ended(marker: ControlType) -> None:
    batch = encode_marker(
        marker,
        producer_id=5,
        producer_epoch=3,
        coordinator_epoch=12,
        timestamp_ms=99,
        base_offset=1_000,
        leader_epoch=2,
    )
    header = read_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 3, -1)
    assert (header.base_offset, header.next_offset) == (1_000, 1_001)
    assert read_control(batch) == ControlRecord(marker, 12)
    assert decode_to_arrow(batch).row_count == 0


def test_readers_of_a_fetch_see_no_markers_unless_they_ask() -> None:
    marker = encode_marker(
        ControlType.ABORT,
        producer_id=5,
        producer_epoch=3,
        coordinator_epoch=12,
        timestamp_ms=99,
        base_offset=2,
    )
    fetched = (
        encode_batch([Record(b"a"), Record(b"b")], base_offset=0)
        + marker
        + encode_batch([Record(b"c")], base_offset=3)
    )
    for cut in (fetched, fetched + marker[:-1]):
        records = decode_batches(cut, start_offset=1, topic="t", partition=4)
        assert [(r.key, r.offset, r.topic, r.partition) for r in records] == [
            (b"b", 1, "t", 4),
            (b"c", 3, "t", 4),
        ]
        assert [r.offset for r in decode_batches(cut, include_control=True)] == [0, 1, 2, 3]


def test_kafkas_own_bytes_are_read() -> None:
    """The key and value of an abort marker as Kafka's EndTransactionMarker writes them."""
    record = Record(b"\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x07")
    assert parse_control_record(record) == ControlRecord(ControlType.ABORT, 7)
    later = Record(b"\x00\x01\x00\x01", b"\x00\x01\x00\x00\x00\x07 and more")
    assert parse_control_record(later) == ControlRecord(ControlType.COMMIT, 7)


def test_types_to_come_are_unknown_not_errors() -> None:
    record = Record(struct.pack(">hh", 0, 77), None)
    assert parse_control_record(record) == ControlRecord(ControlType.UNKNOWN)
    leader_change = Record(struct.pack(">hh", 0, 2), b"whatever")
    assert parse_control_record(leader_change) == ControlRecord(ControlType.LEADER_CHANGE)


@pytest.mark.parametrize(
    "record",
    [
        Record(None, b""),
        Record(b"\x00\x00\x00", b"\x00" * 6),
        Record(b"\xff\xff\x00\x01", b"\x00" * 6),
        Record(b"\x00\x00\x00\x01", None),
        Record(b"\x00\x00\x00\x01", b"\x00" * 5),
    ],
)
def test_damaged_markers_are_corrupt(record: Record) -> None:
    with pytest.raises(CorruptBatch):
        parse_control_record(record)
    with pytest.raises(CorruptBatch):
        read_control(encode_batch([record], control=True))


def test_a_control_batch_holds_one_record() -> None:
    record = Record(b"\x00\x00\x00\x01", b"\x00" * 6)
    with pytest.raises(CorruptBatch, match="control batch has 2 records"):
        read_control(encode_batch([record, record], control=True))


def test_only_commit_and_abort_end_a_transaction() -> None:
    with pytest.raises(ValueError, match="LEADER_CHANGE"):
        encode_marker(
            ControlType.LEADER_CHANGE,
            producer_id=1,
            producer_epoch=1,
            coordinator_epoch=1,
            timestamp_ms=1,
        )


@each_codec
@pytest.mark.parametrize(
    ("key", "expected"),
    [  # UtilsTest.testMurmur2 of Apache Kafka
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_kafkas_own_vectors(codec: Codec, key: bytes, expected: int) -> None:
    assert codec.murmur2(key) == expected
    assert codec.murmur2(memoryview(bytearray(key))) == expected


@given(st.binary(max_size=70), st.integers(1, 100))
def test_keys_go_where_kafka_python_sends_them(key: bytes, partitions: int) -> None:
    theirs = kafka_python_murmur2(key)
    assert murmur2(key) & 0xFFFFFFFF == theirs & 0xFFFFFFFF
    assert partition_for_key(key, partitions) == (theirs & 0x7FFFFFFF) % partitions
