"""Codecs of the protobuf messages that contain record batches. They do not copy the batches.

The generated protobuf classes copy a `bytes` field two or three times when they decode a message, and three times when
they encode one. The decoders of this module return batches as `memoryview`s of the message. The encoders join small
encoded pieces and the batches that the log returned. The encoded bytes are those of protobuf; tests compare encoders
and decoders with the generated classes.
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
# Field 4, length-delimited: `records` in each message that has records.
_RECORDS_TAG: Final = b"\x22"
_FIRST_TAG: Final = b"\x0a"  # field 1, length-delimited: `partitions`, `messages`
_THROTTLE_TAG: Final = b"\x10"  # field 2, a varint: FetchResponse.throttle_time_ms
_PARTITIONS_TAG: Final = 1 << 3 | _BYTES  # FetchResponse.partitions
_RECORDS_FIELD_TAG: Final = 4 << 3 | _BYTES  # FetchPartitionData.records
_VARINT_FIELD_BYTES_MAX: Final = 15  # a tag of up to 5 bytes, and a number of up to 10 bytes
_DATA_TAG: Final = b"\x32"  # field 6, length-delimited: LeaderMessage.data
_UINT64_MAX: Final = (1 << 64) - 1

Slices = Sequence[bytes | memoryview]


class ProducePart(NamedTuple):
    """One partition of a produce request. `records` is a view of the request's bytes."""

    topic: str
    topic_id: bytes
    partition: int
    records: memoryview


class ProduceMessage(NamedTuple):
    """A decoded ProduceRequest. `size_bytes` is the size of the whole encoded message."""

    request_id: int
    acks: int
    timeout_ms: int
    partitions: list[ProducePart]
    size_bytes: int
    transactional_id: str = ""


class WireError(ValueError):
    """The bytes are not a protobuf message of the expected type."""


def produce_request_steps(data: bytes) -> Generator[None, None, ProduceMessage]:
    """Decode a ProduceRequest as a generator that yields after every 200 partitions, so that the caller can do other
    work in between. The generator returns the message. Raises WireError.
    """
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
    """A decoded LeaderData. `records` is a view of the message; it is empty if only the high watermark or the log start
    offset changed.
    """

    base_offset: int
    high_watermark: int
    log_start: int
    records: memoryview


class PushedMessage(NamedTuple):
    """A decoded LeaderMessage. If it has batches, they are in `data`; otherwise `other` has the whole message."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    data: PushedData | None
    other: replication_pb.LeaderMessage | None


def read_replicate_response(message: bytes) -> list[PushedMessage]:
    """Decode a ReplicateResponse to its messages, in order. Raises WireError."""
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
    """Yield (field number, value, content) of each field. `content` is None for a varint; for a length-delimited field
    the value is 0. Fields of other types are skipped.
    """
    position, end = 0, len(view)
    while position < end:
        # Nearly all tags, and most lengths and numbers, have one byte. Reading such a byte here instead of calling
        # `_varint` takes a third of the time.
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
    """A decoded FetchPartitionData. `records` is a view of the message."""

    header: pb.FetchPartitionData
    """All fields except `records`, which is empty in this object."""
    records: memoryview


class FetchedPartitions(list[FetchedPartition]):
    """The partitions of a FetchResponse, in order."""

    __slots__ = ("throttle_ms",)

    def __init__(self) -> None:
        self.throttle_ms = 0
        """How long the broker delays its next response because of a quota."""


def decode_fetch_response(message: bytes) -> FetchedPartitions:
    """Decode a FetchResponse. Raises WireError.

    The generated class decodes all fields of a partition except the records. A protobuf message is the concatenation of
    its fields in any order, so the other fields are joined without the records.
    """
    view = memoryview(message)
    partitions = FetchedPartitions()
    position, end = 0, len(message)
    while position < end:
        tag, position = _varint(message, position)
        if tag == _PARTITIONS_TAG:
            start, position = _span(message, position, end)
            partitions.append(_fetched_partition(message, view, start, position))
        elif tag == _THROTTLE_TAG[0]:
            partitions.throttle_ms, position = _varint(message, position)
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
        # No field that this program knows has a tag of more than one byte.
        if tag > 0x7F:
            tag, position = _varint(message, field_start)
        # Most fields are varints. They are skipped without a call, because this loop runs for each field of each
        # partition of a fetch.
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
    """Encode a non-negative number as a protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class FetchResponseBytes:
    """Encodes a FetchResponse: call `add` for each partition, then `encode` once."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []

    def add(self, data: pb.FetchPartitionData, records: Slices, size_bytes: int) -> None:
        """Add a partition. `data` has all fields except `records`; `size_bytes` is the total size of `records`."""
        _append_message(self._parts, _FIRST_TAG, data.SerializeToString(), records, size_bytes)

    def encode(self, *, throttle_ms: int = 0) -> bytes:
        """Return the encoded FetchResponse. `throttle_ms` becomes its `throttle_time_ms`."""
        if throttle_ms:
            self._parts += (_THROTTLE_TAG, varint(throttle_ms))
        return b"".join(self._parts)


class ReplicateResponseBytes:
    """Encodes a ReplicateResponse: call `add` or `add_data` for each message, then `encode` once."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []

    @property
    def is_empty(self) -> bool:
        """Whether no message was added yet."""
        return not self._parts

    def add(self, message: replication_pb.LeaderMessage) -> None:
        """Add a LeaderMessage without batches."""
        _append_message(self._parts, _FIRST_TAG, message.SerializeToString(), (), 0)

    def add_data(
        self,
        message: replication_pb.LeaderMessage,
        data: replication_pb.LeaderData,
        records: Slices,
        size_bytes: int,
    ) -> None:
        """Add a LeaderMessage with batches. `message` has all fields except `data`, and `data` all except `records`.

        `size_bytes` is the total size of `records`.
        """
        inner: list[bytes | memoryview] = []
        _append_message(inner, _DATA_TAG, data.SerializeToString(), records, size_bytes)
        head = message.SerializeToString()
        length = len(head) + sum(len(part) for part in inner)
        self._parts += (_FIRST_TAG, varint(length), head, *inner)

    def encode(self) -> bytes:
        """Return the encoded ReplicateResponse."""
        return b"".join(self._parts)


def _append_message(
    parts: list[bytes | memoryview], tag: bytes, head: bytes, records: Slices, size_bytes: int
) -> None:
    """Append a length-delimited message: the encoded fields `head`, and unless they are empty, `records` as field 4."""
    if not size_bytes:
        parts += (tag, varint(len(head)), head)
        return
    assert size_bytes == sum(map(len, records)), size_bytes
    prefix = _RECORDS_TAG + varint(size_bytes)
    parts += (tag, varint(len(head) + len(prefix) + size_bytes), head, prefix, *records)
