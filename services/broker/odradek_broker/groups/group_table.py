"""All groups of one partition of `__consumer_offsets`, and what they committed: loaded, listed and forgotten.

A group is *classic* or *consumer*, by who came first; an empty one becomes the other kind when a member of that kind
joins, one with members by migration. A group that has only offsets is a *simple* one: it exists as long as its offsets
do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from odradek_broker.groups.classic_group import ClassicGroup
from odradek_broker.groups.committed_offsets import CommittedOffsets
from odradek_broker.groups.consumer_group import ConsumerGroup
from odradek_broker.groups.consumer_group_settings import ConsumerGroupSettings
from odradek_broker.groups.formats.consumer_protocol import PROTOCOL_TYPE, subscribed_topics
from odradek_broker.groups.group_descriptions import describe_classic, describe_consumer
from odradek_broker.groups.messages import GroupDescription, GroupListing
from odradek_broker.groups.records import (
    ClassicGroupRecord,
    GroupRecord,
    OffsetCommitRecord,
    is_tombstone,
)
from odradek_broker.groups.step import Step
from odradek_protocol.identity import GroupId, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The group settings of a broker, under Kafka's names without their prefixes."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 10_000
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offset_metadata_bytes_max: int = 4_096
    consumer: ConsumerGroupSettings = field(
        default_factory=lambda: ConsumerGroupSettings(
            session_timeout_ms=45_000,
            heartbeat_interval_ms=3_000,
            members_max=10_000,
            default_assignor="uniform",
        )
    )


@dataclass(slots=True, kw_only=True)
class GroupTable:
    """See the module's essay."""

    settings: GroupSettings
    groups: dict[GroupId, ClassicGroup | ConsumerGroup] = field(default_factory=dict)
    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)
    _empty_since_ms: dict[GroupId, int] = field(default_factory=dict)  # wall clock
    _due_ms: dict[GroupId, int] = field(default_factory=dict)  # before it, time brings nothing

    # --- descriptions ------------------------------------------------------------------------

    def listings(self) -> list[GroupListing]:
        """All groups, for ListGroups."""
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
                state=g.state_name,
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
        """One group, of either kind."""
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

    # --- what a group has ---------------------------------------------------------------------

    def _forget_group(self, group_id: GroupId) -> list[GroupRecord]:
        records: list[GroupRecord] = list(self.offsets.forget(group_id))
        for record in records:
            assert isinstance(record, OffsetCommitRecord)
            self.offsets.replay(record)
        group = self.groups.pop(group_id, None)
        if isinstance(group, ConsumerGroup):
            records += group.tombstones()
        elif group is not None:
            records.append(ClassicGroupRecord(group_id=group_id, state=None))
        self._empty_since_ms.pop(group_id, None)
        self._due_ms.pop(group_id, None)
        return records

    def _subscribed(self, group_id: GroupId) -> frozenset[TopicName] | None:
        """The topics that living members are subscribed to; None where they do not tell: they are no consumers."""
        group = self.groups.get(group_id)
        if group is None or not group.members:
            return frozenset()
        if isinstance(group, ConsumerGroup):
            return frozenset(snapshot.topic for snapshot in group.topics)
        topics: set[TopicName] = set()
        for member in group.members.values():
            told = subscribed_topics(member.protocols[0][1])
            if told is None or group.protocol_type != PROTOCOL_TYPE:
                return None
            topics |= told
        return frozenset(topics)

    # --- state -----------------------------------------------------------------------------------

    def replay(self, record: GroupRecord) -> None:
        """Apply one record while loading."""
        match record:
            case OffsetCommitRecord():
                self.offsets.replay(record)
            case ClassicGroupRecord(group_id=group_id, state=None):
                if isinstance(self.groups.get(group_id), ClassicGroup):
                    del self.groups[group_id]
            case ClassicGroupRecord(group_id=group_id, state=state):
                assert state is not None
                group = self._new_classic(group_id)
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
                return  # of a consumer group that is gone, or became a classic one
            group = ConsumerGroup(group_id=record.group_id, settings=self.settings.consumer)
            self.groups[record.group_id] = group
        group.replay(record)

    def loaded(self, *, now_ms: int) -> None:
        """All records are replayed; sessions begin, groups that were deleted are dropped."""
        for group_id, group in list(self.groups.items()):
            if isinstance(group, ConsumerGroup) and group.epoch == 0 and not group.members:
                del self.groups[group_id]
            else:
                group.begin_sessions(now_ms=now_ms)

    def _new_classic(self, group_id: GroupId, *, generation: int = 0) -> ClassicGroup:
        return ClassicGroup(
            group_id=group_id,
            generation=generation,
            initial_rebalance_delay_ms=self.settings.initial_rebalance_delay_ms,
            members_max=self.settings.max_size,
        )

    def _classic(self, group_id: GroupId) -> ClassicGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def _stamped(self, step: Step, wall_ms: int) -> Step:
        """Classic groups know no wall clock: their records get it here."""
        records: list[GroupRecord] = []
        for record in step.records:
            if isinstance(record, ClassicGroupRecord) and record.state is not None:
                record = replace(record, state=replace(record.state, state_timestamp_ms=wall_ms))
                group = self._classic(record.group_id)
                if group is not None:
                    self._note_emptiness(group, wall_ms)
            records.append(record)
        return Step(tuple(records), step.answers)

    def _note_emptiness(self, group: ClassicGroup, wall_ms: int) -> None:
        if group.members:
            self._empty_since_ms.pop(group.group_id, None)
        else:
            self._empty_since_ms[group.group_id] = wall_ms
