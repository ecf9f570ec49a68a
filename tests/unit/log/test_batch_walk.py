"""Walking over the batches of a file yields exactly its batches, for any size of the pieces in
which it is read.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek_broker.log.segments.batch_walk import (
    Header,
    header_at,
    headers_of,
    walk_headers,
    walk_verified,
)
from odradek_protocol.records.batch_header import HEADER_BYTES, MAGIC_AT
from odradek_protocol.records.errors import CorruptBatch
from tests.unit.log.material import batch
from tests.worlds.memory_storage import MemoryFile, MemoryStorage

SIZES = (20, 300, 0, 5_000, 20, 20)
LAST_OFFSET_DELTA_AT = 23
PIECES = (HEADER_BYTES, HEADER_BYTES + 1, 200, 5_061, 1 << 20)


def content() -> tuple[bytes, list[tuple[int, int]]]:
    """Return batches of several sizes, and the (position, base offset) of each."""
    data, places = b"", []
    for number, value_bytes in enumerate(SIZES):
        places.append((len(data), 2 * number))
        data += batch(2 * number, count=2, value_bytes=value_bytes)
    return data, places


def file_of(data: bytes) -> MemoryFile:
    storage = MemoryStorage()
    file = storage.open(Path("/a"), create=True)
    file.pwrite(data, 0)
    return file


def seen(walk: object) -> list[tuple[int, int]]:
    return [(position, header.base_offset) for position, header in walk]  # type: ignore[attr-defined]


@pytest.mark.parametrize("piece_bytes", PIECES)
def test_every_batch_is_seen_once_from_any_batch_on(piece_bytes: int) -> None:
    data, places = content()
    file = file_of(data)
    for number, (position, _) in enumerate(places):
        walk = walk_headers(file, position, len(data), window_bytes=piece_bytes)
        assert seen(walk) == places[number:]
        verified = walk_verified(file, position, len(data), scan_bytes=piece_bytes)
        assert seen(verified) == places[number:]


@pytest.mark.parametrize("piece_bytes", PIECES)
def test_a_walk_ends_before_the_batch_that_reaches_past_its_end(piece_bytes: int) -> None:
    data, places = content()
    file = file_of(data)
    ends = [position for position, _ in places[1:]] + [len(data)]
    for number, end in enumerate(ends):
        for cut, count in ((0, number + 1), (1, number), (HEADER_BYTES, number)):
            walk = walk_headers(file, 0, end - cut, window_bytes=piece_bytes)
            assert seen(walk) == places[:count], (end, cut)
            verified = walk_verified(file, 0, end - cut, scan_bytes=piece_bytes)
            assert seen(verified) == places[:count], (end, cut)


@pytest.mark.parametrize("piece_bytes", PIECES)
def test_a_file_that_is_shorter_than_it_was_ends_the_walk(piece_bytes: int) -> None:
    data, places = content()
    for cut in (1, 30, HEADER_BYTES + 1):
        file = file_of(data[:-cut])
        last = seen(walk_verified(file, 0, len(data), scan_bytes=piece_bytes))
        assert last == places[:-1]


@pytest.mark.parametrize("piece_bytes", PIECES)
def test_a_wrong_bit_ends_a_verified_walk_before_its_batch(piece_bytes: int) -> None:
    data, places = content()
    for number, (position, _) in enumerate(places):
        for at in (HEADER_BYTES - 1, HEADER_BYTES + 3, MAGIC_AT):
            wrong = bytearray(data)
            wrong[position + at] ^= 1
            walk = walk_verified(file_of(bytes(wrong)), 0, len(data), scan_bytes=piece_bytes)
            assert seen(walk) == places[:number], (number, at)


def changed(at: int, value: int, size: int) -> bytes:
    data = bytearray(batch(0, count=2))
    data[at : at + size] = value.to_bytes(size, "big", signed=True)
    return bytes(data)


@pytest.mark.parametrize(
    ("at", "size", "least"),
    [(0, 8, 0), (8, 4, HEADER_BYTES - 12), (LAST_OFFSET_DELTA_AT, 4, 0)],
    ids=["base offset", "length", "last offset delta"],
)
def test_bytes_that_can_be_no_header_are_refused(at: int, size: int, least: int) -> None:
    assert isinstance(header_at(changed(at, least, size), 0), Header)
    with pytest.raises(CorruptBatch, match="no batch"):
        header_at(changed(at, least - 1, size), 0)


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_batches_of_another_format_are_refused(magic: int) -> None:
    with pytest.raises(CorruptBatch, match=f"magic {magic}"):
        header_at(changed(MAGIC_AT, magic, 1), 0)


def test_the_headers_of_a_message_are_read_with_their_greatest_time() -> None:
    data = batch(5, count=2, timestamp_ms=3_000) + batch(9, count=1, timestamp_ms=2_000)
    headers, newest_ms = headers_of(data, 5)
    assert [(h.base_offset, h.last_offset) for h in headers] == [(5, 6), (9, 9)]
    assert newest_ms == 3_001
    assert sum(h.size_bytes for h in headers) == len(data)
    with pytest.raises(AssertionError):
        headers_of(data, 6)
    with pytest.raises(AssertionError):
        headers_of(batch(9) + batch(9), 5)
    with pytest.raises(AssertionError):
        headers_of(b"", 5)
