"""Numbers, strings, arrays and tags of Kafka's protocol: encoding and decoding, and malformed
bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_protocol.primitives import (
    Malformed,
    read_array_count,
    read_bytes,
    read_compact_array_count,
    read_compact_bytes,
    read_compact_string,
    read_string,
    read_tagged_fields,
    read_uvarint,
    read_varint,
    read_varlong,
    uvarint_size_bytes,
    varint_size_bytes,
    write_array_count,
    write_bytes,
    write_compact_array_count,
    write_compact_bytes,
    write_compact_string,
    write_string,
    write_tagged_fields,
    write_uvarint,
    write_varint,
)

int32s = st.integers(-(1 << 31), (1 << 31) - 1)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
texts = st.none() | st.text(max_size=200)
binaries = st.none() | st.binary(max_size=300)

FORMS: list[tuple[Any, Any, st.SearchStrategy[Any]]] = [
    (write_varint, read_varint, int32s),
    (write_varint, read_varlong, int64s),
    (write_uvarint, read_uvarint, st.integers(0, (1 << 32) - 1)),
    (write_bytes, read_bytes, binaries),
    (write_string, read_string, texts),
    (write_compact_bytes, read_compact_bytes, binaries),
    (write_compact_string, read_compact_string, texts),
    (write_tagged_fields, read_tagged_fields, st.dictionaries(st.integers(0, 999), st.binary())),
]
each_form = pytest.mark.parametrize(
    ("write", "read", "values"), FORMS, ids=[read.__name__ for _, read, _ in FORMS]
)


@each_form
@given(data=st.data(), before=st.binary(max_size=3), after=st.binary(max_size=3))
def test_what_was_written_is_read(
    write: Callable[[bytearray, Any], None],
    read: Callable[[bytes, int], tuple[Any, int]],
    values: st.SearchStrategy[Any],
    data: st.DataObject,
    before: bytes,
    after: bytes,
) -> None:
    value = data.draw(values)
    out = bytearray(before)
    write(out, value)
    end = len(out)
    assert read(bytes(out) + after, len(before)) == (value, end)
    assert read(memoryview(out), len(before)) == (value, end)
    for cut in range(len(before), end):
        with pytest.raises(Malformed):
            read(bytes(out[:cut]), len(before))


@each_form
@given(data=st.binary(max_size=40))
def test_any_bytes_are_read_or_malformed(
    write: object, read: Callable[[bytes, int], tuple[Any, int]], values: object, data: bytes
) -> None:
    try:
        _, end = read(data, 0)
    except Malformed:
        return
    assert 0 < end <= len(data)


@pytest.mark.parametrize(
    ("value", "expected"),
    [  # Kafka's ByteUtilsTest
        (0, b"\x00"),
        (-1, b"\x01"),
        (1, b"\x02"),
        (63, b"\x7e"),
        (-64, b"\x7f"),
        (64, b"\x80\x01"),
        (-65, b"\x81\x01"),
        (8191, b"\xfe\x7f"),
        (-8192, b"\xff\x7f"),
        (8192, b"\x80\x80\x01"),
        ((1 << 31) - 1, b"\xfe\xff\xff\xff\x0f"),
        (-(1 << 31), b"\xff\xff\xff\xff\x0f"),
        ((1 << 63) - 1, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        (-(1 << 63), b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    ],
)
def test_varints_have_kafkas_bytes(value: int, expected: bytes) -> None:
    out = bytearray()
    write_varint(out, value)
    assert out == expected
    assert varint_size_bytes(value) == len(expected)
    assert read_varlong(expected, 0) == (value, len(expected))


@given(st.integers(0, (1 << 64) - 1))
def test_the_size_told_is_the_size_written(value: int) -> None:
    out = bytearray()
    write_uvarint(out, value)
    assert uvarint_size_bytes(value) == len(out)


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (read_varint, b"\x80\x80\x80\x80\x10"),  # bit 32
        (read_varint, b"\x80\x80\x80\x80\x80\x01"),  # six bytes
        (read_varlong, b"\x80" * 9 + b"\x02"),  # bit 64
        (read_varlong, b"\x80" * 10 + b"\x01"),  # eleven bytes
        (read_uvarint, b"\xff\xff\xff\xff\x1f"),
        (read_string, b"\xff\xfe"),
        (read_string, b"\x00\x02\xff\xfe"),
        (read_compact_string, b"\x03\xc3\x28"),
        (read_bytes, b"\x80\x00\x00\x00"),
        (read_tagged_fields, b"\x02\x01\x00\x01\x00"),  # a tag twice
        (read_tagged_fields, b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_malformed_bytes_are_refused(read: Callable[[bytes, int], object], data: bytes) -> None:
    with pytest.raises(Malformed):
        read(data, 0)


def test_a_longer_encoding_than_needed_is_read_as_kafka_does() -> None:
    assert read_varint(b"\x82\x80\x00", 0) == (1, 3)


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (write_array_count, read_array_count),
        (write_compact_array_count, read_compact_array_count),
    ],
)
def test_counts_beyond_the_bytes_left_are_refused(write: Any, read: Any) -> None:
    for count in (-1, 0, 3):
        out = bytearray()
        write(out, count)
        assert read(bytes(out) + bytes(12), 0, 4) == (count, len(out))
        if count > 0:
            with pytest.raises(Malformed, match=f"{count} items"):
                read(bytes(out) + bytes(11), 0, 4)
    out = bytearray()
    write(out, (1 << 31) - 1)
    with pytest.raises(Malformed):
        read(bytes(out) + bytes(100), 0)


def test_too_long_a_string_is_not_written() -> None:
    with pytest.raises(ValueError, match="32768 bytes"):
        write_string(bytearray(), "x" * 32_768)
    with pytest.raises(ValueError, match="negative"):
        write_uvarint(bytearray(), -1)
