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
from odradek.cli.record_format import json_renderer
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
