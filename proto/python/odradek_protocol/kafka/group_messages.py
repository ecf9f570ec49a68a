"""Codecs of OffsetCommit, Heartbeat and ConsumerGroupHeartbeat, which consumers send again and again.

The C codec decodes and encodes the usual forms of these messages. Other forms, such as heartbeats that report a
subscription or partitions, and long messages are decoded and encoded by the generated classes of `messages`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, cast

from msgspec import Struct

from odradek_protocol.identity import NO_TOPIC_ID
from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.messages import uuid_of
from odradek_protocol.kafka.request_decoding import decode_request, decode_request_in_steps
from odradek_protocol.kafka.response_encoding import encode_message
from odradek_protocol.primitives import ByteBuffer
from odradek_protocol.records.codec import usual_encoding, usual_message

COMMIT_WITH_RETENTION_TO: Final = 4
COMMIT_WITH_EPOCHS: Final = 6
COMMIT_WITH_INSTANCES: Final = 7
COMMIT_WITH_TOPIC_IDS: Final = 10

COMMIT_SHAPES: Final = {
    6: b"sis(n(iqiS))",
    7: b"sisS(n(iqiS))",
    8: b"cicC[m[iqiC0]0]0",
    9: b"cicC[m[iqiC0]0]0",
    10: b"cicC[u[iqiC0]0]0",
}
"""The shapes of OffsetCommit requests, by version, for `usual_message`. Older versions are decoded in Python."""
COMMITTED_SHAPES: Final = {
    6: b"i(n(ih))",
    7: b"i(n(ih))",
    8: b"i[m[ih0]0]0",
    9: b"i[m[ih0]0]0",
    10: b"i[u[ih0]0]0",
}
HEARTBEAT_SHAPES: Final = {0: b"sis", 1: b"sis", 2: b"sis", 3: b"sisS", 4: b"cicC0"}
BEATEN_SHAPES: Final = {0: b"h", 1: b"ih", 2: b"ih", 3: b"ih", 4: b"ih0"}
CONSUMER_HEARTBEAT_SHAPES: Final = {0: b"cciCCi-C-0", 1: b"cciCCi-CC-0"}
CONSUMER_BEATEN_SHAPES: Final = {0: b"ihCCii!0", 1: b"ihCCii!0"}


class CommitItem(NamedTuple):
    """The offset to commit for one partition. `leader_epoch` is -1 if the client does not know the leader epoch."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


CommitTopic: TypeAlias = tuple[str, bytes, Sequence[tuple[int, int, int, str | None]]]
"""A topic of an OffsetCommit request: its name (empty from version 10 on), its id (NO_TOPIC_ID before version 10), and
the fields of a CommitItem for each partition.
"""


class OffsetCommit(Struct, frozen=True, gc=False):
    """An OffsetCommit request. `retention_ms` is the retention time that old clients send; -1 means none."""

    API_KEY: ClassVar[int] = ApiKey.OFFSET_COMMIT

    group_id: str
    generation_or_epoch: int
    member_id: str
    instance_id: str | None
    topics: Sequence[CommitTopic]
    retention_ms: int = -1

    @property
    def partition_count(self) -> int:
        """The number of partitions in all topics."""
        return sum([len(partitions) for _, _, partitions in self.topics])


class HeartbeatMessage(Struct, frozen=True, gc=False):
    """A Heartbeat request. The fields are those of the generated class `messages.HeartbeatRequest`."""

    API_KEY: ClassVar[int] = ApiKey.HEARTBEAT

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


class ConsumerHeartbeatMessage(Struct, frozen=True, gc=False):
    """A ConsumerGroupHeartbeat request that reports neither subscribed topics nor owned partitions.

    The fields are those of the generated class `messages.ConsumerGroupHeartbeatRequest`.
    """

    API_KEY: ClassVar[int] = ApiKey.CONSUMER_GROUP_HEARTBEAT

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    subscribed_topic_names: None
    subscribed_topic_regex: str | None
    server_assignor: str | None
    topic_partitions: None


def decode_offset_commit(version: int, body: ByteBuffer) -> OffsetCommit:
    """Decode an OffsetCommit request. Raises Malformed."""
    shape = COMMIT_SHAPES.get(version)
    fields = usual_message(shape, body) if shape is not None else None
    if fields is None:
        message: Any = decode_request(ApiKey.OFFSET_COMMIT, version, body)
        return _commit(version, message, [_topic(version, topic) for topic in message.topics])
    instance_id = fields[3] if version >= COMMIT_WITH_INSTANCES else None
    topics: list[CommitTopic] = [
        ("", topic, items) if version >= COMMIT_WITH_TOPIC_IDS else (topic, NO_TOPIC_ID, items)
        for topic, items in fields[-1]
    ]
    return OffsetCommit(fields[0], fields[1], fields[2], instance_id, topics)


def decode_offset_commit_steps(
    version: int, body: ByteBuffer
) -> Generator[None, None, OffsetCommit]:
    """Decode like `decode_offset_commit`, but as a generator that yields after each item, for long requests. The
    generator returns the request.
    """
    message: Any = yield from decode_request_in_steps(ApiKey.OFFSET_COMMIT, version, body)
    topics: list[CommitTopic] = []
    for topic in message.topics:
        items: list[CommitItem] = []
        for item in topic.partitions:
            items.append(_item(version, item))
            yield
        topics.append((topic.name or "", bytes(topic.topic_id or NO_TOPIC_ID), items))
        yield
    return _commit(version, message, topics)


def _commit(version: int, message: Any, topics: Sequence[CommitTopic]) -> OffsetCommit:
    return OffsetCommit(
        message.group_id,
        message.generation_id_or_member_epoch,
        message.member_id,
        message.group_instance_id if version >= COMMIT_WITH_INSTANCES else None,
        topics,
        message.retention_time_ms if version <= COMMIT_WITH_RETENTION_TO else -1,
    )


def _topic(version: int, topic: Any) -> CommitTopic:
    items = [_item(version, item) for item in topic.partitions]
    return topic.name or "", bytes(topic.topic_id or NO_TOPIC_ID), items


def _item(version: int, item: Any) -> CommitItem:
    epoch = item.committed_leader_epoch if version >= COMMIT_WITH_EPOCHS else -1
    return CommitItem(item.partition_index, item.committed_offset, epoch, item.committed_metadata)


CommittedTopic: TypeAlias = tuple[str, bytes, list[tuple[int, int]]]
"""A topic of an OffsetCommit response: its name and its id as in the request (`CommitTopic`), and the index and error
code of each partition.
"""


def encode_offset_commit_response(version: int, topics: Sequence[CommittedTopic]) -> ByteBuffer:
    """Encode an OffsetCommit response in one step."""
    shape = COMMITTED_SHAPES.get(version)
    if shape is not None:
        by_id = version >= COMMIT_WITH_TOPIC_IDS
        named = [(topic_id if by_id else name, codes) for name, topic_id, codes in topics]
        usual = usual_encoding(shape, (0, named))
        if usual is not None:
            return usual
    return encode_message(offset_commit_response(topics), version)


def offset_commit_response(topics: Sequence[CommittedTopic]) -> messages.OffsetCommitResponse:
    """Return an OffsetCommit response as an object of the generated class."""
    topic_class = messages.OffsetCommitResponse.OffsetCommitResponseTopic
    partition_class = topic_class.OffsetCommitResponsePartition
    return messages.OffsetCommitResponse(
        topics=[
            topic_class(
                name=name,
                topic_id=uuid_of(topic_id),
                partitions=[
                    partition_class(partition_index=index, error_code=code) for index, code in codes
                ],
            )
            for name, topic_id, codes in topics
        ],
    )


def decode_heartbeat(version: int, body: ByteBuffer) -> HeartbeatMessage:
    """Decode a Heartbeat request. Raises Malformed."""
    fields = usual_message(HEARTBEAT_SHAPES[version], body)
    if fields is not None:
        return HeartbeatMessage(*fields)
    message: Any = decode_request(ApiKey.HEARTBEAT, version, body)
    return HeartbeatMessage(
        message.group_id,
        message.generation_id,
        message.member_id,
        message.group_instance_id if version >= 3 else None,
    )


def encode_heartbeat_response(version: int, error_code: int) -> ByteBuffer:
    fields = (0, error_code) if version >= 1 else (error_code,)
    usual = usual_encoding(BEATEN_SHAPES[version], fields)
    if usual is not None:
        return usual
    return encode_message(messages.HeartbeatResponse(error_code=error_code), version)


def decode_consumer_heartbeat(
    version: int, body: ByteBuffer
) -> messages.ConsumerGroupHeartbeatRequest:
    """Decode a ConsumerGroupHeartbeat request. Raises Malformed.

    The result may be a ConsumerHeartbeatMessage, which has the same fields.
    """
    fields = usual_message(CONSUMER_HEARTBEAT_SHAPES[version], body)
    if fields is None:
        message: Any = decode_request(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, body)
    else:
        regex = fields[6] if version >= 1 else None
        all_fields: Any = (*fields[:6], None, regex, fields[-1], None)
        message = ConsumerHeartbeatMessage(*all_fields)
    # A ConsumerHeartbeatMessage has fields of the same names and types, and handlers only read fields.
    return cast("messages.ConsumerGroupHeartbeatRequest", message)


def encode_consumer_heartbeat_response(
    version: int,
    error_code: int,
    error_message: str | None,
    member_id: str | None,
    member_epoch: int,
    heartbeat_interval_ms: int,
) -> ByteBuffer | None:
    """Encode a ConsumerGroupHeartbeat response without an assignment.

    Return None if the caller must encode the response with the generated class, for example because the C codec is not
    built.
    """
    return usual_encoding(
        CONSUMER_BEATEN_SHAPES[version],
        (0, error_code, error_message, member_id, member_epoch, heartbeat_interval_ms),
    )
