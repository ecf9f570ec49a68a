"""The 61 bytes of a batch header: decoding them, setting offset and epoch in them, and refusing
invalid ones.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_protocol.records import (
    BatchHeader,
    ChecksumMismatch,
    Compression,
    CorruptBatch,
    Record,
    TimestampType,
    TruncatedBatch,
    UnsupportedCompression,
    UnsupportedMagic,
    check_crc,
    encode_batch,
    iter_headers,
    read_header,
    stamp,
)
from odradek_protocol.records.batch_header import ATTRIBUTES_AT, HEADER

BATCH = encode_batch(
    [Record(b"k", b"v", (), 1_000), Record(b"l", b"w", (), 1_500), Record(None, None, (), 900)],
    base_offset=40,
    leader_epoch=6,
    producer_id=7,
    producer_epoch=2,
    base_sequence=(1 << 31) - 2,
    transactional=True,
    compression=Compression.ZSTD,
)


def with_fields(**changes: int) -> bytes:
    header = read_header(BATCH)
    values = [changes.get(name, getattr(header, name)) for name in BatchHeader._fields]
    return HEADER.pack(*values) + BATCH[HEADER.size :]


def test_a_header_says_what_was_built() -> None:
    header = read_header(b"xyz" + BATCH, 3)
    assert header.base_offset == 40
    assert header.last_offset == 42
    assert header.next_offset == 43
    assert header.size_bytes == len(BATCH)
    assert header.partition_leader_epoch == 6
    assert header.record_count == 3
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1_000, 1_500)
    assert (header.producer_id, header.producer_epoch) == (7, 2)
    assert header.compression is Compression.ZSTD
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert header.has_producer_id
    assert header.is_transactional
    assert not header.is_control
    assert not header.has_delete_horizon


def test_sequences_wrap_after_the_largest_int() -> None:
    header = read_header(BATCH)
    assert (header.base_sequence, header.last_sequence) == ((1 << 31) - 2, 0)
    assert read_header(encode_batch([Record(b"k")])).last_sequence == -1


@given(st.integers(0, (1 << 62)), st.integers(-1, (1 << 31) - 1), st.integers(0, 20))
def test_a_stamp_changes_two_fields_and_no_checksum(
    base_offset: int, leader_epoch: int, position: int
) -> None:
    buffer = bytearray(bytes(position) + BATCH)
    stamp(buffer, position, base_offset, leader_epoch)
    header = read_header(buffer, position)
    check_crc(buffer, position, header)
    assert (header.base_offset, header.partition_leader_epoch) == (base_offset, leader_epoch)
    stamp(memoryview(buffer), position, 40, 6)
    assert buffer == bytes(position) + BATCH


@given(st.integers(ATTRIBUTES_AT * 8, len(BATCH) * 8 - 1))
def test_one_flipped_bit_under_the_checksum_is_noticed(bit: int) -> None:
    damaged = bytearray(BATCH)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ChecksumMismatch, match="CRC32C of the batch at position 0"):
        check_crc(damaged, 0, read_header(BATCH))


def test_a_batch_whose_end_is_missing_is_truncated() -> None:
    with pytest.raises(
        TruncatedBatch, match=f"has {len(BATCH)} bytes, but only {len(BATCH) - 1} bytes remain"
    ):
        check_crc(BATCH[:-1], 0, read_header(BATCH))


@pytest.mark.parametrize(
    ("damaged", "error", "message"),
    [
        (b"", TruncatedBatch, "61 bytes, but only 0 bytes remain"),
        (BATCH[:60], TruncatedBatch, "61 bytes, but only 60 bytes remain"),
        (with_fields(magic=1), UnsupportedMagic, "record format 1"),
        (with_fields(magic=1)[:30], UnsupportedMagic, "record format 1"),
        (with_fields(batch_length=48), CorruptBatch, "batch length 48"),
        (with_fields(batch_length=-1), CorruptBatch, "batch length -1"),
        (with_fields(base_offset=-1), CorruptBatch, "base offset -1"),
        (with_fields(base_offset=(1 << 63) - 2), CorruptBatch, "base offset 9223372036854775806"),
        (with_fields(last_offset_delta=-1), CorruptBatch, "last offset delta -1"),
        (with_fields(record_count=-1), CorruptBatch, "record count -1"),
        (with_fields(record_count=4), CorruptBatch, "does not fit its last offset delta 2"),
    ],
)
def test_a_header_no_batch_can_have_is_refused(
    damaged: bytes, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_header(damaged)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_compression_is_named(codec: int) -> None:
    with pytest.raises(UnsupportedCompression, match=f"codec {codec} is unknown"):
        _ = read_header(with_fields(attributes=codec)).compression


def test_iteration_gives_whole_batches_and_stops_at_a_cut_one() -> None:
    batches = BATCH * 3
    size = len(BATCH)
    for end in range(2 * size, 3 * size):
        found = list(iter_headers(memoryview(batches)[:end]))
        assert [position for position, _ in found] == [0, size]
    assert [position for position, _ in iter_headers(batches)] == [0, size, 2 * size]
    assert list(iter_headers(b"")) == []


def test_iteration_stops_at_zeros_with_an_error() -> None:
    found = iter_headers(BATCH + bytes(100))
    next(found)
    with pytest.raises(CorruptBatch):
        next(found)


@given(st.binary(max_size=200))
def test_iteration_ends_on_any_bytes(data: bytes) -> None:
    try:
        positions = [position for position, _ in iter_headers(data)]
    except CorruptBatch:
        return
    assert positions == sorted(set(positions))


def test_an_old_message_set_is_named() -> None:
    message = struct.pack(">qiIbb", 0, 14 + 8, 0, 0, 0) + b"\xff" * 16
    with pytest.raises(UnsupportedMagic, match="record format 0"):
        list(iter_headers(message))
