"""The state of a consumer group that is written to the log, as its records describe it.

Invariants: A partition is in `assigned` or `pending_revocation` of at most one member, which is its owner. No member
epoch is above the target epoch, and the target epoch is not above the group epoch.

Only `replay` changes the state. When a handler emits a record, the record is replayed at once, because the next step of
the handler depends on the changed state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from odradek_broker.groups.messages import Assignment
from odradek_broker.groups.reconciliation import MemberState, pairs
from odradek_broker.groups.records import (
    ConsumerMember,
    ConsumerMemberRecord,
    CurrentAssignment,
    CurrentMemberRecord,
    GroupEpochRecord,
    GroupRecord,
    GroupTopicsRecord,
    TargetEpochRecord,
    TargetMemberRecord,
    TopicSnapshot,
)
from odradek_protocol.identity import GroupId, MemberId, PartitionIndex, TopicId

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class ConsumerGroupState:
    """The written state of one consumer group."""

    group_id: GroupId
    epoch: int = 0
    target_epoch: int = 0
    topics: tuple[TopicSnapshot, ...] = ()
    members: dict[MemberId, ConsumerMember] = field(default_factory=dict)
    targets: dict[MemberId, Assignment] = field(default_factory=dict)
    currents: dict[MemberId, CurrentAssignment] = field(default_factory=dict)
    _owners: dict[tuple[TopicId, PartitionIndex], MemberId] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the group's state, for responses to clients."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        is_stable = all(
            c.state == MemberState.STABLE and c.member_epoch == self.target_epoch
            for c in self.currents.values()
        )
        return "Stable" if is_stable else "Reconciling"

    def owner_of(self, topic: TopicId, index: PartitionIndex) -> MemberId | None:
        """Return the member that owns a partition or still has to revoke it, or None."""
        return self._owners.get((topic, index))

    def static_holder(self, instance_id: str | None) -> MemberId | None:
        """Return the member id of the static member with this instance id, or None."""
        if instance_id is None:
            return None
        return next(
            (m.member_id for m in self.members.values() if m.instance_id == instance_id), None
        )

    def emit(self, record: GroupRecord, records: list[GroupRecord]) -> None:
        """Replay a record, and append it to `records`, which are to be written."""
        self.replay(record)
        records.append(record)

    def emit_member(self, member: ConsumerMember, records: list[GroupRecord]) -> None:
        """Emit a record with a member's subscription and client."""
        self.emit(
            ConsumerMemberRecord(group_id=self.group_id, member_id=member.member_id, member=member),
            records,
        )

    def emit_target(
        self, member_id: MemberId, target: Assignment, records: list[GroupRecord]
    ) -> None:
        """Emit a record with a member's target assignment."""
        self.emit(
            TargetMemberRecord(group_id=self.group_id, member_id=member_id, target=target), records
        )

    def emit_current(
        self, member_id: MemberId, current: CurrentAssignment, records: list[GroupRecord]
    ) -> None:
        """Emit a record with a member's current assignment."""
        self.emit(
            CurrentMemberRecord(group_id=self.group_id, member_id=member_id, current=current),
            records,
        )

    def emit_epoch(self, epoch: int, records: list[GroupRecord]) -> None:
        """Emit a record with a new group epoch."""
        self.emit(GroupEpochRecord(group_id=self.group_id, epoch=epoch), records)

    def emit_target_epoch(self, epoch: int, records: list[GroupRecord]) -> None:
        """Emit a record with a new target epoch, because the targets were computed for this epoch."""
        self.emit(TargetEpochRecord(group_id=self.group_id, epoch=epoch), records)

    def emit_removal(self, member_id: MemberId, records: list[GroupRecord]) -> None:
        """Emit the tombstones of a member, which remove the member and free its partitions."""
        group_id = self.group_id
        for record in (
            CurrentMemberRecord(group_id=group_id, member_id=member_id, current=None),
            TargetMemberRecord(group_id=group_id, member_id=member_id, target=None),
            ConsumerMemberRecord(group_id=group_id, member_id=member_id, member=None),
        ):
            self.emit(record, records)

    def tombstones(self) -> list[GroupRecord]:
        """Remove all members, and return the tombstones of all records of the group."""
        records: list[GroupRecord] = []
        for member_id in list(self.members):
            self.emit_removal(member_id, records)
        group_id = self.group_id
        records += [
            TargetEpochRecord(group_id=group_id, epoch=None),
            GroupTopicsRecord(group_id=group_id, topics=None),
            GroupEpochRecord(group_id=group_id, epoch=None),
        ]
        return records

    def replay(self, record: GroupRecord) -> None:
        """Apply one record. Only this method changes the state."""
        match record:
            case GroupEpochRecord():
                self.epoch = record.epoch or 0
            case GroupTopicsRecord():
                self.topics = record.topics or ()
            case TargetEpochRecord():
                self.target_epoch = record.epoch or 0
            case ConsumerMemberRecord():
                _put(self.members, record.member_id, record.member)
            case TargetMemberRecord():
                _put(self.targets, record.member_id, record.target)
            case CurrentMemberRecord():
                self._replay_current(record)
            case _:
                raise AssertionError(f"{record} is not a record of a consumer group")

    def _replay_current(self, record: CurrentMemberRecord) -> None:
        old = self.currents.get(record.member_id)
        if old is not None:
            for pair in pairs(old):
                if self._owners.get(pair) == record.member_id:
                    del self._owners[pair]
        _put(self.currents, record.member_id, record.current)
        if record.current is not None:
            for pair in pairs(record.current):
                self._owners[pair] = record.member_id


def _put(table: dict[MemberId, T], member_id: MemberId, value: T | None) -> None:
    if value is None:
        table.pop(member_id, None)
    else:
        table[member_id] = value
