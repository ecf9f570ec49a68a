"""Reads a FetchResponse without copying the records out of it.

A generated protobuf class copies every `bytes` field twice on its way to Python, which at the rate
of a fetch is the largest single cost of a consumer. Here `records` is a view into the message as the
transport received it. All other fields of an entry are few and small: they are copied out of the entry and parsed by
the generated class, which works because a message is the concatenation of its fields, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from odradek_protocol.rpc.v1 import broker_service_pb2 as pb

_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
_PARTITIONS_FIELD = 1
_RECORDS_FIELD = 4


@dataclass(slots=True)
class FetchedPartition:
    """One entry of a FetchResponse: its fields, and its record batches as a view."""

    news: pb.FetchPartitionData
    """All fields but `records`, which is empty here."""
    records: memoryview


def decode_fetch_response(message: bytes) -> list[FetchedPartition]:
    """Decode the entries of a FetchResponse, in order.

    Raises:
        ValueError: the bytes are not a FetchResponse.
    """
    view = memoryview(message)
    entries = []
    position, end = 0, len(message)
    while position < end:
        tag, position = _varint(message, position, end)
        if tag == _PARTITIONS_FIELD << 3 | _BYTES:
            start, position = _span(message, position, end)
            entries.append(_entry(message, view, start, position))
        else:
            position = _skip(message, position, end, tag & 7)
    return entries


def _entry(message: bytes, view: memoryview, start: int, end: int) -> FetchedPartition:
    rest: list[memoryview] = []
    records = view[0:0]
    position = kept_from = start
    while position < end:
        field_start = position
        tag, position = _varint(message, position, end)
        if tag == _RECORDS_FIELD << 3 | _BYTES:
            records_start, position = _span(message, position, end)
            records = view[records_start:position]
            rest.append(view[kept_from:field_start])
            kept_from = position
        else:
            position = _skip(message, position, end, tag & 7)
    rest.append(view[kept_from:end])
    try:
        news = pb.FetchPartitionData.FromString(b"".join(rest))
    except DecodeError as error:
        raise ValueError(f"a damaged entry of a FetchResponse: {error}") from None
    return FetchedPartition(news, records)


def _varint(message: bytes, position: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while position < end:
        byte = message[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
        if shift > 63:
            break
    raise ValueError(f"a damaged number at position {position} of a FetchResponse")


def _span(message: bytes, position: int, end: int) -> tuple[int, int]:
    length, start = _varint(message, position, end)
    if length > end - start:
        raise ValueError(
            f"a FetchResponse is truncated: a field of {length} bytes, {end - start} remain"
        )
    return start, start + length


def _skip(message: bytes, position: int, end: int, wire_type: int) -> int:
    if wire_type == _VARINT:
        return _varint(message, position, end)[1]
    if wire_type == _BYTES:
        return _span(message, position, end)[1]
    if wire_type in (_FIXED64, _FIXED32):
        position += 8 if wire_type == _FIXED64 else 4
        if position <= end:
            return position
    raise ValueError(f"a damaged field at position {position} of a FetchResponse")
