"""The state of one shard: all groups of one partition of `__consumer_offsets`, and their committed offsets.

A group is *classic* or *consumer*, depending on the protocol of its first member. If a member of the other protocol
joins, an empty group changes its type, and a group with members is migrated (migration.py). A *simple* group has only
committed offsets and no members, and exists as long as it has offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from odradek_broker.coordinator_step import Step
from odradek_broker.groups.classic_group import ClassicGroup
from odradek_broker.groups.classic_members import ClassicState
from odradek_broker.groups.consumer_group import ConsumerGroup
from odradek_broker.groups.formats.consumer_protocol import PROTOCOL_TYPE, subscribed_topics
from odradek_broker.groups.messages import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    MemberDescription,
)
from odradek_broker.groups.pending_offsets import PendingOffsets
from odradek_broker.groups.records import (
    ClassicGroupRecord,
    GroupRecord,
    OffsetCommitRecord,
    is_tombstone,
)
from odradek_broker.groups.settings import GroupSettings
from odradek_protocol.identity import (
    GroupId,
    ProducerEpoch,
    ProducerId,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode


@dataclass(slots=True)
class CommittedOffsets:
    """All committed and pending offsets of one shard. Only `replay*` and `end_transaction` change them."""

    pending: PendingOffsets = field(default_factory=PendingOffsets)
    _groups: dict[GroupId, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    _counts: Counter[TopicName] = field(default_factory=Counter)
    """The number of committed offsets of each topic, of all groups."""

    def replay(self, record: OffsetCommitRecord) -> None:
        """Apply one record. A record without an offset deletes the committed offset."""
        offsets = self._groups.setdefault(record.group_id, {})
        partition = record.partition
        if record.committed is not None:
            if partition not in offsets:
                self._counts[partition.topic] += 1
            offsets[partition] = record.committed
        elif offsets.pop(partition, None) is not None:
            self._counts[partition.topic] -= 1
            if not self._counts[partition.topic]:
                del self._counts[partition.topic]
        if not offsets:
            del self._groups[record.group_id]
        self.pending.supersede(record.group_id, record.partition)

    def replay_pending(
        self, record: OffsetCommitRecord, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> None:
        """Apply one transactional record. Its offset is pending until the transaction's marker."""
        assert record.committed is not None, f"a transaction deletes an offset of {record.group_id}"
        self.pending.add(
            producer_id, producer_epoch, record.group_id, record.partition, record.committed
        )

    def end_transaction(self, producer_id: ProducerId, *, is_commit: bool) -> list[GroupId]:
        """Apply one transaction marker. Return the groups that had pending offsets of this producer."""
        offsets = self.pending.end(producer_id)
        if is_commit:
            for (group_id, partition), pending in offsets.items():
                committed = self._groups.setdefault(group_id, {})
                if partition not in committed:
                    self._counts[partition.topic] += 1
                committed[partition] = pending.committed
                self.pending.supersede(group_id, partition, before_order=pending.order)
        return list(dict.fromkeys(group_id for group_id, _ in offsets))

    def of(self, group_id: GroupId) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the committed offsets of one group."""
        return self._groups.get(group_id, {})

    def groups(self) -> Collection[GroupId]:
        """Return the groups that have committed offsets."""
        return self._groups.keys()

    def has_any_of(self, topics: Collection[TopicName]) -> bool:
        """Return whether there is a committed or pending offset of one of these topics.

        The cost does not depend on the number of committed offsets.
        """
        pending = self.pending
        return not self._counts.keys().isdisjoint(topics) or any(
            partition.topic in topics
            for group_id in pending.groups()
            for partition in pending.partitions_of(group_id)
        )

    def forget(
        self, group_id: GroupId, partitions: Collection[TopicPartition] | None = None
    ) -> list[OffsetCommitRecord]:
        """Return tombstones for the group's offsets in these partitions. If `partitions` is None, all committed offsets
        of the group are meant.
        """
        chosen = list(self.of(group_id)) if partitions is None else partitions
        return [
            OffsetCommitRecord(group_id=group_id, partition=partition, committed=None)
            for partition in chosen
            if partition in self.of(group_id) or self.pending.has_any(group_id, partition)
        ]

    def expired(
        self,
        group_id: GroupId,
        *,
        wall_ms: int,
        retention_ms: int,
        empty_since_ms: int | None,
        subscribed: Collection[TopicName],
    ) -> Iterator[TopicPartition]:
        """Yield the partitions whose committed offsets have expired. Offsets of `subscribed` topics, and of partitions
        with a pending offset, do not expire.

        If the client has set an expiry time, it applies. Otherwise the retention time of an offset begins at its commit
        or, if that is later, at `empty_since_ms`, the wall-clock time at which a classic group became empty.
        `empty_since_ms` is None for other groups, and if the group has members or never had any.
        """
        for partition, committed in self.of(group_id).items():
            if partition.topic in subscribed or self.pending.has_any(group_id, partition):
                continue
            if committed.expire_timestamp_ms >= 0:
                if wall_ms >= committed.expire_timestamp_ms:
                    yield partition
                continue
            since_ms = max(committed.commit_timestamp_ms, empty_since_ms or 0)
            if wall_ms - since_ms >= retention_ms:
                yield partition


@dataclass(slots=True, kw_only=True)
class GroupTable:
    """The groups and the offsets of one shard."""

    settings: GroupSettings
    groups: dict[GroupId, ClassicGroup | ConsumerGroup] = field(default_factory=dict)
    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)
    empty_since_ms: dict[GroupId, int] = field(default_factory=dict)
    """The wall-clock time at which each classic group without members became empty."""
    due_ms: dict[GroupId, int] = field(default_factory=dict)
    """The monotonic time of each group's next deadline. `tick` skips a group until that time, unless a request removes
    the group's entry.
    """

    def listings(self) -> list[GroupListing]:
        """Return all groups, for ListGroups."""
        listed = [
            GroupListing(
                group_id=g.group_id,
                protocol_type=g.protocol_type or "",
                state=g.state.value,
                group_type="classic",
            )
            if isinstance(g, ClassicGroup)
            else GroupListing(
                group_id=g.group_id,
                protocol_type="consumer",
                state=g.state.name,
                group_type="consumer",
            )
            for g in self.groups.values()
        ]
        simple = [g for g in self.offsets.groups() if g not in self.groups]
        listed += [
            GroupListing(group_id=g, protocol_type="", state="Empty", group_type="classic")
            for g in simple
        ]
        return listed

    def describe(self, group_id: GroupId) -> GroupDescription:
        """Describe a group of any type."""
        group = self.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return describe_classic(group)
        if isinstance(group, ConsumerGroup):
            return describe_consumer(group)
        exists = bool(self.offsets.of(group_id))
        return GroupDescription(
            error=ErrorCode.NONE if exists else ErrorCode.GROUP_ID_NOT_FOUND,
            group_id=group_id,
            state="Empty" if exists else "Dead",
        )

    def exists(self, group_id: GroupId) -> bool:
        """Return whether there is a group with this id, or whether this id has committed or pending offsets."""
        has_offsets = bool(self.offsets.of(group_id)) or self.offsets.pending.has_any(group_id)
        return has_offsets or group_id in self.groups

    def forget_group(self, group_id: GroupId) -> list[GroupRecord]:
        records: list[GroupRecord] = list(self.offsets.forget(group_id))
        for record in records:
            assert isinstance(record, OffsetCommitRecord)
            self.offsets.replay(record)
        group = self.groups.pop(group_id, None)
        if isinstance(group, ConsumerGroup):
            records += group.state.tombstones()
        elif group is not None:
            records.append(ClassicGroupRecord(group_id=group_id, state=None))
        self.empty_since_ms.pop(group_id, None)
        self.due_ms.pop(group_id, None)
        return records

    def subscribed(self, group_id: GroupId) -> frozenset[TopicName] | None:
        """Return the topics to which members of the group are subscribed. Return None if these topics are unknown,
        because the members are not consumers but, for example, Connect workers.
        """
        group = self.groups.get(group_id)
        if group is None or group.is_empty:
            return frozenset()
        if isinstance(group, ConsumerGroup):
            return frozenset(snapshot.topic for snapshot in group.state.topics)
        topics: set[TopicName] = set()
        for member in group.members.values():
            subscribed = subscribed_topics(member.protocols[0][1])
            if subscribed is None or group.protocol_type != PROTOCOL_TYPE:
                return None
            topics |= subscribed
        return frozenset(topics)

    def replay(self, record: GroupRecord) -> None:
        """Apply one record while the shard is loaded."""
        match record:
            case OffsetCommitRecord():
                self.offsets.replay(record)
            case ClassicGroupRecord(group_id=group_id, state=None):
                if isinstance(self.groups.get(group_id), ClassicGroup):
                    del self.groups[group_id]
            case ClassicGroupRecord(group_id=group_id, state=state):
                assert state is not None
                group = self.new_classic(group_id)
                group.restore(state)
                self.groups[group_id] = group
                self._note_emptiness(group, state.state_timestamp_ms)
            case _:
                self._replay_consumer(record)

    def _replay_consumer(self, record: GroupRecord) -> None:
        assert not isinstance(record, (OffsetCommitRecord, ClassicGroupRecord))
        group = self.groups.get(record.group_id)
        if not isinstance(group, ConsumerGroup):
            if is_tombstone(record):
                # The tombstone belongs to a consumer group that was deleted, or has become a classic group.
                return
            group = ConsumerGroup(group_id=record.group_id, settings=self.settings.consumer)
            self.groups[record.group_id] = group
        group.state.replay(record)

    def loaded(self, *, now_ms: int) -> None:
        """Finish the load: start the sessions of all members, and remove groups that were deleted."""
        for group_id, group in list(self.groups.items()):
            if isinstance(group, ConsumerGroup) and group.state.epoch == 0 and group.is_empty:
                del self.groups[group_id]
            else:
                group.begin_sessions(now_ms=now_ms)

    def new_classic(self, group_id: GroupId, *, generation: int = 0) -> ClassicGroup:
        return ClassicGroup(
            group_id=group_id,
            generation=generation,
            initial_rebalance_delay_ms=self.settings.initial_rebalance_delay_ms,
            members_max=self.settings.max_size,
        )

    def classic(self, group_id: GroupId) -> ClassicGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def stamped(self, step: Step[GroupRecord], wall_ms: int) -> Step[GroupRecord]:
        """Return the step with the wall-clock time as the `state_timestamp_ms` of its classic groups' records. The
        handlers of classic groups know only the monotonic time, and have put that into the records.
        """
        records: list[GroupRecord] = []
        for record in step.records:
            if isinstance(record, ClassicGroupRecord) and record.state is not None:
                record = replace(record, state=replace(record.state, state_timestamp_ms=wall_ms))
                group = self.classic(record.group_id)
                if group is not None:
                    self._note_emptiness(group, wall_ms)
            records.append(record)
        return replace(step, records=tuple(records))

    def _note_emptiness(self, group: ClassicGroup, wall_ms: int) -> None:
        if group.members:
            self.empty_since_ms.pop(group.group_id, None)
        else:
            self.empty_since_ms[group.group_id] = wall_ms


def describe_classic(group: ClassicGroup) -> GroupDescription:
    """Describe a classic group. As in Kafka, metadata and assignments are included only if the group is stable."""
    is_stable = group.state is ClassicState.STABLE
    return GroupDescription(
        error=ErrorCode.NONE,
        group_id=group.group_id,
        state=group.state.value,
        group_type="classic",
        protocol_type=group.protocol_type or "",
        protocol=(group.protocol or "") if is_stable else "",
        epoch=group.generation,
        assignment_epoch=group.generation,
        members=tuple(
            MemberDescription(
                member_id=m.member_id,
                instance_id=m.instance_id,
                client_id=m.client_id,
                client_host=m.client_host,
                metadata=m.metadata(group.protocol) if is_stable else b"",
                assignment_bytes=m.assignment if is_stable else b"",
                member_epoch=group.generation,
            )
            for m in group.members.values()
        ),
    )


def describe_consumer(group: ConsumerGroup) -> GroupDescription:
    """Describe a consumer group, with the current and the target assignment of each member."""
    return GroupDescription(
        error=ErrorCode.NONE,
        group_id=group.group_id,
        state=group.state.name,
        group_type="consumer",
        protocol_type="consumer",
        protocol=group.assignor,
        epoch=group.state.epoch,
        assignment_epoch=group.state.target_epoch,
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rack_id=member.rack_id,
                is_classic=member.classic is not None,
                member_epoch=group.state.currents[member.member_id].member_epoch,
                subscribed_topics=member.subscribed_topics,
                subscribed_regex=member.subscribed_regex,
                assignment=group.state.currents[member.member_id].assigned,
                target=group.state.targets.get(member.member_id, {}),
            )
            for member in group.state.members.values()
        ),
    )
