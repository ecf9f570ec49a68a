"""The values of consumer groups in `__consumer_offsets` (ConsumerGroup*Value.json), version 0.

A member that speaks the classic protocol has one tagged field more, ClassicMemberMetadata: what it would say to a
classic group, so that the group can become one. A field that Kafka does not have, and its tools pass over, is the
member's principal.
"""

from __future__ import annotations

from odradek_broker.groups.formats.record_reader import INT8, INT16, INT32, RecordReader
from odradek_broker.groups.messages import Assignment
from odradek_broker.groups.records import (
    ClassicProtocols,
    ConsumerMember,
    CurrentAssignment,
    TopicSnapshot,
)
from odradek_protocol.identity import MemberId, PartitionIndex, TopicId, TopicName
from odradek_protocol.primitives import (
    read_compact_string,
    write_compact_array_count,
    write_compact_bytes,
    write_compact_string,
    write_tagged_fields,
)

_CLASSIC_METADATA_TAG = 0
_PRINCIPAL_TAG = 8_480
_PRESENT = 1  # before a struct that may be null


def epoch_value(epoch: int) -> bytearray:
    """ConsumerGroupMetadata, and ConsumerGroupTargetAssignmentMetadata."""
    out = bytearray(INT16.pack(0) + INT32.pack(epoch))
    write_tagged_fields(out)
    return out


def topics_value(topics: tuple[TopicSnapshot, ...]) -> bytearray:
    """ConsumerGroupPartitionMetadata."""
    out = bytearray(INT16.pack(0))
    write_compact_array_count(out, len(topics))
    for topic in topics:
        out += topic.topic_id
        write_compact_string(out, topic.topic)
        out += INT32.pack(topic.partitions)
        write_compact_array_count(out, 0)  # racks a partition: not used in assignments
        write_tagged_fields(out)
    write_tagged_fields(out)
    return out


def read_topics(body: RecordReader) -> tuple[TopicSnapshot, ...]:
    """Inverse of topics_value."""
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
    """ConsumerGroupMemberMetadata."""
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
        tags[_CLASSIC_METADATA_TAG] = bytes(_classic_value(member.classic))
    if member.principal:
        tags[_PRINCIPAL_TAG] = member.principal.encode()
    write_tagged_fields(out, tags)
    return out


def _classic_value(classic: ClassicProtocols) -> bytearray:
    out = bytearray(INT8.pack(_PRESENT) + INT32.pack(classic.session_timeout_ms))
    write_compact_array_count(out, len(classic.protocols))
    for name, metadata in classic.protocols:
        write_compact_string(out, name)
        write_compact_bytes(out, metadata)
        write_tagged_fields(out)
    write_tagged_fields(out)
    return out


def _read_classic(field: bytes) -> ClassicProtocols | None:
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
    """Inverse of member_value; the member's id is in the key."""
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
        classic=None if classic is None else _read_classic(classic),
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
    """ConsumerGroupTargetAssignmentMember."""
    out = bytearray(INT16.pack(0))
    _write_assignment(out, target)
    write_tagged_fields(out)
    return out


def read_target(body: RecordReader) -> Assignment:
    """Inverse of target_value."""
    body.number(INT16)
    return _read_assignment(body)


def current_value(current: CurrentAssignment) -> bytearray:
    """ConsumerGroupCurrentMemberAssignment."""
    out = bytearray(INT16.pack(0))
    out += INT32.pack(current.member_epoch) + INT32.pack(current.previous_epoch)
    out += INT8.pack(current.state)
    _write_assignment(out, current.assigned)
    _write_assignment(out, current.pending_revocation)
    write_tagged_fields(out)
    return out


def read_current(body: RecordReader) -> CurrentAssignment:
    """Inverse of current_value."""
    body.number(INT16)
    member_epoch, previous_epoch = body.number(INT32), body.number(INT32)
    return CurrentAssignment(
        member_epoch=member_epoch,
        previous_epoch=previous_epoch,
        state=body.number(INT8),
        assigned=_read_assignment(body),
        pending_revocation=_read_assignment(body),
    )
