"""Requests of members and administrators to a group coordinator, its responses, and the topic catalog that it uses.

These classes do not depend on a wire format; the request handlers convert Kafka frames and gRPC messages. Times are in
ms. Epochs and generations are ints that only rise. An `Assignment` maps topic ids to sets of partition indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from odradek_protocol.identity import (
    NO_TOPIC_ID,
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode

NO_GENERATION = -1
Assignment = Mapping[TopicId, frozenset[PartitionIndex]]


class JoinGroup(Struct, frozen=True, kw_only=True, gc=False):
    """A request to join a group, or to take part in its rebalance (KIP-62; static members: KIP-345)."""

    group_id: GroupId
    member_id: MemberId  # empty: a new member
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    # Pairs of name and metadata, in the member's order of preference.
    protocols: tuple[tuple[str, bytes], ...]
    client_id: str
    client_host: str
    new_member_id: MemberId  # the id for a new member, which the caller has drawn at random
    # True from JoinGroup version 4 on: a new member first gets an id, and then joins with this id (KIP-394).
    requires_known_member: bool
    # True from JoinGroup version 9 on: a returning static leader need not compute the assignment again (KIP-814).
    may_skip_assignment: bool


class JoinedMember(Struct, frozen=True, kw_only=True, gc=False):
    """A member of a group, as the response to JoinGroup describes it to the group's leader."""

    member_id: MemberId
    instance_id: str | None
    metadata: bytes


class Joined(Struct, frozen=True, kw_only=True, gc=False):
    """The response to JoinGroup. `members` is empty except for the leader."""

    error: ErrorCode
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: MemberId = MemberId("")
    member_id: MemberId = MemberId("")
    members: tuple[JoinedMember, ...] = ()
    skips_assignment: bool = False


class SyncGroup(Struct, frozen=True, kw_only=True, gc=False):
    """A member's request for its assignment. The leader's request contains the assignments of all members."""

    group_id: GroupId
    generation: int
    member_id: MemberId
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[MemberId, bytes]


class Synced(Struct, frozen=True, kw_only=True, gc=False):
    """The response to SyncGroup."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Heartbeat(Struct, frozen=True, kw_only=True, gc=False):
    """A request that extends a member's session (classic protocol)."""

    group_id: GroupId
    generation: int
    member_id: MemberId
    instance_id: str | None


class LeaveGroup(Struct, frozen=True, kw_only=True, gc=False):
    """A request to remove members from a group. For a static member, the member id may be empty."""

    group_id: GroupId
    members: tuple[tuple[MemberId, str | None], ...]


class Left(Struct, frozen=True, kw_only=True, gc=False):
    """The response to LeaveGroup, with one error code for the request, and one error code for each member."""

    error: ErrorCode
    members: tuple[tuple[MemberId, str | None, ErrorCode], ...] = ()


class ConsumerHeartbeat(Struct, frozen=True, kw_only=True, gc=False):
    """A ConsumerGroupHeartbeat request (KIP-848). None means that a field has not changed since the last heartbeat.

    A `member_epoch` of 0 means that the member joins, -1 that it leaves, and -2 that it is a static member that leaves
    temporarily.
    """

    group_id: GroupId
    member_id: MemberId
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topics: tuple[TopicName, ...] | None = None
    subscribed_regex: str | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""
    # The member's principal. `subscribed_regex` matches only topics that this principal may describe.
    principal: str = ""


class ConsumerHeartbeatAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """The response to ConsumerHeartbeat. If `assignment` is None, the assignment has not changed."""

    error: ErrorCode
    error_message: str | None = None
    member_id: MemberId | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


class CommittedOffset(Struct, frozen=True, kw_only=True, gc=False):
    """The offset at which a group continues to read one partition."""

    offset: Offset
    leader_epoch: LeaderEpoch = LeaderEpoch(-1)
    metadata: str = ""
    # In a request, the id of the topic that the client read, or NO_TOPIC_ID; the offset is refused if the topic now has
    # another id. In the coordinator's state, the id is NO_TOPIC_ID only for offsets that an older release wrote.
    topic_id: TopicId = NO_TOPIC_ID
    commit_timestamp_ms: int = -1
    # Wall-clock time from the retention_time_ms of old clients; -1: offsets.retention.minutes applies.
    expire_timestamp_ms: int = -1


class CommitOffsets(Struct, frozen=True, kw_only=True, gc=False):
    """A request to commit offsets (OffsetCommit). `generation_or_epoch` is -1 if the consumer is not a member of the
    group.
    """

    group_id: GroupId
    member_id: MemberId
    instance_id: str | None
    generation_or_epoch: int
    offsets: Mapping[TopicPartition, CommittedOffset]


class CommitInTransaction(Struct, frozen=True, kw_only=True, gc=False):
    """A request to commit offsets in a transaction (TxnOffsetCommit). The offsets are pending until the transaction
    ends.
    """

    commit: CommitOffsets
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class NeedsRegistration(Struct, frozen=True, gc=False):
    """The response to CommitInTransaction if the group coordinator does not know whether the group's partition of
    `__consumer_offsets` is part of the transaction.

    The caller lets the transaction coordinator add the partition to the transaction, and repeats the request with
    `Registered(guard)`.
    """

    guard: int


class Registered(Struct, frozen=True, gc=False):
    """The transaction coordinator has added the partition to the transaction. `guard` is the guard of
    `NeedsRegistration`.

    `last_outcome` is the outcome of the producer's previous transaction: the epoch of its records, and whether it was
    committed. None: the outcome is unknown.
    """

    guard: int
    last_outcome: tuple[ProducerEpoch, bool] | None = None


class EndInTransaction(Struct, frozen=True, kw_only=True, gc=False):
    """A request to end a transaction in a partition of `__consumer_offsets` by a marker.

    `is_bumped` means that the marker's epoch is higher than the epoch of the transaction's records.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool
    coordinator_epoch: int
    is_bumped: bool


class EndHanging(Struct, frozen=True, kw_only=True, gc=False):
    """A request to end a transaction that no transaction coordinator will end.

    `guard` is the producer's guard (pending_offsets.py), which the caller read before it asked the transaction
    coordinators about the transaction.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool
    guard: int | None


class OrphanEnded(Struct, frozen=True, gc=False):
    """An order to log that the marker of a transaction was lost: the transaction was still open in this partition when
    the producer's next transaction began.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool


class OffsetsAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """The response to a commit or a deletion of offsets, with an error code for the whole request or for each
    partition.
    """

    error: ErrorCode = ErrorCode.NONE
    partitions: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


class FetchOffsets(Struct, frozen=True, kw_only=True, gc=False):
    """A request for the committed offsets of one group (OffsetFetch). If `partitions` is None, all committed offsets
    are requested.
    """

    group_id: GroupId
    partitions: Sequence[TopicPartition] | None
    member_id: MemberId | None = None
    member_epoch: int = -1
    # True: the response waits while an open transaction may change one of the offsets (KIP-447).
    requires_stable: bool = False


class FetchedOffsets(Struct, frozen=True, kw_only=True, gc=False):
    """The response to FetchOffsets. The value in `offsets` is None for a partition without a committed offset.

    `unstable` contains the partitions whose offset an open transaction may still change. Clients get
    UNSTABLE_OFFSET_COMMIT for these partitions.
    """

    error: ErrorCode
    offsets: Mapping[TopicPartition, CommittedOffset | None] = field(default_factory=dict)
    unstable: frozenset[TopicPartition] = frozenset()


class GroupListing(Struct, frozen=True, kw_only=True, gc=False):
    """A group in the response to ListGroups."""

    group_id: GroupId
    protocol_type: str
    state: str
    group_type: str  # "classic" or "consumer"


class MemberDescription(Struct, frozen=True, kw_only=True, gc=False):
    """A member in the response to DescribeGroups or ConsumerGroupDescribe.

    Only members of classic groups have `metadata` and `assignment_bytes`. `is_classic` is True for a member of a
    consumer group that uses the classic protocol.
    """

    member_id: MemberId
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment_bytes: bytes = b""
    rack_id: str | None = None
    is_classic: bool = False
    member_epoch: int = -1
    subscribed_topics: tuple[TopicName, ...] = ()
    subscribed_regex: str | None = None
    assignment: Assignment = field(default_factory=dict)
    target: Assignment = field(default_factory=dict)


class GroupDescription(Struct, frozen=True, kw_only=True, gc=False):
    """A group in the response to DescribeGroups or ConsumerGroupDescribe. An unknown group has the state Dead, and an
    error code.
    """

    error: ErrorCode
    group_id: GroupId
    state: str
    group_type: str = "classic"
    protocol_type: str = ""
    protocol: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    members: tuple[MemberDescription, ...] = ()


class InvalidPattern(ValueError):
    """The regular expression of a subscription is not valid RE2, or is too long."""


def all_are_visible(principal: str, host: str, names: frozenset[TopicName]) -> frozenset[TopicName]:
    """Return all names. This is used on a broker without an authorizer."""
    return names


class TopicCatalog(Struct, frozen=True, kw_only=True, gc=False):
    """The topics of the cluster, for the group coordinator.

    `version` rises whenever the topics or the ACLs change. `matching` returns the topic names that a pattern (RE2
    syntax) matches, and raises InvalidPattern. `visible` returns the names that a principal (such as User:alice) may
    describe from an IP address.
    """

    version: int
    topics: Mapping[TopicName, tuple[TopicId, int]]  # the id and the number of partitions
    matching: Callable[[str], frozenset[TopicName]]
    visible: Callable[[str, str, frozenset[TopicName]], frozenset[TopicName]] = all_are_visible

    def id_of(self, partition: TopicPartition) -> TopicId | None:
        """Return the id of the partition's topic, or None if the partition does not exist."""
        topic_id, count = self.topics.get(partition.topic, (None, 0))
        return topic_id if 0 <= partition.partition < count else None
