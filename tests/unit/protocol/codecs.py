"""The C codec and the Python codec as values, so that a test can run with each of them, or compare
both.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import pytest

from odradek_protocol.records import CorruptBatch, Record, python_codec
from tests.tools import leave_out_module

try:
    from odradek_protocol.records import _codec
except ImportError:  # the installation found no compiler, and the Python codec serves
    leave_out_module("a C compiler")


@dataclass(frozen=True, slots=True)
class Codec:
    """One implementation of the codec.

    Its members are `Any`, because the tests also pass wrong arguments.
    """

    name: str
    Record: Any
    RecordBuffer: Any
    RecordReader: Any
    RecordColumns: Any
    crc32c: Any
    murmur2: Any
    lines: Any


C = Codec(
    "c",
    _codec.Record,
    _codec.RecordBuffer,
    _codec.RecordReader,
    _codec.RecordColumns,
    _codec.crc32c,
    _codec.murmur2,
    _codec.lines,
)
PYTHON = Codec(
    "python",
    python_codec.Record,
    python_codec.RecordBuffer,
    python_codec.RecordReader,
    python_codec.RecordColumns,
    python_codec.crc32c,
    python_codec.murmur2,
    python_codec.lines,
)
each_codec = pytest.mark.parametrize("codec", [C, PYTHON], ids=lambda codec: codec.name)

Plain = tuple[Any, ...]


def plain(record: Any) -> Plain:
    """Return a record of either codec as a tuple, so that records of both can be compared."""
    return (
        record.key,
        record.value,
        record.headers,
        record.timestamp_ms,
        record.offset,
        record.topic,
        record.partition,
        record.leader_epoch,
        record.timestamp_type,
    )


def encoded(codec: Codec, records: list[Record], **options: Any) -> Any:
    """Return a buffer with these records; a record's offset is its offset delta."""
    buffer = codec.RecordBuffer(**options)
    for record in records:
        appended = buffer.append(
            record.key, record.value, record.headers, record.timestamp_ms, record.offset
        )
        assert appended == buffer.size_bytes
    return buffer


def outcome(call: Any, *arguments: Any) -> Any:
    """Return the result of a call, or the type of the error that it raises."""
    try:
        return call(*arguments)
    except (CorruptBatch, OverflowError) as error:
        return type(error)


def read_all(codec: Codec, data: bytes, count: int, *batch: Any) -> Any:
    """Return all records as plain values, or the type of the error."""

    def read() -> list[Plain]:
        return [plain(record) for record in codec.RecordReader(data, count, *batch).read()]

    return outcome(read)


def columns_of(codec: Codec, data: bytes, count: int, *batch: Any, factor: int = 1) -> Any:
    """Return the finished columns of one batch, or the type of the error."""

    def build() -> Any:
        columns = codec.RecordColumns(31, factor)
        columns.append(data, count, *batch)
        return columns.finish()

    return outcome(build)


def with_crc(batch: bytes) -> bytes:
    """Return the batch with the length and the checksum that fit its bytes."""
    if len(batch) < 61:
        return batch
    crc = _codec.crc32c(batch[21:])
    return (
        batch[:8]
        + struct.pack(">i", len(batch) - 12)
        + batch[12:17]
        + struct.pack(">I", crc)
        + batch[21:]
    )
