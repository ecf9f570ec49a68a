"""The bytes of `__consumer_offsets`: Kafka's own keys and values (GroupMetadata*.json, OffsetCommit*.json,
ConsumerGroup*.json), so that Kafka's tools read the topic.

A key begins with an int16 that tells its type, a value with an int16 that tells its version. Written: offset commits
at version 4 with the topic's id in tag 0, as Kafka 4.1 and later do, classic groups at version 3, the others at version
0. Unknown types are skipped, as they come from a newer release.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from odradek_broker.groups.formats.consumer_group_codec import (
    current_value,
    epoch_value,
    member_value,
    read_current,
    read_member,
    read_target,
    read_topics,
    target_value,
    topics_value,
)
from odradek_broker.groups.formats.record_reader import INT16, INT32, INT64, RecordReader
from odradek_broker.groups.messages import CommittedOffset
from odradek_broker.groups.records import (
    ClassicGroupRecord,
    ClassicGroupState,
    ClassicMember,
    ConsumerMemberRecord,
    CurrentMemberRecord,
    GroupEpochRecord,
    GroupRecord,
    GroupTopicsRecord,
    OffsetCommitRecord,
    TargetEpochRecord,
    TargetMemberRecord,
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
    read_compact_string,
    read_string,
    write_array_count,
    write_bytes,
    write_compact_string,
    write_string,
    write_tagged_fields,
)

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
    """Key and value; the value None deletes."""
    match record:
        case OffsetCommitRecord():
            key = bytearray(INT16.pack(1))
            write_string(key, record.group_id)
            write_string(key, record.partition.topic)
            key += INT32.pack(record.partition.partition)
            return bytes(key), _maybe(_offset_value, record.committed)
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
    """The record; None for a type that this release does not know.

    Raises:
        Malformed: the bytes are damaged.
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


# --- offsets ---------------------------------------------------------------------------------------


def _offset_value(committed: CommittedOffset) -> bytearray:
    if committed.expire_timestamp_ms >= 0:  # only version 1 has it
        out = bytearray(INT16.pack(1) + INT64.pack(committed.offset))
        write_string(out, committed.metadata)
        out += INT64.pack(committed.commit_timestamp_ms)
        return out + INT64.pack(committed.expire_timestamp_ms)
    out = bytearray(INT16.pack(_OFFSET_COMMIT_VERSION))
    out += INT64.pack(committed.offset) + INT32.pack(committed.leader_epoch)
    write_compact_string(out, committed.metadata)
    out += INT64.pack(committed.commit_timestamp_ms)
    known = committed.topic_id != NO_TOPIC_ID
    write_tagged_fields(out, {_TOPIC_ID_TAG: committed.topic_id} if known else None)
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
        raise Malformed(f"a topic id of {len(topic_id)} bytes")
    return CommittedOffset(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        topic_id=TopicId(topic_id),
        commit_timestamp_ms=commit_timestamp_ms,
        expire_timestamp_ms=expire_timestamp_ms,
    )


# --- classic groups ----------------------------------------------------------------------------------


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
        raise Malformed(f"GroupMetadata version {version}: written by a newer release")
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
