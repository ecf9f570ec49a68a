"""Protobuf messages that carry record batches, read and written without copying the batches.

Protobuf's own classes copy a `bytes` field two or three times on its way in, and three times on its way out. Here a
message is read in place: its batches are `memoryview`s of it. A message with batches is written by one `join` of small
protobuf pieces and the batches as the log returned them. The bytes are those that protobuf writes: a test compares both
directions with the generated classes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import replication_service_pb2 as replication_pb

PRODUCE_PARTITIONS_MAX: Final = 10_000
_PARTITIONS_PER_STEP: Final = 200
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_RECORDS_TAG: Final = b"\x22"  # field 4, length-delimited: `records` in three messages
_FIRST_TAG: Final = b"\x0a"  # field 1, length-delimited: `partitions`, `messages`
_THROTTLE_TAG: Final = b"\x10"  # field 2, a number: FetchResponse.throttle_time_ms
_PARTITIONS_TAG: Final = 1 << 3 | _BYTES  # of a FetchResponse
_RECORDS_FIELD_TAG: Final = 4 << 3 | _BYTES  # of a FetchPartitionData
_VARINT_FIELD_BYTES_MAX: Final = 15  # a tag of up to 5 bytes, a number of up to 10
_DATA_TAG: Final = b"\x32"  # field 6, length-delimited: LeaderMessage.data
_UINT64_MAX: Final = (1 << 64) - 1

Slices = Sequence[bytes | memoryview]


class ProducePart(NamedTuple):
    """The records for one partition of a produce request; `records` is a view of the request's bytes."""

    topic: str
    topic_id: bytes
    partition: int
    records: memoryview


class ProduceMessage(NamedTuple):
    """A produce request."""

    request_id: int
    acks: int
    timeout_ms: int
    partitions: list[ProducePart]
    size_bytes: int
    transactional_id: str = ""


class WireError(ValueError):
    """The bytes are not a message of the expected kind."""


def produce_request_steps(data: bytes) -> Generator[None, None, ProduceMessage]:
    """Read a ProduceRequest in steps, so that other work can get turns if it has many partitions. Raises WireError."""
    view = memoryview(data)
    numbers = {1: 0, 2: 0, 3: 0}
    partitions: list[ProducePart] = []
    transactional_id = ""
    for field, number, content in _fields(view):
        if content is None:
            if field in numbers:
                numbers[field] = number
        elif field == 4:
            if len(partitions) == PRODUCE_PARTITIONS_MAX:
                raise WireError(f"the request has more than {PRODUCE_PARTITIONS_MAX} partitions")
            partitions.append(_produce_part(content))
            if len(partitions) % _PARTITIONS_PER_STEP == 0:
                yield
        elif field == 5:
            try:
                transactional_id = str(content, "utf-8")
            except UnicodeDecodeError:
                raise WireError("a transactional id is not UTF-8") from None
    return ProduceMessage(
        _signed(numbers[1]),
        _signed32(numbers[2]),
        _signed32(numbers[3]),
        partitions,
        len(data),
        transactional_id,
    )


def _produce_part(view: memoryview) -> ProducePart:
    topic, topic_id, partition, records = "", b"", 0, _NOTHING
    for field, number, content in _fields(view):
        if content is None:
            if field == 3:
                partition = _signed32(number)
        elif field == 1:
            try:
                topic = str(content, "utf-8")
            except UnicodeDecodeError:
                raise WireError("a topic's name is not UTF-8") from None
        elif field == 2:
            topic_id = bytes(content)
        elif field == 4:
            records = content
    return ProducePart(topic, topic_id, partition, records)


_NOTHING: Final = memoryview(b"")


class PushedData(NamedTuple):
    """Batches that a leader sent, or only its high watermark; `records` is a view of the message."""

    base_offset: int
    high_watermark: int
    log_start: int
    records: memoryview


class PushedMessage(NamedTuple):
    """One LeaderMessage: either its `data` is read in place, or `other` has the whole message."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    data: PushedData | None
    other: replication_pb.LeaderMessage | None


def read_replicate_response(message: bytes) -> list[PushedMessage]:
    """Read a ReplicateResponse. Raises WireError."""
    return [
        _pushed(content)
        for field, _, content in _fields(memoryview(message))
        if field == 1 and content is not None
    ]


def _pushed(view: memoryview) -> PushedMessage:
    topic_id, partition, leader_epoch = b"", 0, 0
    data: PushedData | None = None
    for field, number, content in _fields(view):
        if content is None:
            if field == 2:
                leader_epoch = _signed32(number)
        elif field == 1:
            for inner, value, name in _fields(content):
                if inner == 1 and name is not None:
                    topic_id = bytes(name)
                elif inner == 2:
                    partition = _signed32(value)
        elif field == 6:
            data = _pushed_data(content)
    if data is not None:
        return PushedMessage(topic_id, partition, leader_epoch, data, None)
    try:
        other = replication_pb.LeaderMessage.FromString(bytes(view))
    except DecodeError as error:
        raise WireError(str(error)) from None
    return PushedMessage(topic_id, partition, leader_epoch, None, other)


def _pushed_data(view: memoryview) -> PushedData:
    numbers = {1: 0, 2: 0, 3: 0}
    records = _NOTHING
    for field, number, content in _fields(view):
        if content is None:
            if field in numbers:
                numbers[field] = _signed(number)
        elif field == 4:
            records = content
    return PushedData(numbers[1], numbers[2], numbers[3], records)


def _fields(view: memoryview) -> Iterator[tuple[int, int, memoryview | None]]:
    """Yield (field, number, content) of each field: a number, or the bytes of a length-delimited field."""
    position, end = 0, len(view)
    while position < end:
        # Nearly all tags, and most lengths and numbers, take one byte. Reading them here, without a call, takes a third
        # of the time.
        tag = view[position]
        position += 1
        if tag >= 0x80:
            tag, position = _varint(view, position - 1)
        kind = tag & 7
        if kind == _VARINT:
            if position < end and (number := view[position]) < 0x80:
                position += 1
            else:
                number, position = _varint(view, position)
            yield tag >> 3, number, None
        elif kind == _BYTES:
            if position < end and (length := view[position]) < 0x80:
                position += 1
            else:
                length, position = _varint(view, position)
            if length > end - position:
                raise WireError(f"a field has {length} bytes, but only {end - position} are left")
            yield tag >> 3, 0, view[position : position + length]
            position += length
        elif kind == _FIXED64:
            position += 8
        elif kind == _FIXED32:
            position += 4
        else:
            raise WireError(f"a field has the unknown wire type {kind}")
    if position != end:
        raise WireError("the last field is truncated")


def _varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & _UINT64_MAX, position
            shift += 7
            if shift > 63:
                raise WireError("a number has more than ten bytes")
    except IndexError:
        raise WireError("a number is truncated") from None


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _signed32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@dataclass(slots=True)
class FetchedPartition:
    """One partition of a FetchResponse: its fields, and its record batches as a view of the message."""

    header: pb.FetchPartitionData
    """All fields but `records`, which is empty here."""
    records: memoryview


def decode_fetch_response(message: bytes) -> list[FetchedPartition]:
    """Read the partitions of a FetchResponse, in order. Raises WireError.

    A partition's fields other than its records are few and small. They are cut out of the message (protobuf allows
    any order of fields, and a message is the concatenation of its fields) and decoded by the generated class.
    """
    view = memoryview(message)
    partitions = []
    position, end = 0, len(message)
    while position < end:
        tag, position = _varint(message, position)
        if tag == _PARTITIONS_TAG:
            start, position = _span(message, position, end)
            partitions.append(_fetched_partition(message, view, start, position))
        else:
            position = _skip(message, position, end, tag & 7)
    return partitions


def _fetched_partition(message: bytes, view: memoryview, start: int, end: int) -> FetchedPartition:
    other_fields: list[memoryview] = []
    records = _NOTHING
    position = kept_from = start
    while position < end:
        field_start = position
        tag = message[position]
        position += 1
        # No known field has a tag of two bytes.
        if tag > 0x7F:
            tag, position = _varint(message, field_start)
        # Most fields are numbers, and this loop runs for each field of each partition of a fetch.
        if not tag & 7:
            while position < end and message[position] > 0x7F:
                position += 1
            position += 1
            if position > end or position - field_start > _VARINT_FIELD_BYTES_MAX:
                raise WireError("a number is truncated or too long")
        elif tag == _RECORDS_FIELD_TAG:
            records_start, position = _span(message, position, end)
            records = view[records_start:position]
            other_fields.append(view[kept_from:field_start])
            kept_from = position
        else:
            position = _skip(message, position, end, tag & 7)
    other_fields.append(view[kept_from:end])
    try:
        header = pb.FetchPartitionData.FromString(b"".join(other_fields))
    except DecodeError as error:
        raise WireError(f"a partition of a FetchResponse is damaged: {error}") from None
    return FetchedPartition(header, records)


def _span(message: bytes, position: int, end: int) -> tuple[int, int]:
    length, start = _varint(message, position)
    if length > end - start:
        raise WireError(f"a field has {length} bytes, but only {end - start} are left")
    return start, start + length


def _skip(message: bytes, position: int, end: int, kind: int) -> int:
    if kind == _BYTES:
        return _span(message, position, end)[1]
    if kind == _VARINT:
        position = _varint(message, position)[1]
    elif kind in (_FIXED64, _FIXED32):
        position += 8 if kind == _FIXED64 else 4
    else:
        raise WireError(f"a field has the unknown wire type {kind}")
    if position > end:
        raise WireError("a field is truncated")
    return position


def varint(value: int) -> bytes:
    """Encode a length as a protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class FetchResponseBytes:
    """Builds a FetchResponse; `add` each partition, then `encode` once."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []

    def add(self, data: pb.FetchPartitionData, records: Slices, size_bytes: int) -> None:
        """Add a partition: `data` without its records, and the records."""
        _append_message(self._parts, _FIRST_TAG, data.SerializeToString(), records, size_bytes)

    def encode(self, *, throttle_ms: int = 0) -> bytes:
        """Return the whole message."""
        if throttle_ms:
            self._parts += (_THROTTLE_TAG, varint(throttle_ms))
        return b"".join(self._parts)


class ReplicateResponseBytes:
    """Builds a ReplicateResponse of small messages and messages with batches."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added."""
        return not self._parts

    def add(self, message: replication_pb.LeaderMessage) -> None:
        """Add a message without batches."""
        _append_message(self._parts, _FIRST_TAG, message.SerializeToString(), (), 0)

    def add_data(
        self,
        message: replication_pb.LeaderMessage,
        data: replication_pb.LeaderData,
        records: Slices,
        size_bytes: int,
    ) -> None:
        """Add a message: `message` without its data, `data` without its records, and the records."""
        inner: list[bytes | memoryview] = []
        _append_message(inner, _DATA_TAG, data.SerializeToString(), records, size_bytes)
        head = message.SerializeToString()
        length = len(head) + sum(len(part) for part in inner)
        self._parts += (_FIRST_TAG, varint(length), head, *inner)

    def encode(self) -> bytes:
        """Return the whole message."""
        return b"".join(self._parts)


def _append_message(
    parts: list[bytes | memoryview], tag: bytes, head: bytes, records: Slices, size_bytes: int
) -> None:
    """Append a length-delimited message that consists of `head` and, unless they are empty, `records` as
    its field 4.
    """
    if not size_bytes:
        parts += (tag, varint(len(head)), head)
        return
    assert size_bytes == sum(map(len, records)), size_bytes
    prefix = _RECORDS_TAG + varint(size_bytes)
    parts += (tag, varint(len(head) + len(prefix) + size_bytes), head, prefix, *records)
