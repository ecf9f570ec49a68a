"""A hand-written codec of Produce, which is on the hot path: decoding a request with one batch takes about 3 us.

Records are not copied: they are slices of the frame. If the frame is writable, so are the slices, and the log writes
offsets and leader epochs directly into the batch headers. Versions 3 to 13 are supported. Kafka's ProduceRequest.json
and ProduceResponse.json define the fields: version 8 added error messages (KIP-467), 9 is the first flexible one, 10
added the current leaders (KIP-951), and 13 identifies topics by id (KIP-516).
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from msgspec import Struct

from odradek_protocol.identity import NO_TOPIC_ID, TOPIC_NAME_BYTES_MAX, TopicId, TopicName
from odradek_protocol.kafka.api_keys import ITEMS_MAX, ApiKey
from odradek_protocol.kafka.leader_hints import (
    CurrentLeader,
    NodeEndpoint,
    write_current_leader,
    write_node_endpoints,
)
from odradek_protocol.kafka.request_decoding import STRING_BYTES_MAX, all_steps
from odradek_protocol.primitives import (
    ByteBuffer,
    Malformed,
    read_uvarint,
    write_compact_string,
    write_string,
    write_uvarint,
)
from odradek_protocol.records.codec import usual_produce, usual_produced

FLEXIBLE: Final = 9
WITH_MESSAGES: Final = 8
WITH_LEADERS: Final = 10
WITH_TOPIC_IDS: Final = 13
PARTITIONS_MAX: Final = ITEMS_MAX
PARTITIONS_A_STEP: Final = 256

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_ACKS_TIMEOUT_COUNT: Final = struct.Struct(">hii")
_INDEX_SIZE: Final = struct.Struct(">ii")
_RESULT: Final = struct.Struct(">ihqqq")
_RESULT_V3: Final = struct.Struct(">ihqq")


class ProducePartition(NamedTuple):
    """One partition of a Produce request. `records` is None if the client sent null."""

    partition: int
    records: memoryview | None


class ProduceTopic(NamedTuple):
    """A topic of a Produce request. Versions below 13 identify it by `name`, later versions by `topic_id`."""

    name: TopicName | None
    topic_id: TopicId
    partitions: list[tuple[int, memoryview | None]]


class ProduceRequest(Struct, frozen=True, gc=False):
    """A Produce request. The value of `acks` is not checked. `timeout_ms` limits the wait for replicas.

    Each topic is a `ProduceTopic` or a plain tuple with the same items.
    """

    API_KEY: ClassVar[int] = ApiKey.PRODUCE

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicName | None, TopicId, list[tuple[int, memoryview | None]]]]


class PartitionResponse(NamedTuple):
    """The result for one partition of a Produce request.

    `invalid_records` has the indexes of the invalid records, which `message` explains. Clients report for all other
    records of the batch that they failed because of the invalid ones (KIP-467).
    """

    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    message: str | None = None
    leader: CurrentLeader | None = None
    invalid_records: Sequence[int] = ()


PlainResponse: TypeAlias = tuple[int, int, int, int, int]
"""A PartitionResponse whose last three fields have their defaults: a tuple of the first five fields."""


class TopicResponse(NamedTuple):
    """A topic of a Produce response, identified by name or id as in the request."""

    name: TopicName | None
    topic_id: TopicId
    partitions: Sequence[PartitionResponse | PlainResponse]


ProducedTopic: TypeAlias = tuple[
    TopicName | None, TopicId, Sequence[PartitionResponse | PlainResponse]
]
"""A TopicResponse, or a plain tuple with the same items."""


def decode_produce(version: int, body: memoryview) -> ProduceRequest:
    """Decode a Produce request. Raises Malformed, also if bytes follow the request."""
    # Any, because the C codec returns plain str and bytes instead of TopicName and TopicId, which are NewTypes.
    usual: Any = usual_produce(version, body)
    if usual is not None:
        return ProduceRequest(*usual)
    return all_steps(decode_produce_steps(version, body))


def decode_produce_steps(version: int, body: memoryview) -> Generator[None, None, ProduceRequest]:
    """Decode like `decode_produce`, but as a generator that yields after every `PARTITIONS_A_STEP` topics and
    partitions, so that the caller can do other work in between. The generator returns the request.
    """
    return _decode_flexible(version, body) if version >= FLEXIBLE else _decode_plain(version, body)


def _decode_flexible(version: int, body: memoryview) -> Generator[None, None, ProduceRequest]:
    try:
        end = len(body)
        length, at = read_uvarint(body, 0)
        transactional_id = None
        if length:
            stop = at + length - 1
            if stop > end or length > STRING_BYTES_MAX:
                raise Malformed(f"the transactional id has an invalid length of {length - 1} bytes")
            transactional_id = str(body[at:stop], "utf-8")
            at = stop
        acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, at)
        topic_count, at = read_uvarint(body, at + 6)
        topics: list[tuple[TopicName | None, TopicId, list[tuple[int, memoryview | None]]]] = []
        items_left = PARTITIONS_MAX - (topic_count - 1)
        since_step = 0
        for _ in range(_checked(topic_count - 1, end - at, 3)):
            if since_step >= PARTITIONS_A_STEP:
                since_step = 0
                yield
            name, topic_id = None, NO_TOPIC_ID
            if version >= WITH_TOPIC_IDS:
                topic_id = TopicId(bytes(body[at : at + 16]))
                at += 16
            else:
                length, at = read_uvarint(body, at)
                stop = at + length - 1
                if not at <= stop <= end or length > TOPIC_NAME_BYTES_MAX + 1:
                    raise Malformed(f"a topic's name has an invalid length of {length - 1} bytes")
                name = TopicName(str(body[at:stop], "utf-8"))
                at = stop
            partition_count, at = read_uvarint(body, at)
            items_left -= partition_count - 1
            if items_left < 0:
                raise Malformed(f"the request has more than {PARTITIONS_MAX} topics and partitions")
            partitions: list[tuple[int, memoryview | None]] = []
            for _ in range(_checked(partition_count - 1, end - at, 6)):
                since_step += 1
                if since_step >= PARTITIONS_A_STEP:
                    since_step = 0
                    yield
                (index,) = _INT32.unpack_from(body, at)
                size, at = read_uvarint(body, at + 4)
                if size:
                    stop = at + size - 1
                    if stop > end:
                        raise Malformed(
                            f"a partition has {size - 1} bytes of records, but only {end - at} are left"
                        )
                    partitions.append(ProducePartition(index, body[at:stop]))
                    at = stop
                else:
                    partitions.append(ProducePartition(index, None))
                at = at + 1 if body[at] == 0 else _skip_tags(body, at)
            at = at + 1 if body[at] == 0 else _skip_tags(body, at)
            topics.append(ProduceTopic(name, topic_id, partitions))
            since_step += 1
        at = at + 1 if body[at] == 0 else _skip_tags(body, at)
        if at != end:
            raise Malformed(f"the message should end after {at} bytes, but has {end}")
        return ProduceRequest(transactional_id, acks, timeout_ms, topics)
    except (struct.error, IndexError):
        raise Malformed(f"ProduceRequest {version}: the bytes end within a field") from None
    except UnicodeDecodeError:
        raise Malformed(f"ProduceRequest {version}: a string is not UTF-8") from None


def _decode_plain(version: int, body: memoryview) -> Generator[None, None, ProduceRequest]:
    try:
        end = len(body)
        (length,) = _INT16.unpack_from(body, 0)
        at = 2
        transactional_id = None
        if length != -1:
            stop = at + length
            if not at <= stop <= end:
                raise Malformed(f"the transactional id has an invalid length of {length} bytes")
            transactional_id = str(body[at:stop], "utf-8")
            at = stop
        acks, timeout_ms, topic_count = _ACKS_TIMEOUT_COUNT.unpack_from(body, at)
        at += 10
        topics: list[tuple[TopicName | None, TopicId, list[tuple[int, memoryview | None]]]] = []
        items_left = PARTITIONS_MAX - topic_count
        since_step = 0
        for _ in range(_checked(topic_count, end - at, 6)):
            if since_step >= PARTITIONS_A_STEP:
                since_step = 0
                yield
            (length,) = _INT16.unpack_from(body, at)
            at += 2
            stop = at + length
            if not at <= stop <= end or length > TOPIC_NAME_BYTES_MAX:
                raise Malformed(f"a topic's name has an invalid length of {length} bytes")
            name = TopicName(str(body[at:stop], "utf-8"))
            (partition_count,) = _INT32.unpack_from(body, stop)
            at = stop + 4
            items_left -= partition_count
            if items_left < 0:
                raise Malformed(f"the request has more than {PARTITIONS_MAX} topics and partitions")
            partitions: list[tuple[int, memoryview | None]] = []
            for _ in range(_checked(partition_count, end - at, 8)):
                since_step += 1
                if since_step >= PARTITIONS_A_STEP:
                    since_step = 0
                    yield
                index, size = _INDEX_SIZE.unpack_from(body, at)
                at += 8
                if size == -1:
                    partitions.append(ProducePartition(index, None))
                    continue
                stop = at + size
                if not at <= stop <= end:
                    raise Malformed(
                        f"a partition has {size} bytes of records, but only {end - at} are left"
                    )
                partitions.append(ProducePartition(index, body[at:stop]))
                at = stop
            topics.append(ProduceTopic(name, NO_TOPIC_ID, partitions))
            since_step += 1
        if at != end:
            raise Malformed(f"the message should end after {at} bytes, but has {end}")
        return ProduceRequest(transactional_id, acks, timeout_ms, topics)
    except (struct.error, IndexError):
        raise Malformed(f"ProduceRequest {version}: the bytes end within a field") from None
    except UnicodeDecodeError:
        raise Malformed(f"ProduceRequest {version}: a string is not UTF-8") from None


def encode_produce_response(
    version: int,
    topics: Sequence[ProducedTopic],
    *,
    throttle_ms: int,
    endpoints: Sequence[NodeEndpoint] = (),
) -> ByteBuffer:
    """Encode a Produce response. `endpoints` has the address of each leader that a partition names."""
    # Any, because the C codec checks at run time that these are lists of plain tuples, and returns None if they are
    # not.
    produced: Any = topics
    usual = usual_produced(version, produced, throttle_ms) if not endpoints else None
    if usual is not None:
        return usual
    steps = encode_produce_steps(version, topics, throttle_ms=throttle_ms, endpoints=endpoints)
    return all_steps(steps)


def encode_produce_steps(
    version: int,
    topics: Sequence[ProducedTopic],
    *,
    throttle_ms: int,
    endpoints: Sequence[NodeEndpoint] = (),
) -> Generator[None, None, bytearray]:
    """Encode like `encode_produce_response`, but as a generator that yields after every `PARTITIONS_A_STEP` topics and
    partitions, so that the caller can do other work in between. The generator returns the encoded response.
    """
    out = bytearray()
    since_step = 0
    flexible = version >= FLEXIBLE
    if flexible:
        write_uvarint(out, len(topics) + 1)
    else:
        out += _INT32.pack(len(topics))
    for name, topic_id, responses in topics:
        since_step += 1
        if version >= WITH_TOPIC_IDS:
            out += topic_id
        elif flexible:
            write_compact_string(out, name)
        else:
            write_string(out, name)
        if flexible:
            write_uvarint(out, len(responses) + 1)
        else:
            out += _INT32.pack(len(responses))
        for response in responses:
            partition = PartitionResponse(*response)
            since_step += 1
            if since_step >= PARTITIONS_A_STEP:
                since_step = 0
                yield
            if version >= 5:
                out += _RESULT.pack(*partition[:5])
            else:
                out += _RESULT_V3.pack(*partition[:4])
            if flexible:
                if partition.invalid_records:
                    write_uvarint(out, len(partition.invalid_records) + 1)
                    for index in partition.invalid_records:
                        out += _INT32.pack(index)
                        # The record has neither an error message of its own nor tagged fields.
                        out += b"\0\0"
                else:
                    out.append(1)
                write_compact_string(out, partition.message)
                if partition.leader is not None and version >= WITH_LEADERS:
                    out.append(1)
                    write_current_leader(out, 0, partition.leader)
                else:
                    out.append(0)
            elif version >= WITH_MESSAGES:
                out += _INT32.pack(len(partition.invalid_records))
                for index in partition.invalid_records:
                    out += _INT32.pack(index)
                    write_string(out, None)
                write_string(out, partition.message)
        if flexible:
            out.append(0)
    out += _INT32.pack(throttle_ms)
    if flexible:
        if endpoints and version >= WITH_LEADERS:
            out.append(1)
            write_node_endpoints(out, 0, endpoints)
        else:
            out.append(0)
    return out


def _checked(count: int, bytes_left: int, item_bytes_min: int) -> int:
    if not 0 <= count <= bytes_left // item_bytes_min:
        raise Malformed(f"an array has {count} items, but only {bytes_left} bytes follow")
    return count


def _skip_tags(body: memoryview, at: int) -> int:
    count, at = read_uvarint(body, at)
    for _ in range(_checked(count, len(body) - at, 2)):
        _, at = read_uvarint(body, at)
        size, at = read_uvarint(body, at)
        at += size
        if at > len(body):
            raise Malformed("a tagged field is longer than the rest of the message")
    return at
