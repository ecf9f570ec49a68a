"""The records of `__consumer_offsets`, as value objects. formats/record_codec.py encodes and decodes them.

If the last field of a record is None, the record is a tombstone, which deletes the earlier record with the same key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from msgspec import Struct

from odradek_broker.groups.messages import Assignment, CommittedOffset
from odradek_protocol.identity import GroupId, MemberId, TopicId, TopicName, TopicPartition

NAME_BYTES_MAX: Final = 32_767
MEMBER_BYTES_MAX: Final = 1 << 20
"""The size limit of the names and metadata of one member."""
GROUP_BYTES_MAX: Final = 16 << 20
"""The size limit of all members of a classic group, because one record contains all of them."""


class OffsetCommitRecord(Struct, frozen=True, kw_only=True, gc=False):
    """A committed offset of a group. If `committed` is None, the record deletes the committed offset."""

    group_id: GroupId
    partition: TopicPartition
    committed: CommittedOffset | None


class ClassicMember(Struct, frozen=True, kw_only=True, gc=False):
    """A member of a classic group, as part of the group's record."""

    member_id: MemberId
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class ClassicGroupState(Struct, frozen=True, kw_only=True, gc=False):
    """The state of a classic group in one generation."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: MemberId | None
    state_timestamp_ms: int
    members: tuple[ClassicMember, ...]


class ClassicGroupRecord(Struct, frozen=True, kw_only=True, gc=False):
    """The state of a classic group (Kafka's GroupMetadata). If `state` is None, the record deletes the group."""

    group_id: GroupId
    state: ClassicGroupState | None


class GroupEpochRecord(Struct, frozen=True, kw_only=True, gc=False):
    """The group epoch (Kafka's ConsumerGroupMetadata, KIP-848). If `epoch` is None, the record is a tombstone."""

    group_id: GroupId
    epoch: int | None


class TopicSnapshot(Struct, frozen=True, kw_only=True, gc=False):
    """A subscribed topic, with the number of partitions from which the last target assignment was computed."""

    topic_id: TopicId
    topic: TopicName
    partitions: int


class GroupTopicsRecord(Struct, frozen=True, kw_only=True, gc=False):
    """The topics from which the last target assignment was computed (Kafka's ConsumerGroupPartitionMetadata)."""

    group_id: GroupId
    topics: tuple[TopicSnapshot, ...] | None


class ClassicProtocols(Struct, frozen=True, kw_only=True, gc=False):
    """The session timeout and the protocols of a member of a consumer group that uses the classic protocol."""

    session_timeout_ms: int
    # Pairs of name and metadata, in the member's order of preference.
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMember(Struct, frozen=True, kw_only=True, gc=False):
    """The subscription and the client of a member. `classic` is None for a member that uses the consumer protocol."""

    member_id: MemberId
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topics: tuple[TopicName, ...]
    subscribed_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicProtocols | None = None
    # The member's principal. `subscribed_regex` matches only topics that this principal may describe.
    principal: str = ""


class ConsumerMemberRecord(Struct, frozen=True, kw_only=True, gc=False):
    """A member's subscription and client (Kafka's ConsumerGroupMemberMetadata). If `member` is None, the record deletes
    the member.
    """

    group_id: GroupId
    member_id: MemberId
    member: ConsumerMember | None


class TargetEpochRecord(Struct, frozen=True, kw_only=True, gc=False):
    """The group epoch for which the targets were computed (Kafka's ConsumerGroupTargetAssignmentMetadata)."""

    group_id: GroupId
    epoch: int | None


class TargetMemberRecord(Struct, frozen=True, kw_only=True, gc=False):
    """The partitions that a member should own (Kafka's ConsumerGroupTargetAssignmentMember)."""

    group_id: GroupId
    member_id: MemberId
    target: Assignment | None


class CurrentAssignment(Struct, frozen=True, kw_only=True, gc=False):
    """The partitions that a member owns, and its progress towards its target assignment."""

    member_epoch: int
    previous_epoch: int
    state: int  # a number of MemberState
    assigned: Assignment
    pending_revocation: Assignment


class CurrentMemberRecord(Struct, frozen=True, kw_only=True, gc=False):
    """The current assignment of a member (Kafka's ConsumerGroupCurrentMemberAssignment). If `current` is None, the
    record is a tombstone.
    """

    group_id: GroupId
    member_id: MemberId
    current: CurrentAssignment | None


GroupRecord: TypeAlias = (
    OffsetCommitRecord
    | ClassicGroupRecord
    | GroupEpochRecord
    | GroupTopicsRecord
    | ConsumerMemberRecord
    | TargetEpochRecord
    | TargetMemberRecord
    | CurrentMemberRecord
)


def has_room_for(*names: str | None) -> bool:
    """Return whether each name is short enough for a string field of a record, whose length is an int16."""
    return all(name is None or len(name.encode()) <= NAME_BYTES_MAX for name in names)


def says_too_much(names: Iterable[str], metadata: Iterable[bytes] = ()) -> bool:
    """Return whether the names and metadata together have `MEMBER_BYTES_MAX` bytes or more."""
    size_bytes = sum(len(name.encode()) for name in names) + sum(map(len, metadata))
    return size_bytes >= MEMBER_BYTES_MAX


def is_tombstone(record: GroupRecord) -> bool:
    """Return whether the record is a tombstone."""
    match record:
        case OffsetCommitRecord():
            return record.committed is None
        case ClassicGroupRecord():
            return record.state is None
        case GroupTopicsRecord():
            return record.topics is None
        case ConsumerMemberRecord():
            return record.member is None
        case TargetMemberRecord():
            return record.target is None
        case CurrentMemberRecord():
            return record.current is None
        case _:
            return record.epoch is None
