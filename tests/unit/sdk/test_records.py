"""Reading records from standard input, and writing records to standard output."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from odradek.cli.produce import lines_of
from odradek.cli.record_format import (
    InvalidRecord,
    json_renderer,
    key_in,
    record_of,
    renderer,
)
from odradek.consumer.consumer_record import DeserializedRecord
from odradek.errors import RecordTooLarge


async def lines(data: bytes, line_bytes_max: int = 1 << 20) -> list[bytes]:
    reading, writing = os.pipe()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "wb") as pipe:
            pipe.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        return [
            line async for some in lines_of(reading, line_bytes_max=line_bytes_max) for line in some
        ]
    finally:
        os.close(reading)
        thread.join()


@pytest.mark.parametrize(
    "data",
    [b"", b"one", b"one\n", b"one\n\ntwo\n", b"a\r\nb\rc", b"x" * 600_000 + b"\ny", b"\n" * 5],
)
async def test_input_is_cut_into_its_lines(data: bytes) -> None:
    expected = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    assert await lines(data) == (expected if expected[-1] else expected[:-1])


async def test_a_line_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(RecordTooLarge, match="longer than 1000 bytes"):
        await lines(b"short\n" + b"x" * 2_000_000, line_bytes_max=1_000)


async def test_input_that_is_given_up_takes_nothing_from_the_next_file_with_its_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the first input begins its second read only when the second file is open."""
    (tmp_path / "first").write_bytes(b"first\n")
    (tmp_path / "second").write_bytes(b"second\n")
    is_reading_again, has_replaced = threading.Event(), threading.Event()
    read, counts = os.read, itertools.count(1)

    def delayed_read(descriptor: int, size_bytes: int) -> bytes:
        if next(counts) == 2:
            is_reading_again.set()
            has_replaced.wait(30)
        return read(descriptor, size_bytes)

    monkeypatch.setattr(os, "read", delayed_read)
    first = os.open(tmp_path / "first", os.O_RDONLY)
    inputs = lines_of(first, line_bytes_max=1_000)
    assert await anext(inputs) == [b"first"]
    assert await asyncio.to_thread(is_reading_again.wait, 30)
    os.close(first)
    second = os.open(tmp_path / "second", os.O_RDONLY)
    assert second == first
    has_replaced.set()
    assert [lines async for lines in inputs] == []
    assert await anext(lines_of(second, line_bytes_max=1_000)) == [b"second"]
    os.close(second)


def test_json_keeps_bytes_that_are_no_text() -> None:
    binary = b"\xff\xfe\x00"
    record = DeserializedRecord(
        binary, "grün".encode(), (("h", binary), ("n", None)), 1, 2, "t", 0, 0, 0
    )
    row = json.loads(json_renderer(key_as="text", value_as="text", unconverted=Counter())(record))
    assert base64.b64decode(row["key"]["base64"]) == binary
    assert row["value"] == "grün"
    assert row["headers"] == [["h", {"base64": "//4A"}], ["n", None]]


NESTED = b"[" * 100_000 + b"]" * 100_000


def record_with(
    value: bytes | None,
    *,
    key: bytes | None = None,
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> DeserializedRecord[bytes, bytes]:
    return DeserializedRecord(key, value, headers, 1, 2, "t", 0, 0, 0)


@pytest.mark.parametrize(
    "value",
    [NESTED, rb'"\ud800"', b"NaN", b'{"a":[-Infinity]}', b"1e400", b"null", b'{"base64": "eA=="}'],
    ids=lambda value: value[:20],
)
def test_json_that_json_cannot_show_is_base64(value: bytes) -> None:
    odd = record_with(value, key=value)
    row = json.loads(
        json_renderer(key_as="json", value_as="json", unconverted=Counter())(odd),
        parse_constant=pytest.fail,
    )
    assert (
        base64.b64decode(row["value"]["base64"]) == base64.b64decode(row["key"]["base64"]) == value
    )


def test_json_at_every_depth_is_shown() -> None:
    render = json_renderer(key_as="text", value_as="json", unconverted=Counter())
    for depth in range(1, 3_000, 7):
        value = b"[" * depth + b"]" * depth
        line = render(record_with(value))
        assert value in line or base64.b64encode(value) in line


def test_a_tombstone_and_a_text_of_null_stay_apart() -> None:
    render = json_renderer(key_as="text", value_as="json", unconverted=Counter())
    for value in (None, b"null"):
        assert record_of(render(record_with(value))).value == value


def test_an_odd_record_does_not_stop_a_format() -> None:
    render = renderer("%v %h\n", key_as="text", value_as="json", unconverted=Counter())
    for value in (NESTED, rb'"\ud800"'):
        record = record_with(value, headers=(("a\udcff", b"1"),))
        assert render(record) == value + b" a\xff=1\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"k": ' + NESTED + b"}", "nested too deeply"),
        (rb'{"k": "\ud800"}', "is a surrogate"),
        (b'{"k": [NaN]}', "not finite"),
    ],
    ids=["nested", "surrogate", "nan"],
)
def test_a_field_that_cannot_be_a_key_is_refused(line: bytes, reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason):
        key_in(line, "k")
    assert key_in(b'{"k": {"base64": "\xc3\xbc"}}', "k") == rb'{"base64":"\u00fc"}'
