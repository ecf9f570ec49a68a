"""The bytes of `__consumer_offsets`: Kafka's own keys and values (GroupMetadata*.json, OffsetCommit*.json,
ConsumerGroup*.json), so that Kafka's tools read the topic.

A key begins with an int16 that tells its type, a value with an int16 that tells its version. Written: offset commits
and classic groups at version 3, which Kafka has read since 2.1; the others at version 0. Unknown types are skipped, as
they come from a newer release.
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
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)
from odradek_protocol.primitives.fields import (
    read_array_count,
    read_bytes,
    read_compact_array_count,
    read_compact_string,
    read_string,
    read_tagged_fields,
    write_array_count,
    write_bytes,
    write_compact_array_count,
    write_compact_string,
    write_string,
    write_tagged_fields,
)
from odradek_protocol.primitives.varint import Malformed

T = TypeVar("T")
_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_UUID_BYTES: Final = 16

OFFSET_COMMIT_KEYS: Final = (0, 1)
CLASSIC_GROUP_KEY: Final = 2
GROUP_EPOCH_KEY: Final = 3
GROUP_TOPICS_KEY: Final = 4
CONSUMER_MEMBER_KEY: Final = 5
TARGET_EPOCH_KEY: Final = 6
TARGET_MEMBER_KEY: Final = 7
CURRENT_MEMBER_KEY: Final = 8
_OFFSET_COMMIT_VERSION: Final = 3
_CLASSIC_GROUP_VERSION: Final = 3


class _Reader:
    """A position in a value; every read is checked against its end."""

    __slots__ = ("buffer", "position")

    def __init__(self, buffer: bytes) -> None:
        self.buffer, self.position = buffer, 0

    def number(self, form: struct.Struct) -> int:
        try:
            (value,) = form.unpack_from(self.buffer, self.position)
        except struct.error as error:
            raise Malformed(f"a record of groups ends at {len(self.buffer)}: {error}") from None
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

    def count(self) -> int:
        value, self.position = read_array_count(self.buffer, self.position)
        return max(0, value)

    def compact_count(self) -> int:
        value, self.position = read_compact_array_count(self.buffer, self.position)
        return max(0, value)

    def uuid(self) -> TopicId:
        value = self.buffer[self.position : self.position + _UUID_BYTES]
        if len(value) != _UUID_BYTES:
            raise Malformed(f"a record of groups ends at {len(self.buffer)} within a topic id")
        self.position += _UUID_BYTES
        return TopicId(value)

    def tags(self) -> None:
        _, self.position = read_tagged_fields(self.buffer, self.position)


def encode(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """Key and value; the value None deletes."""
    match record:
        case OffsetCommitRecord():
            key = bytearray(_INT16.pack(1))
            write_string(key, record.group_id)
            write_string(key, record.partition.topic)
            key += _INT32.pack(record.partition.partition)
            return bytes(key), _maybe(_offset_value, record.committed)
        case ClassicGroupRecord():
            return _key(CLASSIC_GROUP_KEY, record.group_id), _maybe(_classic_value, record.state)
        case GroupEpochRecord():
            return _key(GROUP_EPOCH_KEY, record.group_id), _maybe(_epoch_value, record.epoch)
        case GroupTopicsRecord():
            return _key(GROUP_TOPICS_KEY, record.group_id), _maybe(_topics_value, record.topics)
        case ConsumerMemberRecord():
            key_bytes = _key(CONSUMER_MEMBER_KEY, record.group_id, record.member_id)
            return key_bytes, _maybe(_member_value, record.member)
        case TargetEpochRecord():
            return _key(TARGET_EPOCH_KEY, record.group_id), _maybe(_epoch_value, record.epoch)
        case TargetMemberRecord():
            key_bytes = _key(TARGET_MEMBER_KEY, record.group_id, record.member_id)
            return key_bytes, _maybe(_target_value, record.target)
        case CurrentMemberRecord():
            key_bytes = _key(CURRENT_MEMBER_KEY, record.group_id, record.member_id)
            return key_bytes, _maybe(_current_value, record.current)


def decode(key: bytes, value: bytes | None) -> GroupRecord | None:
    """The record; None for a type that this release does not know.

    Raises:
        Malformed: the bytes are damaged.
    """
    reader = _Reader(key)
    kind = reader.number(_INT16)
    if kind in OFFSET_COMMIT_KEYS:
        group_id, topic = GroupId(reader.text()), TopicName(reader.text())
        partition = TopicPartition(topic, PartitionIndex(reader.number(_INT32)))
        committed = None if value is None else _read_offset(_Reader(value))
        return OffsetCommitRecord(group_id=group_id, partition=partition, committed=committed)
    if not CLASSIC_GROUP_KEY <= kind <= CURRENT_MEMBER_KEY:
        return None
    group_id = GroupId(reader.text())
    body = None if value is None else _Reader(value)
    if kind in (CONSUMER_MEMBER_KEY, TARGET_MEMBER_KEY, CURRENT_MEMBER_KEY):
        return _decode_of_member(kind, group_id, MemberId(reader.text()), body)
    match kind:
        case 2:
            state = None if body is None else _read_classic(body)
            return ClassicGroupRecord(group_id=group_id, state=state)
        case 4:
            topics = None if body is None else _read_topics(body)
            return GroupTopicsRecord(group_id=group_id, topics=topics)
    epoch = None
    if body is not None:
        body.number(_INT16)
        epoch = body.number(_INT32)
    if kind == GROUP_EPOCH_KEY:
        return GroupEpochRecord(group_id=group_id, epoch=epoch)
    return TargetEpochRecord(group_id=group_id, epoch=epoch)


def _decode_of_member(
    kind: int, group_id: GroupId, member_id: MemberId, body: _Reader | None
) -> GroupRecord:
    match kind:
        case 5:
            member = None if body is None else _read_member(body, member_id)
            return ConsumerMemberRecord(group_id=group_id, member_id=member_id, member=member)
        case 7:
            target = None if body is None else _read_target(body)
            return TargetMemberRecord(group_id=group_id, member_id=member_id, target=target)
    current = None if body is None else _read_current(body)
    return CurrentMemberRecord(group_id=group_id, member_id=member_id, current=current)


def _key(kind: int, *names: str) -> bytes:
    key = bytearray(_INT16.pack(kind))
    for name in names:
        write_string(key, name)
    return bytes(key)


def _maybe(write: Callable[[T], bytearray], value: T | None) -> bytes | None:
    return None if value is None else bytes(write(value))


# --- offsets ---------------------------------------------------------------------------------------


def _offset_value(committed: CommittedOffset) -> bytearray:
    if committed.expire_timestamp_ms >= 0:  # only version 1 has it
        out = bytearray(_INT16.pack(1) + _INT64.pack(committed.offset))
        write_string(out, committed.metadata)
        out += _INT64.pack(committed.commit_timestamp_ms)
        return out + _INT64.pack(committed.expire_timestamp_ms)
    out = bytearray(_INT16.pack(_OFFSET_COMMIT_VERSION))
    out += _INT64.pack(committed.offset) + _INT32.pack(committed.leader_epoch)
    write_string(out, committed.metadata)
    return out + _INT64.pack(committed.commit_timestamp_ms)


def _read_offset(body: _Reader) -> CommittedOffset:
    version = body.number(_INT16)
    offset = Offset(body.number(_INT64))
    leader_epoch = LeaderEpoch(body.number(_INT32)) if version >= 3 else LeaderEpoch(-1)
    metadata = body.text(read_compact_string if version >= 4 else read_string)
    commit_timestamp_ms = body.number(_INT64)
    return CommittedOffset(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp_ms=commit_timestamp_ms,
        expire_timestamp_ms=body.number(_INT64) if version == 1 else -1,
    )


# --- classic groups ----------------------------------------------------------------------------------


def _classic_value(state: ClassicGroupState) -> bytearray:
    out = bytearray(_INT16.pack(_CLASSIC_GROUP_VERSION))
    write_string(out, state.protocol_type)
    out += _INT32.pack(state.generation)
    write_string(out, state.protocol)
    write_string(out, state.leader)
    out += _INT64.pack(state.state_timestamp_ms)
    write_array_count(out, len(state.members))
    for member in state.members:
        write_string(out, member.member_id)
        write_string(out, member.instance_id)
        write_string(out, member.client_id)
        write_string(out, member.client_host)
        out += _INT32.pack(member.rebalance_timeout_ms) + _INT32.pack(member.session_timeout_ms)
        write_bytes(out, member.subscription)
        write_bytes(out, member.assignment)
    return out


def _read_classic(body: _Reader) -> ClassicGroupState:
    version = body.number(_INT16)
    if version > _CLASSIC_GROUP_VERSION:
        raise Malformed(f"GroupMetadata version {version}: written by a newer release")
    protocol_type, generation = body.text(), body.number(_INT32)
    protocol, leader = body.maybe_text(), body.maybe_text()
    state_timestamp_ms = body.number(_INT64) if version >= 2 else -1
    members = []
    for _ in range(body.count()):
        member_id = MemberId(body.text())
        instance_id = body.maybe_text() if version >= 3 else None
        client_id, client_host = body.text(), body.text()
        rebalance_timeout_ms = body.number(_INT32) if version >= 1 else -1
        session_timeout_ms = body.number(_INT32)
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


# --- consumer groups -----------------------------------------------------------------------------------


def _epoch_value(epoch: int) -> bytearray:
    out = bytearray(_INT16.pack(0) + _INT32.pack(epoch))
    write_tagged_fields(out)
    return out


def _topics_value(topics: tuple[TopicSnapshot, ...]) -> bytearray:
    out = bytearray(_INT16.pack(0))
    write_compact_array_count(out, len(topics))
    for topic in topics:
        out += topic.topic_id
        write_compact_string(out, topic.topic)
        out += _INT32.pack(topic.partitions)
        write_compact_array_count(out, 0)  # racks a partition: not used in assignments
        write_tagged_fields(out)
    write_tagged_fields(out)
    return out


def _read_topics(body: _Reader) -> tuple[TopicSnapshot, ...]:
    body.number(_INT16)
    topics = []
    for _ in range(body.compact_count()):
        topic_id = body.uuid()
        name = TopicName(body.text(read_compact_string))
        partitions = body.number(_INT32)
        for _ in range(body.compact_count()):
            body.number(_INT32)
            for _ in range(body.compact_count()):
                body.text(read_compact_string)
            body.tags()
        body.tags()
        topics.append(TopicSnapshot(topic_id=topic_id, topic=name, partitions=partitions))
    return tuple(topics)


def _member_value(member: ConsumerMember) -> bytearray:
    out = bytearray(_INT16.pack(0))
    write_compact_string(out, member.instance_id)
    write_compact_string(out, member.rack_id)
    write_compact_string(out, member.client_id)
    write_compact_string(out, member.client_host)
    write_compact_array_count(out, len(member.subscribed_topics))
    for topic in member.subscribed_topics:
        write_compact_string(out, topic)
    write_compact_string(out, member.subscribed_regex)
    out += _INT32.pack(member.rebalance_timeout_ms)
    write_compact_string(out, member.server_assignor)
    write_tagged_fields(out)
    return out


def _read_member(body: _Reader, member_id: MemberId) -> ConsumerMember:
    body.number(_INT16)
    read = read_compact_string
    instance_id, rack_id = body.maybe_text(read), body.maybe_text(read)
    client_id, client_host = body.text(read), body.text(read)
    topics = tuple(TopicName(body.text(read)) for _ in range(body.compact_count()))
    regex = body.maybe_text(read)
    return ConsumerMember(
        member_id=member_id,
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        subscribed_topics=topics,
        subscribed_regex=regex,
        rebalance_timeout_ms=body.number(_INT32),
        server_assignor=body.maybe_text(read),
    )


def _write_assignment(out: bytearray, assignment: Assignment) -> None:
    write_compact_array_count(out, len(assignment))
    for topic_id, indexes in sorted(assignment.items()):
        out += topic_id
        write_compact_array_count(out, len(indexes))
        for index in sorted(indexes):
            out += _INT32.pack(index)
        write_tagged_fields(out)


def _read_assignment(body: _Reader) -> Assignment:
    assignment: dict[TopicId, frozenset[PartitionIndex]] = {}
    for _ in range(body.compact_count()):
        topic_id = body.uuid()
        indexes = [PartitionIndex(body.number(_INT32)) for _ in range(body.compact_count())]
        body.tags()
        assignment[topic_id] = frozenset(indexes)
    return assignment


def _target_value(target: Assignment) -> bytearray:
    out = bytearray(_INT16.pack(0))
    _write_assignment(out, target)
    write_tagged_fields(out)
    return out


def _read_target(body: _Reader) -> Assignment:
    body.number(_INT16)
    return _read_assignment(body)


def _current_value(current: CurrentAssignment) -> bytearray:
    out = bytearray(_INT16.pack(0))
    out += _INT32.pack(current.member_epoch) + _INT32.pack(current.previous_epoch)
    out += _INT8.pack(current.state)
    _write_assignment(out, current.assigned)
    _write_assignment(out, current.pending_revocation)
    write_tagged_fields(out)
    return out


def _read_current(body: _Reader) -> CurrentAssignment:
    body.number(_INT16)
    member_epoch, previous_epoch = body.number(_INT32), body.number(_INT32)
    return CurrentAssignment(
        member_epoch=member_epoch,
        previous_epoch=previous_epoch,
        state=body.number(_INT8),
        assigned=_read_assignment(body),
        pending_revocation=_read_assignment(body),
    )
