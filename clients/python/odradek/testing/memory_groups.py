"""The consumer groups of the in-memory cluster: one coordinator, members (KIP-848), committed offsets.

A group has an epoch, which is incremented when its members, their subscriptions or the subscribed topics change. Every
member then gets a new target assignment. Each heartbeat of a member moves its assignment towards the target:

    STABLE --target shrinks--> REVOKING --a heartbeat no longer owns the revoked partitions--> STABLE
       ^                           |
       +-- join --  OUTSIDE  <-----+ leaves, sends no heartbeat for `session_s`, or revokes for too long

Invariants: a partition is owned by at most one member. The member owns it from the response that assigns it until the
member sends a heartbeat without it, or is removed. A member gets the group's epoch only when it owns no partition
outside its target. A commit needs the member's current epoch, so a removed member cannot change the group's offsets.

Timeouts are checked when a request arrives, on the clock of the event loop. Every broker coordinates all groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from odradek.testing.memory_log import MemoryTopic
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import group_service_pb2 as pb

SESSION_S: Final = 45.0
HEARTBEAT_INTERVAL_MS: Final = 50
"""This interval is shorter than that of a real broker, so that tests wait only briefly for rebalances."""
_REBALANCE_TIMEOUT_MS: Final = 60_000
_LEAVE: Final = -1
_LEAVE_STATIC: Final = -2

PartitionId: TypeAlias = tuple[bytes, int]
"""(topic id, partition index)"""


@dataclass(slots=True)
class MemoryMember:
    """The coordinator's state of one member."""

    member_id: str
    instance_id: str | None
    heard_s: float
    epoch: int = 0
    previous_epoch: int = 0
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    assignor: str | None = None
    rebalance_timeout_ms: int = _REBALANCE_TIMEOUT_MS
    target: frozenset[PartitionId] = frozenset()
    assigned: frozenset[PartitionId] = frozenset()
    """The assignment in the last response to this member."""
    revoking: frozenset[PartitionId] = frozenset()
    """Partitions that this member must revoke and may still own."""
    revoking_since_s: float = 0.0
    is_away: bool = False
    """Whether this is a static member that has left temporarily. Its partitions stay assigned to it."""

    @property
    def held(self) -> frozenset[PartitionId]:
        """The partitions that this member may still own, so they must not be assigned to other members."""
        return self.assigned | self.revoking


@dataclass(slots=True)
class CommittedOffset:
    """The offset of the next record to read. `topic_id` is the id of the topic for which the offset was committed."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(slots=True)
class MemoryGroup:
    """A group: its members by member id, and its committed offsets by topic and partition."""

    epoch: int = 0
    members: dict[str, MemoryMember] = field(default_factory=dict)
    offsets: dict[tuple[str, int], CommittedOffset] = field(default_factory=dict)
    planned_for: object = None
    """The assignor, subscriptions and partitions from which the current targets were computed."""

    def remove(self, member: MemoryMember) -> None:
        """Remove a member, so that its partitions can be assigned to others."""
        del self.members[member.member_id]


class MemoryGroups:
    """The coordinator of all groups of an in-memory cluster."""

    def __init__(
        self,
        topics: Mapping[str, MemoryTopic],
        live_brokers: Set[int],
        *,
        session_s: float = SESSION_S,
    ) -> None:
        self.session_s = session_s
        """The session timeout. A member that sends no heartbeat for longer is removed from its group."""
        self._topics = topics
        self._live_brokers = live_brokers
        self._groups: dict[str, MemoryGroup] = {}

    def heartbeat(self, beat: pb.GroupHeartbeatRequest, now_s: float) -> pb.GroupHeartbeatResponse:
        """Let a member join, stay in or leave its group, and return its assignment."""
        group = self._groups.setdefault(beat.group_id, MemoryGroup())
        self._expire(group, now_s)
        if beat.assignor not in ("", "uniform", "range"):
            return pb.GroupHeartbeatResponse(
                error_code=ErrorCode.UNSUPPORTED_ASSIGNOR,
                error_message=f"there is no assignor {beat.assignor!r}: use uniform or range",
            )
        if (problem := _pattern_problem(beat.subscribed_pattern)) is not None:
            return pb.GroupHeartbeatResponse(
                error_code=ErrorCode.INVALID_REGULAR_EXPRESSION, error_message=problem
            )
        member = group.members.get(beat.member_id)
        if beat.member_epoch in (_LEAVE, _LEAVE_STATIC):
            return self._leave(group, member, beat.member_epoch)
        if beat.member_epoch == 0:
            member = self._join(group, beat, now_s)
            if member is None:
                return _refused(ErrorCode.UNRELEASED_INSTANCE_ID)
        elif member is None:
            return _refused(ErrorCode.UNKNOWN_MEMBER_ID)
        elif beat.member_epoch != member.epoch:
            # If the response with the current epoch was lost, the member sends its previous epoch again.
            owned = _owned(beat)
            if beat.member_epoch != member.previous_epoch or not owned <= member.held:
                group.remove(member)
                self._plan(group)
                return _refused(ErrorCode.FENCED_MEMBER_EPOCH)
        member.heard_s = now_s
        _subscribe(member, beat)
        self._plan(group)
        if beat.has_owned:
            member.revoking &= _owned(beat)
        if beat.member_epoch == 0:  # A new member owns no partitions, so it has nothing to revoke.
            member.assigned &= member.target
        self._reconcile(group, member, now_s)
        return self._assignment_response(member)

    def _join(
        self, group: MemoryGroup, beat: pb.GroupHeartbeatRequest, now_s: float
    ) -> MemoryMember | None:
        """Add a member with epoch 0. Return None if another member that is not away has the same instance id."""
        instance_id = beat.instance_id if beat.HasField("instance_id") else None
        member = MemoryMember(beat.member_id, instance_id, now_s)
        for existing in list(group.members.values()):
            is_same = existing.member_id == beat.member_id
            if not is_same and (instance_id is None or existing.instance_id != instance_id):
                continue
            if not is_same and not existing.is_away:
                return None
            if existing.is_away:
                member.target = member.assigned = existing.assigned
            group.remove(existing)
        group.members[member.member_id] = member
        return member

    def _leave(
        self, group: MemoryGroup, member: MemoryMember | None, epoch: int
    ) -> pb.GroupHeartbeatResponse:
        if member is None:
            return _refused(ErrorCode.UNKNOWN_MEMBER_ID)
        if epoch == _LEAVE_STATIC and member.instance_id is not None:
            member.is_away, member.epoch, member.revoking = True, epoch, frozenset()
        else:
            group.remove(member)
        self._plan(group)
        return pb.GroupHeartbeatResponse(member_epoch=epoch)

    def _expire(self, group: MemoryGroup, now_s: float) -> None:
        for member in list(group.members.values()):
            is_silent = now_s - member.heard_s > self.session_s
            revoking_ms = (now_s - member.revoking_since_s) * 1000 if member.revoking else 0
            if is_silent or revoking_ms > member.rebalance_timeout_ms:
                group.remove(member)
        self._plan(group)

    def _plan(self, group: MemoryGroup) -> None:
        """If members, subscriptions or topics have changed, compute new target assignments and increment the epoch."""
        readable = {m.member_id: self._readable(m) for m in group.members.values()}
        assignor = next((m.assignor for m in group.members.values() if m.assignor), "uniform")
        basis = (assignor, readable)
        if basis == group.planned_for:
            return
        group.planned_for = basis
        group.epoch += 1
        previous = {m.member_id: m.target for m in group.members.values()}
        targets = _range(readable) if assignor == "range" else _uniform(readable, previous)
        for member in group.members.values():
            member.target = targets[member.member_id]

    def _readable(self, member: MemoryMember) -> frozenset[PartitionId]:
        """Return the partitions of all topics that a member subscribes to."""
        pattern = None if member.pattern is None else re.compile(member.pattern)
        return frozenset(
            (topic.topic_id, index)
            for topic in self._topics.values()
            if topic.name in member.topics or (pattern and pattern.fullmatch(topic.name))
            for index in range(len(topic.partitions))
        )

    def _reconcile(self, group: MemoryGroup, member: MemoryMember, now_s: float) -> None:
        excess = member.assigned - member.target
        if excess:
            if not member.revoking:
                member.revoking_since_s = now_s
            member.revoking |= excess
            member.assigned -= excess
        if member.revoking:
            return
        if member.epoch != group.epoch:
            member.previous_epoch, member.epoch = member.epoch, group.epoch
        others = (m.held for m in group.members.values() if m is not member)
        member.assigned = member.target - frozenset[PartitionId]().union(*others)

    def _assignment_response(self, member: MemoryMember) -> pb.GroupHeartbeatResponse:
        response = pb.GroupHeartbeatResponse(
            member_epoch=member.epoch,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            has_assignment=True,
        )
        response.assignment.extend(self._wire(member.assigned))
        return response

    def _wire(self, partitions: Iterable[PartitionId]) -> list[pb.GroupTopicPartitions]:
        names = {topic.topic_id: topic.name for topic in self._topics.values()}
        topics: dict[bytes, pb.GroupTopicPartitions] = {}
        for topic_id, index in sorted(partitions):
            topic = topics.setdefault(
                topic_id,
                pb.GroupTopicPartitions(topic_id=topic_id, topic=names.get(topic_id, "")),
            )
            topic.partitions.append(index)
        return list(topics.values())

    def commit(self, request: pb.CommitOffsetsRequest, now_s: float) -> pb.CommitOffsetsResponse:
        """Commit the offsets of the partitions that exist."""
        code = self.commit_error(request, now_s)
        if code is not ErrorCode.NONE:
            return pb.CommitOffsetsResponse(error_code=code)
        response = pb.CommitOffsetsResponse()
        existing = pb.CommitOffsetsRequest(group_id=request.group_id)
        for item in request.offsets:
            name = item.partition
            topic = self._topics.get(name.topic)
            code = ErrorCode.NONE
            if topic is None or not 0 <= name.partition < len(topic.partitions):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif item.topic_id not in (b"", topic.topic_id):
                code = ErrorCode.UNKNOWN_TOPIC_ID
            else:
                existing.offsets.append(item)
            response.offsets.add(partition=name, error_code=code)
        self.store(existing)
        return response

    def commit_error(self, request: pb.CommitOffsetsRequest, now_s: float) -> ErrorCode:
        """Return the error code if this member may not commit offsets now, otherwise NONE."""
        group = self._groups.setdefault(request.group_id, MemoryGroup())
        self._expire(group, now_s)
        return _commit_error(group, request)

    def store(self, request: pb.CommitOffsetsRequest) -> None:
        """Commit these offsets, without checking the member."""
        group = self._groups.setdefault(request.group_id, MemoryGroup())
        for item in request.offsets:
            name = item.partition
            topic = self._topics.get(name.topic)
            if topic is not None:
                group.offsets[name.topic, name.partition] = CommittedOffset(
                    topic.topic_id, item.offset, item.leader_epoch, item.metadata
                )

    def fetch_offsets(self, request: pb.FetchOffsetsRequest) -> pb.FetchOffsetsResponse:
        """Return the committed offsets of these partitions, or of all partitions. -1: the partition has no committed
        offset.
        """
        group = self._groups.get(request.group_id, MemoryGroup())
        requested = [(name.topic, name.partition) for name in request.partitions]
        response = pb.FetchOffsetsResponse()
        for topic, index in requested or sorted(group.offsets):
            committed = group.offsets.get((topic, index))
            topic_state = self._topics.get(topic)
            result = response.offsets.add(offset=-1, leader_epoch=-1)
            result.partition.topic, result.partition.partition = topic, index
            # Committed offsets are deleted with their topic. A new topic with the same name has none.
            if (
                committed is not None
                and topic_state is not None
                and topic_state.topic_id == committed.topic_id
            ):
                result.offset, result.leader_epoch = committed.offset, committed.leader_epoch
                result.metadata = committed.metadata
        return response

    def list_groups(self, now_s: float) -> pb.ListGroupsResponse:
        """Return all groups that have members or committed offsets."""
        response = pb.ListGroupsResponse()
        for group_id in sorted(self._groups):
            group = self._found(group_id, now_s)
            if group is not None:
                response.groups.add(
                    group_id=group_id,
                    protocol_type="consumer",
                    state=_state(group),
                    group_type="consumer",
                )
        return response

    def describe(self, group_id: str, now_s: float) -> pb.GroupDescription:
        """Return a group, and its members with their assignments."""
        group = self._found(group_id, now_s)
        if group is None:
            return pb.GroupDescription(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND, group_id=group_id, state="Dead"
            )
        response = pb.GroupDescription(
            group_id=group_id,
            state=_state(group),
            group_type="consumer",
            protocol_type="consumer",
            epoch=group.epoch,
            coordinator_id=min(self._live_brokers, default=-1),
        )
        for member in group.members.values():
            response.members.add(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id="memory",
                client_host="/memory",
                member_epoch=member.epoch,
                assignment=self._wire(member.assigned),
            )
        return response

    def delete(self, group_id: str, now_s: float) -> ErrorCode:
        """Delete a group without members, and return the error code."""
        group = self._found(group_id, now_s)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.members:
            return ErrorCode.NON_EMPTY_GROUP
        del self._groups[group_id]
        return ErrorCode.NONE

    def delete_offsets(
        self, request: pb.DeleteOffsetsRequest, now_s: float
    ) -> pb.DeleteOffsetsResponse:
        """Delete committed offsets of topics that no member subscribes to."""
        group = self._found(request.group_id, now_s)
        if group is None:
            return pb.DeleteOffsetsResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        subscribed = {i for m in group.members.values() for i, _ in self._readable(m)}
        response = pb.DeleteOffsetsResponse()
        for name in request.partitions:
            topic = self._topics.get(name.topic)
            result = response.offsets.add(partition=name)
            if topic is not None and topic.topic_id in subscribed:
                result.error_code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                group.offsets.pop((name.topic, name.partition), None)
        return response

    def _found(self, group_id: str, now_s: float) -> MemoryGroup | None:
        group = self._groups.get(group_id)
        if group is None:
            return None
        self._expire(group, now_s)
        return group if group.members or group.offsets else None


def _subscribe(member: MemoryMember, beat: pb.GroupHeartbeatRequest) -> None:
    if beat.has_subscription:
        member.topics = frozenset(beat.subscribed_topics)
        member.pattern = beat.subscribed_pattern if beat.HasField("subscribed_pattern") else None
    if beat.assignor:
        member.assignor = beat.assignor
    if beat.rebalance_timeout_ms > 0:
        member.rebalance_timeout_ms = beat.rebalance_timeout_ms


def _owned(beat: pb.GroupHeartbeatRequest) -> frozenset[PartitionId]:
    return frozenset((topic.topic_id, index) for topic in beat.owned for index in topic.partitions)


def _pattern_problem(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except re.error as error:
        return f"{pattern!r} is not a regular expression: {error}"
    return None


def _refused(code: ErrorCode) -> pb.GroupHeartbeatResponse:
    return pb.GroupHeartbeatResponse(error_code=code)


def _commit_error(group: MemoryGroup, request: pb.CommitOffsetsRequest) -> ErrorCode:
    # Without a member id, the caller is an administrator, or a consumer that assigns its own partitions.
    if not request.member_id:
        return ErrorCode.UNKNOWN_MEMBER_ID if group.members else ErrorCode.NONE
    member = group.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if request.member_epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH


def _state(group: MemoryGroup) -> str:
    if not group.members:
        return "Empty"
    is_settled = all(
        m.is_away or (m.epoch == group.epoch and m.held == m.target) for m in group.members.values()
    )
    return "Stable" if is_settled else "Reconciling"


Readable: TypeAlias = dict[str, frozenset[PartitionId]]
"""By member id: the partitions that the member can be assigned."""


def _range(readable: Readable) -> Readable:
    """Assign contiguous partitions of each topic. If the partitions cannot be shared evenly, the first
    members get one more.
    """
    targets: dict[str, set[PartitionId]] = {member_id: set() for member_id in readable}
    for topic_id in sorted({i for partitions in readable.values() for i, _ in partitions}):
        members = sorted(m for m, partitions in readable.items() if (topic_id, 0) in partitions)
        count = sum(1 for i, _ in readable[members[0]] if i == topic_id)
        for number, member_id in enumerate(members):
            share, more = divmod(count, len(members))
            first = share * number + min(number, more)
            size = share + (number < more)
            targets[member_id].update((topic_id, at) for at in range(first, first + size))
    return {member_id: frozenset(target) for member_id, target in targets.items()}


def _uniform(readable: Readable, previous: Readable) -> Readable:
    """Keep current assignments, and move partitions until the members differ by at most one partition, as far as
    subscriptions allow it.
    """
    targets: dict[str, set[PartitionId]] = {}
    assigned: set[PartitionId] = set()
    for member_id in sorted(readable):
        targets[member_id] = set(previous[member_id] & readable[member_id]) - assigned
        assigned |= targets[member_id]

    def by_load(members: Iterable[str]) -> list[str]:
        return sorted(members, key=lambda member_id: (len(targets[member_id]), member_id))

    for partition in sorted(frozenset[PartitionId]().union(*readable.values()) - assigned):
        least = by_load(m for m, partitions in readable.items() if partition in partitions)[0]
        targets[least].add(partition)
    while True:
        move = next(
            (
                (most, least, partition)
                for least in by_load(readable)
                for most in reversed(by_load(readable))
                if len(targets[most]) >= len(targets[least]) + 2
                for partition in sorted(targets[most] & readable[least])
            ),
            None,
        )
        if move is None:
            return {member_id: frozenset(target) for member_id, target in targets.items()}
        most, least, partition = move
        targets[most].remove(partition)
        targets[least].add(partition)
