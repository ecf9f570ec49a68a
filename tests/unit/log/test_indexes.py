"""The three indexes of a segment: Kafka's format, look-ups compared with a linear search, and the refusal of invalid
files.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_broker.log.segments.indexes import (
    AbortedTransaction,
    CorruptIndex,
    OffsetIndex,
    TimeIndex,
    decode_transactions,
    encode_transactions,
)
from odradek_protocol.identity import Offset, ProducerId

rising = st.lists(st.integers(0, 1 << 20), unique=True, max_size=60).map(sorted)


def offset_index(offsets: list[int], positions: list[int]) -> OffsetIndex:
    index = OffsetIndex()
    for offset, position in zip(offsets, positions, strict=False):
        index.append(offset, position)
    return index


def test_an_offset_index_is_kafkas_bytes() -> None:
    index = offset_index([4, 9], [100, 0x01020304])
    assert index.to_bytes() == struct.pack(">iiii", 4, 100, 9, 0x01020304)
    assert index.to_bytes(1) == struct.pack(">ii", 9, 0x01020304)


@given(offsets=rising, positions=rising, sought=st.integers(0, 1 << 20))
def test_offset_look_ups_find_the_last_entry_at_or_below(
    offsets: list[int], positions: list[int], sought: int
) -> None:
    written = offset_index(offsets, positions)
    index = OffsetIndex.from_bytes(written.to_bytes(), log_size_bytes=1 << 21)
    pairs = list(zip(offsets, positions, strict=False))
    assert [index.entry(i) for i in range(len(index))] == pairs
    assert index.floor_of_offset(sought) == max([p for o, p in pairs if o <= sought], default=0)
    assert index.floor_of_position(sought) == max([p for _, p in pairs if p <= sought], default=0)


@given(offsets=rising, positions=rising, size_bytes=st.integers(0, 1 << 20))
def test_entries_past_the_end_of_the_log_are_left_out(
    offsets: list[int], positions: list[int], size_bytes: int
) -> None:
    data = offset_index(offsets, positions).to_bytes()
    index = OffsetIndex.from_bytes(data, log_size_bytes=size_bytes)
    pairs = list(zip(offsets, positions, strict=False))
    assert [index.entry(i) for i in range(len(index))] == [
        pair for pair in pairs if pair[1] < size_bytes
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 7,
        b"\0" * 16,
        struct.pack(">iiii", 5, 10, 4, 20),
        struct.pack(">iiii", 5, 10, 6, 10),
        struct.pack(">ii", -1, 10),
    ],
)
def test_bytes_that_are_no_offset_index_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptIndex):
        OffsetIndex.from_bytes(data, log_size_bytes=100)


def test_a_time_index_is_kafkas_bytes_and_takes_only_greater_times() -> None:
    index = TimeIndex()
    for timestamp_ms, offset in [(-1, 1), (50, 2), (50, 5), (40, 6), (60, 7)]:
        index.append(timestamp_ms, offset)
    assert index.to_bytes() == struct.pack(">qiqi", 50, 2, 60, 7)


@given(
    times=rising,
    offsets=rising,
    sought=st.integers(0, 1 << 20),
    cut=st.integers(0, 1 << 20),
)
def test_time_look_ups_and_cuts(
    times: list[int], offsets: list[int], sought: int, cut: int
) -> None:
    written = TimeIndex()
    pairs = list(zip(times, offsets, strict=False))
    for pair in pairs:
        written.append(*pair)
    index = TimeIndex.from_bytes(written.to_bytes())
    assert index.floor_of_timestamp(sought) == max([o for t, o in pairs if t < sought], default=0)
    index.cut_offsets(cut)
    assert [index.entry(i) for i in range(len(index))] == [p for p in pairs if p[1] < cut]


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 11,
        struct.pack(">qiqi", 5, 1, 5, 2),
        struct.pack(">qiqi", 5, 2, 6, 2),
        struct.pack(">qi", -1, 0),
        struct.pack(">qi", 7, -3),
    ],
)
def test_bytes_that_are_no_time_index_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptIndex):
        TimeIndex.from_bytes(data)


def test_a_transaction_index_is_kafkas_bytes() -> None:
    entry = AbortedTransaction(ProducerId(7), Offset(100), Offset(110), Offset(111))
    data = encode_transactions([entry])
    assert data == struct.pack(">hqqqq", 0, 7, 100, 110, 111)
    assert decode_transactions(data, base_offset=105) == [entry]


@pytest.mark.parametrize(
    "fields", [(1, 7, 100, 110, 111), (0, -1, 100, 110, 111), (0, 7, 111, 110, 0), (0, 7, 1, 9, 9)]
)
def test_bytes_that_are_no_transaction_index_are_refused(fields: tuple[int, ...]) -> None:
    with pytest.raises(CorruptIndex):
        decode_transactions(struct.pack(">hqqqq", *fields), base_offset=50)
    with pytest.raises(CorruptIndex):
        decode_transactions(b"\0" * 33, base_offset=50)
