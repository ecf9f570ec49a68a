"""A hand-written codec of Fetch. An encoded response is a list of buffers, in which the records are not copied: they
are the buffers that the log returned.

Versions 4 to 18 are supported. Kafka's FetchRequest.json and FetchResponse.json define the fields. These versions
changed the messages:

    5   log start offsets
    7   sessions (KIP-227)
    9   leader epochs (KIP-320)
    11  racks, and the preferred read replica (KIP-392)
    12  flexible; diverging epochs and current leaders in responses
    13  topics by id (KIP-516)
    15  the replica's id and epoch in a tagged field
    16  the endpoints of the leaders in responses
    17  (KIP-853) and 18 (KIP-1166): tagged fields that only followers send; they are skipped
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence, Sized
from typing import Any, ClassVar, Final, NamedTuple

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
    read_compact_string,
    read_string,
    read_tagged_fields,
    read_uvarint,
    write_compact_string,
    write_string,
    write_uvarint,
)
from odradek_protocol.records.codec import usual_message

WITH_SESSIONS: Final = 7
WITH_EPOCHS: Final = 9
WITH_RACKS: Final = 11
FLEXIBLE: Final = 12
WITH_TOPIC_IDS: Final = 13
WITH_REPLICA_STATE: Final = 15
WITH_ENDPOINTS: Final = 16
PARTITIONS_MAX: Final = ITEMS_MAX
PARTITIONS_A_STEP: Final = 64

FETCH_SHAPES: Final = {
    11: b"iiiibii(n(iiqqi))(n(i))s",
    12: b"iiiibii[m[iiqiqi0]0][m[i]0]c0",
    13: b"iiiibii[u[iiqiqi0]0][u[i]0]c0",
    14: b"iiiibii[u[iiqiqi0]0][u[i]0]c0",
    15: b"iiibii[u[iiqiqi0]0][u[i]0]c0",
    16: b"iiibii[u[iiqiqi0]0][u[i]0]c0",
    17: b"iiibii[u[iiqiqi0]0][u[i]0]c0",
    18: b"iiibii[u[iiqiqi0]0][u[i]0]c0",
}
"""The shapes of Fetch requests, by version, for `usual_message`. Older versions are decoded in Python."""

_LENGTH_BYTES_MAX: Final = 5
_INT32: Final = struct.Struct(">i")
_WAIT_BYTES_ISOLATION: Final = struct.Struct(">iiib")
_SESSION: Final = struct.Struct(">ii")
_DIVERGING: Final = struct.Struct(">iqb")
_ABORTED: Final = struct.Struct(">qq")
_HEAD: Final = struct.Struct(">ihi")
_PARTITION: Final = struct.Struct(">ihqqqBi")
_COUNTS: Final = tuple([bytes([count + 1]) for count in range(127)])


class FetchPartition(NamedTuple):
    """One partition of a Fetch request: the offset at which to begin, and the most bytes of records to return.

    An epoch or log start offset of -1 means that the client did not send one.
    """

    partition: int
    current_leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int


class FetchTopic(NamedTuple):
    """A topic of a Fetch request. Versions below 13 identify it by `name`, later versions by `topic_id`."""

    name: TopicName | None
    topic_id: TopicId
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    """Partitions of a topic that the client removes from its fetch session (KIP-227)."""

    name: TopicName | None
    topic_id: TopicId
    partitions: list[int]


class FetchRequest(Struct, frozen=True, gc=False):
    """A Fetch request. `replica_id` is -1 if the client is a consumer.

    A `session_epoch` of -1 means a request without a session; 0 begins a new session (KIP-227).
    """

    API_KEY: ClassVar[int] = ApiKey.FETCH

    replica_id: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    rack: str


class PartitionData(NamedTuple):
    """One partition of a Fetch response.

    `aborted` has the producer id and first offset of each aborted transaction; None is encoded as null. `records` are
    bytes or other objects with a length that the sender of the response can write, such as slices of files.
    """

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[tuple[int, int]] | None
    preferred_read_replica: int
    records: Sequence[Sized]
    size_bytes: int
    leader: CurrentLeader | None = None
    diverging: tuple[int, int] | None = None  # (epoch, end offset)


class TopicData(NamedTuple):
    """A topic of a Fetch response, identified by name or id as in the request."""

    name: TopicName | None
    topic_id: TopicId
    partitions: Sequence[PartitionData]


def decode_fetch(version: int, body: ByteBuffer) -> FetchRequest:
    """Decode a Fetch request. Raises Malformed, also if bytes follow the request."""
    shape = FETCH_SHAPES.get(version)
    fields = usual_message(shape, body) if shape is not None else None
    if fields is None:
        return all_steps(decode_fetch_steps(version, body))
    return request_of(version, fields)


def request_of(version: int, fields: tuple[Any, ...]) -> FetchRequest:
    """Return the Fetch request with the fields that `usual_message` returned for its shape in FETCH_SHAPES."""
    if version >= WITH_REPLICA_STATE:
        fields = (-1, *fields)
    *numbers, named, named_forgotten, rack = fields
    topics = []
    for topic, items in named:
        if version >= FLEXIBLE:
            partitions = [FetchPartition(*item) for item in items]
        else:
            partitions = [
                FetchPartition(index, epoch, offset, -1, log_start, bytes_max)
                for index, epoch, offset, log_start, bytes_max in items
            ]
        topics.append(FetchTopic(*_named(version, topic), partitions))
    forgotten = [
        ForgottenTopic(*_named(version, topic), [index for (index,) in indexes])
        for topic, indexes in named_forgotten
    ]
    message: tuple[Any, ...] = (*numbers, topics, forgotten, rack)
    return FetchRequest(*message)


def _named(version: int, topic: Any) -> tuple[TopicName | None, TopicId]:
    return (None, topic) if version >= WITH_TOPIC_IDS else (topic, NO_TOPIC_ID)


def decode_fetch_steps(version: int, body: ByteBuffer) -> Generator[None, None, FetchRequest]:
    """Decode like `decode_fetch`, but as a generator that yields after every `PARTITIONS_A_STEP` topics and partitions,
    so that the caller can do other work in between. The generator returns the request.
    """
    try:
        return (yield from _Reader(version, body).request())
    except (struct.error, IndexError):
        raise Malformed(f"FetchRequest {version}: the bytes end within a field") from None


class _Reader:
    """Decodes one Fetch request."""

    __slots__ = ("_at", "_body", "_flexible", "_left", "_since_step", "_version")

    def __init__(self, version: int, body: ByteBuffer) -> None:
        self._version = version
        self._flexible = version >= FLEXIBLE
        self._body = body
        self._at = 0
        self._left = PARTITIONS_MAX
        self._since_step = 0

    def request(self) -> Generator[None, None, FetchRequest]:
        version = self._version
        replica_id = -1
        if version < WITH_REPLICA_STATE:
            (replica_id,) = _INT32.unpack_from(self._body, self._at)
            self._at += 4
        wait_ms, bytes_min, bytes_max, isolation = _WAIT_BYTES_ISOLATION.unpack_from(
            self._body, self._at
        )
        self._at += _WAIT_BYTES_ISOLATION.size
        session_id, session_epoch = 0, -1
        if version >= WITH_SESSIONS:
            session_id, session_epoch = _SESSION.unpack_from(self._body, self._at)
            self._at += _SESSION.size
        topics = []
        for _ in range(self._count(6)):
            topics.append((yield from self._topic()))
            if self._since_step >= PARTITIONS_A_STEP:
                self._since_step = 0
                yield
        forgotten = []
        if version >= WITH_SESSIONS:
            for number in range(1, self._count(6) + 1):
                forgotten.append(self._forgotten())
                if not number % PARTITIONS_A_STEP:
                    yield
        rack = ""
        if version >= WITH_RACKS:
            rack = self._string(STRING_BYTES_MAX)
        if self._flexible:
            tags, self._at = read_tagged_fields(self._body, self._at)
            if version >= WITH_REPLICA_STATE and 1 in tags:
                (replica_id,) = _INT32.unpack_from(tags[1])
        if self._at != len(self._body):
            raise Malformed(
                f"the message should end after {self._at} bytes, but has {len(self._body)}"
            )
        return FetchRequest(
            replica_id=replica_id,
            wait_ms_max=wait_ms,
            bytes_min=bytes_min,
            bytes_max=bytes_max,
            isolation_level=isolation,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=topics,
            forgotten=forgotten,
            rack=rack,
        )

    def _topic(self) -> Generator[None, None, FetchTopic]:
        name, topic_id = self._topic_name()
        partitions: list[FetchPartition] = []
        version = self._version
        self._since_step += 1
        for _ in range(self._count(16)):
            self._since_step += 1
            if self._since_step >= PARTITIONS_A_STEP:
                self._since_step = 0
                yield
            epoch = last_epoch = log_start = -1
            if version >= FLEXIBLE:
                index, epoch, offset, last_epoch, log_start, bytes_max = self._take(">iiqiqi", 32)
                self._skip_tags()
            elif version >= WITH_EPOCHS:
                index, epoch, offset, log_start, bytes_max = self._take(">iiqqi", 28)
            elif version >= 5:
                index, offset, log_start, bytes_max = self._take(">iqqi", 24)
            else:
                index, offset, bytes_max = self._take(">iqi", 16)
            partitions.append(
                FetchPartition(index, epoch, offset, last_epoch, log_start, bytes_max)
            )
        self._skip_tags()
        return FetchTopic(name, topic_id, partitions)

    def _forgotten(self) -> ForgottenTopic:
        name, topic_id = self._topic_name()
        count = self._count(4)
        indexes = list(self._take(f">{count}i", 4 * count))
        self._skip_tags()
        return ForgottenTopic(name, topic_id, indexes)

    def _topic_name(self) -> tuple[TopicName | None, TopicId]:
        if self._version >= WITH_TOPIC_IDS:
            topic_id = bytes(self._body[self._at : self._at + 16])
            if len(topic_id) < 16:
                raise IndexError
            self._at += 16
            return None, TopicId(topic_id)
        return TopicName(self._string(TOPIC_NAME_BYTES_MAX)), NO_TOPIC_ID

    def _string(self, bytes_max: int) -> str:
        read = read_compact_string if self._flexible else read_string
        start = self._at
        text, self._at = read(self._body, start)
        if text is None:
            raise Malformed("a string is null where null is not allowed")
        if self._at - start > bytes_max + _LENGTH_BYTES_MAX:
            raise Malformed(
                f"a string has {self._at - start} bytes, but at most {bytes_max} are allowed"
            )
        return text

    def _count(self, item_bytes_min: int) -> int:
        if self._flexible:
            count, self._at = read_uvarint(self._body, self._at)
            count -= 1
        else:
            (count,) = _INT32.unpack_from(self._body, self._at)
            self._at += 4
        if not 0 <= count <= (len(self._body) - self._at) // item_bytes_min:
            bytes_left = len(self._body) - self._at
            raise Malformed(f"an array has {count} items, but only {bytes_left} bytes follow")
        self._left -= count
        if self._left < 0:
            raise Malformed(f"the request has more than {PARTITIONS_MAX} items")
        return count

    def _take(self, form: str, size: int) -> tuple[int, ...]:
        values = struct.unpack_from(form, self._body, self._at)
        self._at += size
        return values

    def _skip_tags(self) -> None:
        if self._flexible:
            if self._body[self._at] == 0:
                self._at += 1
            else:
                _, self._at = read_tagged_fields(self._body, self._at)


def encode_fetch_response(
    version: int,
    topics: Sequence[TopicData],
    *,
    throttle_ms: int,
    error_code: int = 0,
    session_id: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> tuple[list[Sized], int]:
    """Encode a Fetch response. Return the buffers, which must be sent in this order, and their total size in bytes.

    Records are not copied. `endpoints` has the address of each leader that a partition names.
    """
    steps = encode_fetch_steps(
        version,
        topics,
        throttle_ms=throttle_ms,
        error_code=error_code,
        session_id=session_id,
        endpoints=endpoints,
    )
    return all_steps(steps)


def encode_fetch_steps(
    version: int,
    topics: Sequence[TopicData],
    *,
    throttle_ms: int,
    error_code: int = 0,
    session_id: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> Generator[None, None, tuple[list[Sized], int]]:
    """Encode like `encode_fetch_response`, but as a generator that yields after every `PARTITIONS_A_STEP` partitions,
    so that the caller can do other work in between.
    """
    flexible = version >= FLEXIBLE
    if flexible and not endpoints:
        usual = _usual_response(version, topics, throttle_ms, error_code, session_id)
        if usual is not None:
            return usual
    buffers: list[Sized] = []
    size = since_step = 0
    out = bytearray(_INT32.pack(throttle_ms))
    if version >= WITH_SESSIONS:
        out += struct.pack(">hi", error_code, session_id)
    _write_count(out, len(topics), flexible)
    for topic in topics:
        if version >= WITH_TOPIC_IDS:
            out += topic.topic_id
        elif flexible:
            write_compact_string(out, topic.name)
        else:
            write_string(out, topic.name)
        _write_count(out, len(topic.partitions), flexible)
        for partition in topic.partitions:
            since_step += 1
            if since_step >= PARTITIONS_A_STEP:
                since_step = 0
                yield
            _write_partition(out, version, partition)
            if partition.size_bytes:
                buffers.append(out)
                buffers.extend(partition.records)
                size += len(out) + partition.size_bytes
                out = bytearray()
            if flexible:
                _write_partition_tags(out, partition)
        if flexible:
            out.append(0)
    if flexible:
        if endpoints and version >= WITH_ENDPOINTS:
            out.append(1)
            write_node_endpoints(out, 0, endpoints)
        else:
            out.append(0)
    if out:
        buffers.append(out)
    return buffers, size + len(out)


def _usual_response(
    version: int,
    topics: Sequence[TopicData],
    throttle_ms: int,
    error_code: int,
    session_id: int,
) -> tuple[list[Sized], int] | None:
    """Encode a response with less than `PARTITIONS_A_STEP` partitions, none of which has tagged fields or aborted
    transactions. Return None for all other responses.
    """
    parts = [_HEAD.pack(throttle_ms, error_code, session_id), _compact_count(len(topics))]
    buffers: list[Sized] = []
    size = count = 0
    for name, topic_id, partitions in topics:
        count += len(partitions)
        if count >= PARTITIONS_A_STEP:
            return None
        if version >= WITH_TOPIC_IDS:
            parts.append(topic_id)
        else:
            compact = bytearray()
            write_compact_string(compact, name)
            parts.append(compact)
        parts.append(_compact_count(len(partitions)))
        for (
            index,
            error,
            high_watermark,
            last_stable_offset,
            log_start_offset,
            aborted,
            preferred,
            records,
            size_bytes,
            leader,
            diverging,
        ) in partitions:
            if aborted is not None or leader is not None or diverging is not None:
                return None
            parts.append(
                _PARTITION.pack(
                    index,
                    error,
                    high_watermark,
                    last_stable_offset,
                    log_start_offset,
                    0,
                    preferred,
                )
            )
            parts.append(_compact_count(size_bytes))
            if size_bytes:
                before = b"".join(parts)
                buffers.append(before)
                buffers.extend(records)
                size += len(before) + size_bytes
                parts = []
            parts.append(b"\0")
        parts.append(b"\0")
    parts.append(b"\0")
    rest = b"".join(parts)
    buffers.append(rest)
    return buffers, size + len(rest)


def _compact_count(count: int) -> bytes | bytearray:
    if count < 127:
        return _COUNTS[count]
    out = bytearray()
    write_uvarint(out, count + 1)
    return out


def _write_partition(out: bytearray, version: int, partition: PartitionData) -> None:
    flexible = version >= FLEXIBLE
    if version >= 5:
        out += struct.pack(">ihqqq", *partition[:5])
    else:
        out += struct.pack(">ihqq", *partition[:4])
    if partition.aborted is None:
        _write_count(out, -1, flexible)
    else:
        _write_count(out, len(partition.aborted), flexible)
        for producer_id, first_offset in partition.aborted:
            out += _ABORTED.pack(producer_id, first_offset)
            if flexible:
                out.append(0)
    if version >= WITH_RACKS:
        out += _INT32.pack(partition.preferred_read_replica)
    _write_count(out, partition.size_bytes, flexible)


def _write_partition_tags(out: bytearray, partition: PartitionData) -> None:
    out.append((partition.diverging is not None) + (partition.leader is not None))
    if partition.diverging is not None:
        out.append(0)
        out.append(_DIVERGING.size)
        out += _DIVERGING.pack(*partition.diverging, 0)
    if partition.leader is not None:
        write_current_leader(out, 1, partition.leader)


def _write_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, count + 1)
    else:
        out += _INT32.pack(count)
