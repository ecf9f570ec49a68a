"""Iteration over the batch headers of a file, without reading the records between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from odradek_broker.log.storage import File
from odradek_protocol.records.batch_header import (
    ATTRIBUTES_AT,
    BATCH_LENGTH_MIN,
    CONTROL_MASK,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    TRANSACTIONAL_MASK,
    ByteBuffer,
)
from odradek_protocol.records.errors import CorruptBatch
from odradek_protocol.records.hashes import crc32c

# `tuple.__new__` is faster than `Header._make`, which calls a Python function.
_new_tuple: Final = tuple.__new__
WINDOW_BYTES: Final = 8192
SCAN_BYTES: Final = 1 << 20


class Header(NamedTuple):
    """The fields of a batch's header, in the order of the file. It is a NamedTuple for speed, because a scan of a log
    creates millions of headers.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return LENGTH_PREFIX_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)


def header_at(buffer: ByteBuffer, position: int) -> Header:
    """Return the header at `position`. Raises CorruptBatch if the bytes there cannot be a batch header."""
    fields = HEADER.unpack_from(buffer, position)
    header = _new_tuple(Header, fields)
    base_offset, batch_length, _, magic, _, _, last_offset_delta = fields[:7]
    if (
        magic != MAGIC
        or batch_length < BATCH_LENGTH_MIN
        or base_offset < 0
        or last_offset_delta < 0
    ):
        raise CorruptBatch(
            f"these bytes are no batch header: magic {header.magic}, length {header.batch_length}, base offset"
            f" {header.base_offset}, last offset delta {header.last_offset_delta}"
        )
    return header


def headers_of(batches: ByteBuffer, next_offset: int) -> tuple[list[Header], int]:
    """Return the headers of complete batches, and the greatest timestamp of the batches in ms.

    The offsets of the batches must rise from `next_offset` on. Raises CorruptBatch if a header is invalid.
    """
    headers: list[Header] = []
    size_bytes, position, newest_ms = len(batches), 0, -1
    while position < size_bytes:
        fields = HEADER.unpack_from(batches, position)
        base_offset, batch_length, _, magic, _, _, last_offset_delta, _, max_timestamp_ms = fields[
            :9
        ]
        if (
            magic != MAGIC
            or batch_length < BATCH_LENGTH_MIN
            or base_offset < 0
            or last_offset_delta < 0
        ):
            header_at(batches, position)  # raises CorruptBatch
        headers.append(_new_tuple(Header, fields))
        assert base_offset >= next_offset, (headers[-1], next_offset)
        position += LENGTH_PREFIX_BYTES + batch_length
        next_offset = base_offset + last_offset_delta + 1
        if max_timestamp_ms > newest_ms:
            newest_ms = max_timestamp_ms
    assert headers, size_bytes
    assert position == size_bytes, (position, size_bytes)
    return headers, newest_ms


def walk_headers(
    file: File, position: int, end: int, *, window_bytes: int = WINDOW_BYTES
) -> Iterator[tuple[int, Header]]:
    """Yield (position, header) of each complete batch in [position, end).

    `position` must be the start of a batch. The walk ends before a batch that reaches past `end`. Raises
    CorruptBatch if the bytes at a batch boundary are no header. CRCs are not checked.
    """
    window, window_start = b"", position
    while position + HEADER_BYTES <= end:
        at = position - window_start
        if at + HEADER_BYTES > len(window):
            window = file.pread(min(window_bytes, end - position), position)
            window_start, at = position, 0
            if len(window) < HEADER_BYTES:
                return
        header = header_at(window, at)
        size_bytes = LENGTH_PREFIX_BYTES + header.batch_length
        if position + size_bytes > end:
            return
        yield position, header
        position += size_bytes


def walk_verified(
    file: File, position: int, end: int, *, scan_bytes: int = SCAN_BYTES
) -> Iterator[tuple[int, Header]]:
    """Like `walk_headers`, but read each batch completely and verify its CRC.

    The walk ends without an error before the first batch that is incomplete, invalid or has a wrong CRC.
    """
    while position + HEADER_BYTES <= end:
        wanted_bytes = min(scan_bytes, end - position)
        chunk = file.pread(wanted_bytes, position)
        view = memoryview(chunk)
        at = 0
        while at + HEADER_BYTES <= len(chunk):
            try:
                header = header_at(chunk, at)
            except CorruptBatch:
                return
            size_bytes = LENGTH_PREFIX_BYTES + header.batch_length
            if at + size_bytes > len(chunk):
                break
            if crc32c(view[at + ATTRIBUTES_AT : at + size_bytes]) != header.crc:
                return
            yield position + at, header
            at += size_bytes
        if at == 0:  # the batch is longer than the chunk: the next chunk is as long as the batch
            if len(chunk) < HEADER_BYTES:
                return
            size_bytes = LENGTH_PREFIX_BYTES + header_at(chunk, 0).batch_length
            # A chunk shorter than `wanted_bytes` means that the file was truncated during the walk, so reading a longer
            # chunk would not help.
            if position + size_bytes > end or len(chunk) < wanted_bytes:
                return
            scan_bytes = max(scan_bytes, size_bytes)
            continue
        position += at
