"""The encoding of the records of `__consumer_offsets`. Keys and values have Kafka's formats (GroupMetadata*.json,
OffsetCommit*.json, ConsumerGroup*.json), so that Kafka's tools can read the topic.

A key begins with its type, and a value with its version, both as an int16. Offset commits are written in version 4 with
the topic id in tag 0, as in Kafka 4.1 and later, or in version 1 if they have an expiry timestamp. Classic groups are
written in version 3, and all other values in version 0. Records whose key has an unknown type are skipped, because a
newer release has written them.

A member of a consumer group that uses the classic protocol has the tagged field ClassicMemberMetadata with its classic
protocols, so that the group can become a classic group. The member's principal is in a tagged field that does not exist
in Kafka, and that Kafka's tools ignore.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from odradek_broker.groups.messages import Assignment, CommittedOffset
from odradek_broker.groups.records import (
    ClassicGroupRecord,
    ClassicGroupState,
    ClassicMember,
    ClassicProtocols,
    ConsumerMember,
    ConsumerMemberRecord,
    CurrentAssignment,
    CurrentMemberRecord,
    GroupEpochRecord,
    GroupRecord,
    GroupTopicsRecord,
    OffsetCommitRecord,
    TargetEpochRecord,
    TargetMemberRecord,
    TopicSnapshot,
)
from odradek_protocol.identity import (
    NO_TOPIC_ID,
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)
from odradek_protocol.primitives import (
    Malformed,
    read_array_count,
    read_bytes,
    read_compact_array_count,
    read_compact_bytes,
    read_compact_string,
    read_string,
    read_tagged_fields,
    write_array_count,
    write_bytes,
    write_compact_array_count,
    write_compact_bytes,
    write_compact_string,
    write_string,
    write_tagged_fields,
)
from odradek_protocol.records.codec import usual_encoding

T = TypeVar("T")
OFFSET_COMMIT_KEYS: Final = (0, 1)
CLASSIC_GROUP_KEY: Final = 2
GROUP_EPOCH_KEY: Final = 3
GROUP_TOPICS_KEY: Final = 4
CONSUMER_MEMBER_KEY: Final = 5
TARGET_EPOCH_KEY: Final = 6
TARGET_MEMBER_KEY: Final = 7
CURRENT_MEMBER_KEY: Final = 8
_OFFSET_COMMIT_VERSION: Final = 4
_TOPIC_ID_TAG: Final = 0
_CLASSIC_GROUP_VERSION: Final = 3


def encode(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record. The value of a tombstone is None."""
    match record:
        case OffsetCommitRecord():
            return _offset_key(record), _maybe(_offset_value, record.committed)
        case ClassicGroupRecord():
            return _key(CLASSIC_GROUP_KEY, record.group_id), _maybe(_classic_value, record.state)
        case GroupEpochRecord():
            return _key(GROUP_EPOCH_KEY, record.group_id), _maybe(epoch_value, record.epoch)
        case GroupTopicsRecord():
            return _key(GROUP_TOPICS_KEY, record.group_id), _maybe(topics_value, record.topics)
        case ConsumerMemberRecord():
            key_bytes = _key(CONSUMER_MEMBER_KEY, record.group_id, record.member_id)
            return key_bytes, _maybe(member_value, record.member)
        case TargetEpochRecord():
            return _key(TARGET_EPOCH_KEY, record.group_id), _maybe(epoch_value, record.epoch)
        case TargetMemberRecord():
            key_bytes = _key(TARGET_MEMBER_KEY, record.group_id, record.member_id)
            return key_bytes, _maybe(target_value, record.target)
        case CurrentMemberRecord():
            key_bytes = _key(CURRENT_MEMBER_KEY, record.group_id, record.member_id)
            return key_bytes, _maybe(current_value, record.current)


def decode(key: bytes, value: bytes | None) -> GroupRecord | None:
    """Decode a record. Return None if this release does not know the record's type.

    Raises:
        Malformed: the key or the value is not valid.
    """
    reader = RecordReader(key)
    kind = reader.number(INT16)
    if kind in OFFSET_COMMIT_KEYS:
        group_id, topic = GroupId(reader.text()), TopicName(reader.text())
        partition = TopicPartition(topic, PartitionIndex(reader.number(INT32)))
        committed = None if value is None else _read_offset(RecordReader(value))
        return OffsetCommitRecord(group_id=group_id, partition=partition, committed=committed)
    if not CLASSIC_GROUP_KEY <= kind <= CURRENT_MEMBER_KEY:
        return None
    group_id = GroupId(reader.text())
    body = None if value is None else RecordReader(value)
    if kind in (CONSUMER_MEMBER_KEY, TARGET_MEMBER_KEY, CURRENT_MEMBER_KEY):
        return _decode_of_member(kind, group_id, MemberId(reader.text()), body)
    match kind:
        case 2:
            state = None if body is None else _read_classic(body)
            return ClassicGroupRecord(group_id=group_id, state=state)
        case 4:
            topics = None if body is None else read_topics(body)
            return GroupTopicsRecord(group_id=group_id, topics=topics)
    epoch = None
    if body is not None:
        body.number(INT16)
        epoch = body.number(INT32)
    if kind == GROUP_EPOCH_KEY:
        return GroupEpochRecord(group_id=group_id, epoch=epoch)
    return TargetEpochRecord(group_id=group_id, epoch=epoch)


def _decode_of_member(
    kind: int, group_id: GroupId, member_id: MemberId, body: RecordReader | None
) -> GroupRecord:
    match kind:
        case 5:
            member = None if body is None else read_member(body, member_id)
            return ConsumerMemberRecord(group_id=group_id, member_id=member_id, member=member)
        case 7:
            target = None if body is None else read_target(body)
            return TargetMemberRecord(group_id=group_id, member_id=member_id, target=target)
    current = None if body is None else read_current(body)
    return CurrentMemberRecord(group_id=group_id, member_id=member_id, current=current)


def _key(kind: int, *names: str) -> bytes:
    key = bytearray(INT16.pack(kind))
    for name in names:
        write_string(key, name)
    return bytes(key)


def _maybe(write: Callable[[T], bytearray], value: T | None) -> bytes | None:
    return None if value is None else bytes(write(value))


def _offset_key(record: OffsetCommitRecord) -> bytes:
    topic, partition = record.partition.topic, record.partition.partition
    usual = usual_encoding(b"hssi", (1, record.group_id, topic, partition))
    if usual is not None:
        return usual
    key = bytearray(INT16.pack(1))
    write_string(key, record.group_id)
    write_string(key, topic)
    key += INT32.pack(partition)
    return bytes(key)


def _offset_value(committed: CommittedOffset) -> bytearray:
    # Of all versions, only version 1 has an expiry timestamp.
    if committed.expire_timestamp_ms >= 0:
        out = bytearray(INT16.pack(1) + INT64.pack(committed.offset))
        write_string(out, committed.metadata)
        out += INT64.pack(committed.commit_timestamp_ms)
        return out + INT64.pack(committed.expire_timestamp_ms)
    fields = (
        _OFFSET_COMMIT_VERSION,
        committed.offset,
        committed.leader_epoch,
        committed.metadata,
        committed.commit_timestamp_ms,
    )
    usual = usual_encoding(b"hqiCq", fields)
    if usual is not None:
        out = bytearray(usual)
    else:
        out = bytearray(INT16.pack(_OFFSET_COMMIT_VERSION))
        out += INT64.pack(committed.offset) + INT32.pack(committed.leader_epoch)
        write_compact_string(out, committed.metadata)
        out += INT64.pack(committed.commit_timestamp_ms)
    has_id = committed.topic_id != NO_TOPIC_ID
    write_tagged_fields(out, {_TOPIC_ID_TAG: committed.topic_id} if has_id else None)
    return out


def _read_offset(body: RecordReader) -> CommittedOffset:
    version = body.number(INT16)
    offset = Offset(body.number(INT64))
    leader_epoch = LeaderEpoch(body.number(INT32)) if version >= 3 else LeaderEpoch(-1)
    metadata = body.text(read_compact_string if version >= 4 else read_string)
    commit_timestamp_ms = body.number(INT64)
    expire_timestamp_ms = body.number(INT64) if version == 1 else -1
    topic_id = body.tags().get(_TOPIC_ID_TAG, NO_TOPIC_ID) if version >= 4 else NO_TOPIC_ID
    if len(topic_id) != len(NO_TOPIC_ID):
        raise Malformed(f"a topic id must have 16 bytes, not {len(topic_id)}")
    return CommittedOffset(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        topic_id=TopicId(topic_id),
        commit_timestamp_ms=commit_timestamp_ms,
        expire_timestamp_ms=expire_timestamp_ms,
    )


def _classic_value(state: ClassicGroupState) -> bytearray:
    out = bytearray(INT16.pack(_CLASSIC_GROUP_VERSION))
    write_string(out, state.protocol_type)
    out += INT32.pack(state.generation)
    write_string(out, state.protocol)
    write_string(out, state.leader)
    out += INT64.pack(state.state_timestamp_ms)
    write_array_count(out, len(state.members))
    for member in state.members:
        write_string(out, member.member_id)
        write_string(out, member.instance_id)
        write_string(out, member.client_id)
        write_string(out, member.client_host)
        out += INT32.pack(member.rebalance_timeout_ms) + INT32.pack(member.session_timeout_ms)
        write_bytes(out, member.subscription)
        write_bytes(out, member.assignment)
    return out


def _read_classic(body: RecordReader) -> ClassicGroupState:
    version = body.number(INT16)
    if version > _CLASSIC_GROUP_VERSION:
        raise Malformed(
            f"GroupMetadata has the unsupported version {version}: a newer release wrote it"
        )
    protocol_type, generation = body.text(), body.number(INT32)
    protocol, leader = body.maybe_text(), body.maybe_text()
    state_timestamp_ms = body.number(INT64) if version >= 2 else -1
    members = []
    for _ in range(body.count()):
        member_id = MemberId(body.text())
        instance_id = body.maybe_text() if version >= 3 else None
        client_id, client_host = body.text(), body.text()
        rebalance_timeout_ms = body.number(INT32) if version >= 1 else -1
        session_timeout_ms = body.number(INT32)
        members.append(
            ClassicMember(
                member_id=member_id,
                instance_id=instance_id,
                client_id=client_id,
                client_host=client_host,
                rebalance_timeout_ms=session_timeout_ms
                if rebalance_timeout_ms < 0
                else rebalance_timeout_ms,
                session_timeout_ms=session_timeout_ms,
                subscription=body.blob(),
                assignment=body.blob(),
            )
        )
    return ClassicGroupState(
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader=MemberId(leader) if leader is not None else None,
        state_timestamp_ms=state_timestamp_ms,
        members=tuple(members),
    )


INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
_UUID_BYTES: Final = 16


class RecordReader:
    """Reads the fields of a key or a value one after the other. A read past the end raises Malformed."""

    __slots__ = ("buffer", "position")

    def __init__(self, buffer: bytes) -> None:
        self.buffer, self.position = buffer, 0

    def number(self, form: struct.Struct) -> int:
        try:
            (value,) = form.unpack_from(self.buffer, self.position)
        except struct.error as error:
            raise Malformed(
                f"a group record ends too early, at byte {len(self.buffer)}: {error}"
            ) from None
        self.position += form.size
        return int(value)

    def text(self, read: Callable[[bytes, int], tuple[str | None, int]] = read_string) -> str:
        return self.maybe_text(read) or ""

    def maybe_text(
        self, read: Callable[[bytes, int], tuple[str | None, int]] = read_string
    ) -> str | None:
        value, self.position = read(self.buffer, self.position)
        return value

    def blob(self) -> bytes:
        value, self.position = read_bytes(self.buffer, self.position)
        return value or b""

    def compact_blob(self) -> bytes:
        value, self.position = read_compact_bytes(self.buffer, self.position)
        return value or b""

    def count(self) -> int:
        value, self.position = read_array_count(self.buffer, self.position)
        return max(0, value)

    def compact_count(self) -> int:
        value, self.position = read_compact_array_count(self.buffer, self.position)
        return max(0, value)

    def uuid(self) -> TopicId:
        value = self.buffer[self.position : self.position + _UUID_BYTES]
        if len(value) != _UUID_BYTES:
            raise Malformed(f"a group record ends within a topic id, at byte {len(self.buffer)}")
        self.position += _UUID_BYTES
        return TopicId(value)

    def tags(self) -> dict[int, bytes]:
        tags, self.position = read_tagged_fields(self.buffer, self.position)
        return tags


_CLASSIC_METADATA_TAG = 0
_PRINCIPAL_TAG = 8_480
_PRESENT = 1  # the byte before a nullable struct that is not null


def epoch_value(epoch: int) -> bytearray:
    """Encode the value of ConsumerGroupMetadata or ConsumerGroupTargetAssignmentMetadata, which is an epoch."""
    out = bytearray(INT16.pack(0) + INT32.pack(epoch))
    write_tagged_fields(out)
    return out


def topics_value(topics: tuple[TopicSnapshot, ...]) -> bytearray:
    """Encode the value of ConsumerGroupPartitionMetadata."""
    out = bytearray(INT16.pack(0))
    write_compact_array_count(out, len(topics))
    for topic in topics:
        out += topic.topic_id
        write_compact_string(out, topic.topic)
        out += INT32.pack(topic.partitions)
        write_compact_array_count(out, 0)  # racks of each partition, which no assignor uses
        write_tagged_fields(out)
    write_tagged_fields(out)
    return out


def read_topics(body: RecordReader) -> tuple[TopicSnapshot, ...]:
    """Decode the value of ConsumerGroupPartitionMetadata."""
    body.number(INT16)
    topics = []
    for _ in range(body.compact_count()):
        topic_id = body.uuid()
        name = TopicName(body.text(read_compact_string))
        partitions = body.number(INT32)
        for _ in range(body.compact_count()):
            body.number(INT32)
            for _ in range(body.compact_count()):
                body.text(read_compact_string)
            body.tags()
        body.tags()
        topics.append(TopicSnapshot(topic_id=topic_id, topic=name, partitions=partitions))
    return tuple(topics)


def member_value(member: ConsumerMember) -> bytearray:
    """Encode the value of ConsumerGroupMemberMetadata."""
    out = bytearray(INT16.pack(0))
    write_compact_string(out, member.instance_id)
    write_compact_string(out, member.rack_id)
    write_compact_string(out, member.client_id)
    write_compact_string(out, member.client_host)
    write_compact_array_count(out, len(member.subscribed_topics))
    for topic in member.subscribed_topics:
        write_compact_string(out, topic)
    write_compact_string(out, member.subscribed_regex)
    out += INT32.pack(member.rebalance_timeout_ms)
    write_compact_string(out, member.server_assignor)
    tags: dict[int, bytes] = {}
    if member.classic is not None:
        tags[_CLASSIC_METADATA_TAG] = bytes(_classic_member_value(member.classic))
    if member.principal:
        tags[_PRINCIPAL_TAG] = member.principal.encode()
    write_tagged_fields(out, tags)
    return out


def _classic_member_value(classic: ClassicProtocols) -> bytearray:
    out = bytearray(INT8.pack(_PRESENT) + INT32.pack(classic.session_timeout_ms))
    write_compact_array_count(out, len(classic.protocols))
    for name, metadata in classic.protocols:
        write_compact_string(out, name)
        write_compact_bytes(out, metadata)
        write_tagged_fields(out)
    write_tagged_fields(out)
    return out


def _read_classic_member(field: bytes) -> ClassicProtocols | None:
    body = RecordReader(field)
    if body.number(INT8) != _PRESENT:
        return None
    session_timeout_ms = body.number(INT32)
    protocols = []
    for _ in range(body.compact_count()):
        name, metadata = body.text(read_compact_string), body.compact_blob()
        body.tags()
        protocols.append((name, metadata))
    return ClassicProtocols(session_timeout_ms=session_timeout_ms, protocols=tuple(protocols))


def read_member(body: RecordReader, member_id: MemberId) -> ConsumerMember:
    """Decode the value of ConsumerGroupMemberMetadata. `member_id` comes from the key."""
    body.number(INT16)
    read = read_compact_string
    instance_id, rack_id = body.maybe_text(read), body.maybe_text(read)
    client_id, client_host = body.text(read), body.text(read)
    topics = tuple(TopicName(body.text(read)) for _ in range(body.compact_count()))
    regex = body.maybe_text(read)
    rebalance_timeout_ms, server_assignor = body.number(INT32), body.maybe_text(read)
    tags = body.tags()
    classic = tags.get(_CLASSIC_METADATA_TAG)
    return ConsumerMember(
        member_id=member_id,
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        subscribed_topics=topics,
        subscribed_regex=regex,
        rebalance_timeout_ms=rebalance_timeout_ms,
        server_assignor=server_assignor,
        classic=None if classic is None else _read_classic_member(classic),
        principal=tags.get(_PRINCIPAL_TAG, b"").decode(errors="replace"),
    )


def _write_assignment(out: bytearray, assignment: Assignment) -> None:
    write_compact_array_count(out, len(assignment))
    for topic_id, indexes in sorted(assignment.items()):
        out += topic_id
        write_compact_array_count(out, len(indexes))
        for index in sorted(indexes):
            out += INT32.pack(index)
        write_tagged_fields(out)


def _read_assignment(body: RecordReader) -> Assignment:
    assignment: dict[TopicId, frozenset[PartitionIndex]] = {}
    for _ in range(body.compact_count()):
        topic_id = body.uuid()
        indexes = [PartitionIndex(body.number(INT32)) for _ in range(body.compact_count())]
        body.tags()
        assignment[topic_id] = frozenset(indexes)
    return assignment


def target_value(target: Assignment) -> bytearray:
    """Encode the value of ConsumerGroupTargetAssignmentMember."""
    out = bytearray(INT16.pack(0))
    _write_assignment(out, target)
    write_tagged_fields(out)
    return out


def read_target(body: RecordReader) -> Assignment:
    """Decode the value of ConsumerGroupTargetAssignmentMember."""
    body.number(INT16)
    return _read_assignment(body)


def current_value(current: CurrentAssignment) -> bytearray:
    """Encode the value of ConsumerGroupCurrentMemberAssignment."""
    out = bytearray(INT16.pack(0))
    out += INT32.pack(current.member_epoch) + INT32.pack(current.previous_epoch)
    out += INT8.pack(current.state)
    _write_assignment(out, current.assigned)
    _write_assignment(out, current.pending_revocation)
    write_tagged_fields(out)
    return out


def read_current(body: RecordReader) -> CurrentAssignment:
    """Decode the value of ConsumerGroupCurrentMemberAssignment."""
    body.number(INT16)
    member_epoch, previous_epoch = body.number(INT32), body.number(INT32)
    return CurrentAssignment(
        member_epoch=member_epoch,
        previous_epoch=previous_epoch,
        state=body.number(INT8),
        assigned=_read_assignment(body),
        pending_revocation=_read_assignment(body),
    )
