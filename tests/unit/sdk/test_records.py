"""Reading records from standard input, and writing records to standard output."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading

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


def test_json_keeps_bytes_that_are_no_text() -> None:
    binary = b"\xff\xfe\x00"
    record = DeserializedRecord(
        binary, "grün".encode(), (("h", binary), ("n", None)), 1, 2, "t", 0, 0, 0
    )
    row = json.loads(json_renderer(key_as="text", value_as="text")(record))
    assert base64.b64decode(row["key"]["base64"]) == binary
    assert row["value"] == "grün"
    assert row["headers"] == [["h", {"base64": "//4A"}], ["n", None]]
