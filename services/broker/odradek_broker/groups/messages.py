"""Requests to a group coordinator, from members and administrators; its responses; and the topics that it knows.

They do not depend on a wire format: the listeners convert Kafka frames and gRPC messages. Times are ms; epochs and
generations are ints that only rise; an `Assignment` maps a topic id to partition indexes.
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
    # (name, metadata), in the member's order of preference.
    protocols: tuple[tuple[str, bytes], ...]
    client_id: str
    client_host: str
    new_member_id: MemberId  # the id that a new member gets, which the caller drew
    requires_known_member: (
        # From JoinGroup version 4 on, a new member first gets an id, and joins with it (KIP-394).
        bool
    )
    # From JoinGroup version 9 on, for a static leader that returns (KIP-814).
    may_skip_assignment: bool


class JoinedMember(Struct, frozen=True, kw_only=True, gc=False):
    """A member of a group, as JoinGroup's response shows it to the group's leader."""

    member_id: MemberId
    instance_id: str | None
    metadata: bytes


class Joined(Struct, frozen=True, kw_only=True, gc=False):
    """The response to JoinGroup; only the leader gets `members`."""

    error: ErrorCode
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: MemberId = MemberId("")
    member_id: MemberId = MemberId("")
    members: tuple[JoinedMember, ...] = ()
    skips_assignment: bool = False


class SyncGroup(Struct, frozen=True, kw_only=True, gc=False):
    """A member's request for its assignment. The leader's request has the assignments of all members."""

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
    """A request by which a member shows that it is alive."""

    group_id: GroupId
    generation: int
    member_id: MemberId
    instance_id: str | None


class LeaveGroup(Struct, frozen=True, kw_only=True, gc=False):
    """A request to remove members from a group. Static members may be named by their instance id alone."""

    group_id: GroupId
    members: tuple[tuple[MemberId, str | None], ...]


class Left(Struct, frozen=True, kw_only=True, gc=False):
    """The response to LeaveGroup: an error for the request, and one for each member."""

    error: ErrorCode
    members: tuple[tuple[MemberId, str | None, ErrorCode], ...] = ()


class ConsumerHeartbeat(Struct, frozen=True, kw_only=True, gc=False):
    """A ConsumerGroupHeartbeat request. A field that is None has not changed.

    A `member_epoch` of 0 means that the member joins, -1 that it leaves, and -2 that it is a static member that leaves
    and will return.
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
    # The member's principal, whose rights decide which topics a pattern may match.
    principal: str = ""


class ConsumerHeartbeatAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """The response to ConsumerHeartbeat. An `assignment` of None means that it has not changed."""

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
    # In a request, the topic that was read, if the client named it; the coordinator refuses the offset if another topic
    # has the name. In state, the coordinator sets it; offsets that an older release wrote have NO_TOPIC_ID.
    topic_id: TopicId = NO_TOPIC_ID
    commit_timestamp_ms: int = -1
    # Set only by the retention_time_ms of old clients; -1: the broker's retention applies.
    expire_timestamp_ms: int = -1


class CommitOffsets(Struct, frozen=True, kw_only=True, gc=False):
    """A request to commit offsets (OffsetCommit). A consumer that is not a member of the group sends a
    `generation_or_epoch` of -1.
    """

    group_id: GroupId
    member_id: MemberId
    instance_id: str | None
    generation_or_epoch: int
    offsets: Mapping[TopicPartition, CommittedOffset]


class CommitInTransaction(Struct, frozen=True, kw_only=True, gc=False):
    """A request to commit offsets in a transaction (TxnOffsetCommit). They take effect when the transaction commits."""

    commit: CommitOffsets
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class NeedsRegistration(Struct, frozen=True, gc=False):
    """The response to CommitInTransaction if the transaction's coordinator does not know yet that the transaction
    writes to this partition.

    The caller registers the offsets partition with the transaction's coordinator, and repeats the request with
    `Registered`.
    """

    guard: int


class Registered(Struct, frozen=True, gc=False):
    """The confirmation of the transaction's coordinator, for the guard of `NeedsRegistration`.

    `last_outcome` is how the producer's previous transaction ended: (epoch of its data, whether it was committed).
    """

    guard: int
    last_outcome: tuple[ProducerEpoch, bool] | None = None


class EndInTransaction(Struct, frozen=True, kw_only=True, gc=False):
    """A request to end a transaction in the offsets partition by a marker. `is_bumped`: the marker's epoch is
    higher than that of the transaction's records.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool
    coordinator_epoch: int
    is_bumped: bool


class EndHanging(Struct, frozen=True, kw_only=True, gc=False):
    """A request to end a transaction that no transaction coordinator will end.

    `guard` is the producer's guard (pending_offsets.py) from before the coordinators were asked.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool
    guard: int | None


class OrphanEnded(Struct, frozen=True, gc=False):
    """An order to log that a transaction was open in this partition although a later one of its producer had begun."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool


class OffsetsAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """The response to a commit or a deletion of offsets: an error for each partition, or one for all."""

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
    requires_stable: bool = False  # wait while a transaction may change the offset (KIP-447)


class FetchedOffsets(Struct, frozen=True, kw_only=True, gc=False):
    """The response to FetchOffsets; None for a requested partition that has no committed offset.

    `unstable` are partitions whose offset an open transaction may still change: UNSTABLE_OFFSET_COMMIT.
    """

    error: ErrorCode
    offsets: Mapping[TopicPartition, CommittedOffset | None] = field(default_factory=dict)
    unstable: frozenset[TopicPartition] = frozenset()


class GroupListing(Struct, frozen=True, kw_only=True, gc=False):
    """A group as ListGroups shows it."""

    group_id: GroupId
    protocol_type: str
    state: str
    group_type: str  # "classic" or "consumer"


class MemberDescription(Struct, frozen=True, kw_only=True, gc=False):
    """A member as DescribeGroups shows it. Members of classic groups have `metadata` and `assignment_bytes`;
    `is_classic` marks a member of a consumer group that speaks the classic protocol."""

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
    """A group as DescribeGroups shows it. An unknown group has the state Dead, and an error."""

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
    """The regular expression of a subscription cannot be compiled."""


def all_are_visible(principal: str, host: str, names: frozenset[TopicName]) -> frozenset[TopicName]:
    """Return all names, for a broker without an authorizer."""
    return names


class TopicCatalog(Struct, frozen=True, kw_only=True, gc=False):
    """The topics of the cluster, as a coordinator uses them.

    `version` rises whenever `topics` or the rights to see them change. `matching` returns the names that a pattern
    (RE2 syntax) matches, in time linear in their length, and raises InvalidPattern. `visible` returns those of
    the names that a principal (User:alice) at an address may describe.
    """

    version: int
    topics: Mapping[TopicName, tuple[TopicId, int]]  # id, partition count
    matching: Callable[[str], frozenset[TopicName]]
    visible: Callable[[str, str, frozenset[TopicName]], frozenset[TopicName]] = all_are_visible

    def id_of(self, partition: TopicPartition) -> TopicId | None:
        """Return the id of the partition's topic; None if the partition does not exist."""
        topic_id, count = self.topics.get(partition.topic, (None, 0))
        return topic_id if 0 <= partition.partition < count else None
