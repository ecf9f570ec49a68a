"""Serializers and deserializers convert objects to bytes and back."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek import serializers as s
from odradek_protocol.rpc.v1 import common_pb2

SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"]}],
}
json_values = st.recursive(
    st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


@given(st.text())
def test_text(item: str) -> None:
    data = item.encode("utf-8", "surrogatepass")
    if data.decode("utf-8", "ignore") == item:
        assert s.from_text(s.text(item)) == item


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_integers_are_kafkas_longs(item: int) -> None:
    assert s.from_integer(s.integer(item)) == item
    assert s.integer(1) == b"\0\0\0\0\0\0\0\1"


@given(json_values)
def test_json(item: object) -> None:
    assert s.from_json(s.json(item)) == item


@given(st.lists(st.text(string.printable, max_size=8), min_size=1, max_size=6))
def test_a_row_of_csv_with_quotes_commas_and_line_breaks(row: list[str]) -> None:
    assert s.from_csv_row(s.csv_row(row)) == row


@given(st.text(max_size=9), st.none() | st.integers(-(1 << 31), (1 << 31) - 1))
def test_avro(carrier: str, delay: int | None) -> None:
    pytest.importorskip("fastavro")
    item = {"carrier": carrier, "delay": delay}
    assert s.from_avro(SCHEMA)(s.avro(SCHEMA)(item)) == item


def test_avro_read_by_a_newer_schema() -> None:
    pytest.importorskip("fastavro")
    newer = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "gate", "type": "int", "default": 4}]}
    data = s.avro(SCHEMA)({"carrier": "UA", "delay": None})
    assert s.from_avro(SCHEMA, reader_schema=newer)(data)["gate"] == 4


def test_protobuf_messages() -> None:
    message = common_pb2.TopicPartition(topic="t", partition=3)
    assert s.from_protobuf(common_pb2.TopicPartition)(s.protobuf(message)) == message


def test_null_goes_through_everything() -> None:
    pairs = [
        (s.raw, s.raw), (s.text, s.from_text), (s.integer, s.from_integer), (s.json, s.from_json),
        (s.csv_row, s.from_csv_row), (s.protobuf, s.from_protobuf(common_pb2.TopicPartition)),
    ]  # fmt: skip
    for serialize, deserialize in pairs:
        assert serialize(None) is None
        assert deserialize(None) is None


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda: s.raw("text"), TypeError),
        (lambda: s.from_text(b"\xff"), UnicodeDecodeError),
        (lambda: s.from_json(b"{"), ValueError),
        (lambda: s.json(float("nan")), ValueError),
        (lambda: s.json({1, 2}), TypeError),
        (lambda: s.from_csv_row(b"a,b\nc,d"), ValueError),
        (lambda: s.from_csv_row(b'"a'), ValueError),
    ],
)
def test_what_cannot_be_read_or_written_is_an_error(act, error: type[Exception]) -> None:
    with pytest.raises(error):
        act()


def test_avro_with_bytes_left_over_is_an_error() -> None:
    pytest.importorskip("fastavro")
    data = s.avro(SCHEMA)({"carrier": "UA", "delay": 1})
    assert data is not None
    with pytest.raises(ValueError, match="1 bytes after"):
        s.from_avro(SCHEMA)(data + b"x")
