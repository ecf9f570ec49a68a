"""One group of the consumer protocol (KIP-848): the coordinator assigns, members reconcile one by one.

Three epochs tell how far things are. The *group epoch* rises when members, subscriptions or subscribed topics
change. The *target epoch* is the group epoch that the present targets were computed for. The *member epoch* is the
target epoch that a member has taken up.

    member:  STABLE --must give partitions up--> UNREVOKED --gave them up--> STABLE or UNRELEASED
             STABLE --waits for another's----------------------------------> UNRELEASED --they are free--> STABLE

A member in UNREVOKED keeps its old epoch until it reports that the partitions are gone; it has its rebalance
timeout for that. In UNRELEASED it has the new epoch and all of its target that nobody else still owns.

Invariants: a partition is in `assigned` or `pending_revocation` of at most one member; a member epoch never
exceeds the target epoch, nor that the group epoch; an offset commit counts only at the member's present epoch.

All of it is written, but for the sessions. State changes only in `replay`; the handlers decide records and replay
them as they go, because each phase builds on the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TypeVar

from odradek_broker.groups.assignors import ASSIGNORS
from odradek_broker.groups.messages import Assignment, ConsumerHeartbeat, ConsumerHeartbeatAnswer
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
from odradek_broker.groups.topic_catalog import InvalidPattern, TopicCatalog
from odradek_protocol.identity import GroupId, MemberId, PartitionIndex, TopicId, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode

T = TypeVar("T")
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
_NOBODYS: Assignment = {}


class MemberState(IntEnum):
    """Kafka's numbers, which stand in the records."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    """group.consumer.* of the broker."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    members_max: int
    default_assignor: str


@dataclass(slots=True, kw_only=True)
class ConsumerGroup:
    """See the module's essay. `now_ms` is the caller's monotonic clock."""

    group_id: GroupId
    settings: ConsumerGroupSettings
    epoch: int = 0
    target_epoch: int = 0
    topics: tuple[TopicSnapshot, ...] = ()
    members: dict[MemberId, ConsumerMember] = field(default_factory=dict)
    targets: dict[MemberId, Assignment] = field(default_factory=dict)
    currents: dict[MemberId, CurrentAssignment] = field(default_factory=dict)
    _owners: dict[tuple[TopicId, PartitionIndex], MemberId] = field(default_factory=dict)
    _session_ends_ms: dict[MemberId, int] = field(default_factory=dict)
    _revocation_ends_ms: dict[MemberId, int] = field(default_factory=dict)
    _subscriptions: dict[MemberId, frozenset[TopicId]] = field(default_factory=dict)
    _catalog_version: int = -1

    # --- heartbeat ---------------------------------------------------------------------------

    def handle_heartbeat(
        self, beat: ConsumerHeartbeat, catalog: TopicCatalog, *, now_ms: int
    ) -> tuple[list[GroupRecord], ConsumerHeartbeatAnswer]:
        """Join, stay, report what is owned, leave; the answer tells the epoch and, if it changed, the assignment."""
        if beat.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(beat)
        error, message = self._refuse(beat, catalog)
        if error is not ErrorCode.NONE:
            return [], ConsumerHeartbeatAnswer(error=error, error_message=message)
        records: list[GroupRecord] = []
        joins = beat.member_id not in self.members
        if joins and beat.instance_id is not None:
            self._take_over_static(beat, records)
        before = self.currents.get(beat.member_id)
        changed = self._update_member(beat, records)
        self._update_epoch(catalog, records, subscription_changed=changed)
        if self.epoch > self.target_epoch:
            self._compute_targets(records)
        self._reconcile(beat, records)
        self._session_ends_ms[beat.member_id] = now_ms + self.settings.session_timeout_ms
        current = self.currents[beat.member_id]
        self._watch_revocation(beat.member_id, current, now_ms)
        is_full = (
            beat.rebalance_timeout_ms != -1
            and (beat.subscribed_topics is not None or beat.subscribed_regex is not None)
            and beat.owned is not None
        )
        tells = (
            beat.member_epoch == JOIN_EPOCH
            or is_full
            or before is None
            or before.assigned != current.assigned
        )
        return records, ConsumerHeartbeatAnswer(
            error=ErrorCode.NONE,
            member_id=beat.member_id,
            member_epoch=current.member_epoch,
            heartbeat_interval_ms=self.settings.heartbeat_interval_ms,
            assignment=current.assigned if tells else None,
        )

    def _refuse(
        self, beat: ConsumerHeartbeat, catalog: TopicCatalog
    ) -> tuple[ErrorCode, str | None]:
        if beat.server_assignor is not None and beat.server_assignor not in ASSIGNORS:
            names = ", ".join(ASSIGNORS)
            return ErrorCode.UNSUPPORTED_ASSIGNOR, f"supported assignors: {names}"
        if beat.subscribed_regex:
            try:
                catalog.matching(beat.subscribed_regex)
            except InvalidPattern as error:
                return ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)
        if beat.member_epoch == JOIN_EPOCH:
            return self._refuse_join(beat)
        member = self.members.get(beat.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, f"no member {beat.member_id} in {self.group_id}"
        if beat.instance_id is not None and member.instance_id != beat.instance_id:
            return ErrorCode.FENCED_INSTANCE_ID, "another member has that instance id"
        current = self.currents[beat.member_id]
        if beat.member_epoch > current.member_epoch:
            return ErrorCode.FENCED_MEMBER_EPOCH, "the epoch is ahead of the group's: join again"
        lost_answer = (
            beat.member_epoch == current.previous_epoch
            and beat.owned is not None
            and _contains(current.assigned, beat.owned)
        )
        if beat.member_epoch < current.member_epoch and not lost_answer:
            return ErrorCode.FENCED_MEMBER_EPOCH, "the epoch is behind the member's: join again"
        return ErrorCode.NONE, None

    def _refuse_join(self, beat: ConsumerHeartbeat) -> tuple[ErrorCode, str | None]:
        if beat.rebalance_timeout_ms <= 0:
            return ErrorCode.INVALID_REQUEST, "a member that joins names its rebalance timeout"
        if beat.subscribed_topics is None and beat.subscribed_regex is None:
            return ErrorCode.INVALID_REQUEST, "a member that joins names its subscription"
        if beat.owned:
            return ErrorCode.INVALID_REQUEST, "a member that joins owns nothing"
        is_known = beat.member_id in self.members
        holder = self._static_holder(beat.instance_id)
        if holder is not None and holder != beat.member_id:
            if self.currents[holder].member_epoch != STATIC_LEAVE_EPOCH:
                return (
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"instance {beat.instance_id} is held by member {holder}, which has not left",
                )
            is_known = True
        if not is_known and len(self.members) >= self.settings.members_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED, f"at most {self.settings.members_max} members"
        return ErrorCode.NONE, None

    def _static_holder(self, instance_id: str | None) -> MemberId | None:
        if instance_id is None:
            return None
        return next(
            (m.member_id for m in self.members.values() if m.instance_id == instance_id), None
        )

    def _take_over_static(self, beat: ConsumerHeartbeat, records: list[GroupRecord]) -> None:
        holder = self._static_holder(beat.instance_id)
        if holder is None:
            return
        member, target, current = (
            self.members[holder],
            self.targets.get(holder),
            self.currents[holder],
        )
        self._emit_removal(holder, records)
        heir = beat.member_id
        self._emit(
            ConsumerMemberRecord(
                group_id=self.group_id, member_id=heir, member=replace(member, member_id=heir)
            ),
            records,
        )
        if target is not None:
            self._emit(
                TargetMemberRecord(group_id=self.group_id, member_id=heir, target=target), records
            )
        returned = replace(current, member_epoch=current.previous_epoch)
        self._emit(
            CurrentMemberRecord(group_id=self.group_id, member_id=heir, current=returned), records
        )

    def _update_member(self, beat: ConsumerHeartbeat, records: list[GroupRecord]) -> bool:
        old = self.members.get(beat.member_id)
        new = ConsumerMember(
            member_id=beat.member_id,
            instance_id=beat.instance_id or (old.instance_id if old else None),
            rack_id=beat.rack_id if beat.rack_id is not None else (old.rack_id if old else None),
            client_id=beat.client_id,
            client_host=beat.client_host,
            subscribed_topics=tuple(sorted(set(beat.subscribed_topics)))
            if beat.subscribed_topics is not None
            else (old.subscribed_topics if old else ()),
            subscribed_regex=(beat.subscribed_regex or None)
            if beat.subscribed_regex is not None
            else (old.subscribed_regex if old else None),
            rebalance_timeout_ms=beat.rebalance_timeout_ms
            if beat.rebalance_timeout_ms != -1
            else (old.rebalance_timeout_ms if old else 0),
            server_assignor=beat.server_assignor or (old.server_assignor if old else None),
        )
        if new != old:
            self._emit(
                ConsumerMemberRecord(group_id=self.group_id, member_id=beat.member_id, member=new),
                records,
            )
        return old is None or (
            (new.subscribed_topics, new.subscribed_regex, new.server_assignor)
            != (old.subscribed_topics, old.subscribed_regex, old.server_assignor)
        )

    # --- group epoch and targets ---------------------------------------------------------------

    def _update_epoch(
        self, catalog: TopicCatalog, records: list[GroupRecord], *, subscription_changed: bool
    ) -> None:
        if not subscription_changed and catalog.version == self._catalog_version:
            return
        self._catalog_version = catalog.version
        names: set[TopicName] = set()
        for member in self.members.values():
            names |= self._subscribed(member, catalog)
        snapshot = tuple(
            TopicSnapshot(topic_id=catalog.topics[n][0], topic=n, partitions=catalog.topics[n][1])
            for n in sorted(names)
            if n in catalog.topics
        )
        if snapshot != self.topics:
            self._emit(GroupTopicsRecord(group_id=self.group_id, topics=snapshot), records)
        elif not subscription_changed:
            return
        self._subscriptions = self._resolve(catalog)
        self._emit(GroupEpochRecord(group_id=self.group_id, epoch=self.epoch + 1), records)

    def _subscribed(self, member: ConsumerMember, catalog: TopicCatalog) -> set[TopicName]:
        names = set(member.subscribed_topics)
        if member.subscribed_regex:
            with suppress(
                InvalidPattern
            ):  # refused when it came; kept only by an older coordinator
                names |= catalog.matching(member.subscribed_regex)
        return names

    def _resolve(self, catalog: TopicCatalog) -> dict[MemberId, frozenset[TopicId]]:
        return {
            m.member_id: frozenset(
                catalog.topics[n][0] for n in self._subscribed(m, catalog) if n in catalog.topics
            )
            for m in self.members.values()
        }

    def _compute_targets(self, records: list[GroupRecord]) -> None:
        by_name = {snapshot.topic: snapshot.topic_id for snapshot in self.topics}
        subscriptions = {
            m.member_id: self._subscriptions.get(
                m.member_id, frozenset(by_name[n] for n in m.subscribed_topics if n in by_name)
            )
            for m in self.members.values()
        }
        counts = {snapshot.topic_id: snapshot.partitions for snapshot in self.topics}
        targets = ASSIGNORS[self._assignor()](subscriptions, counts, self.targets)
        for member_id, target in sorted(targets.items()):
            if self.targets.get(member_id, _NOBODYS) != target or member_id not in self.targets:
                self._emit(
                    TargetMemberRecord(group_id=self.group_id, member_id=member_id, target=target),
                    records,
                )
        self._emit(TargetEpochRecord(group_id=self.group_id, epoch=self.epoch), records)

    def _assignor(self) -> str:
        wanted = [m.server_assignor for m in self.members.values() if m.server_assignor]
        return (
            max(sorted(set(wanted)), key=wanted.count) if wanted else self.settings.default_assignor
        )

    # --- reconciliation ------------------------------------------------------------------------

    def _reconcile(self, beat: ConsumerHeartbeat, records: list[GroupRecord]) -> None:
        member_id = beat.member_id
        current = self.currents.get(member_id)
        if current is None or current.member_epoch < 0:
            nothing = current.assigned if current is not None else _NOBODYS
            current = CurrentAssignment(
                member_epoch=0,
                previous_epoch=0,
                state=MemberState.STABLE,
                assigned=nothing,
                pending_revocation=_NOBODYS,
            )
        elif beat.member_epoch == JOIN_EPOCH:  # it forgot what it owned
            current = replace(
                current, state=MemberState.STABLE, assigned=_NOBODYS, pending_revocation=_NOBODYS
            )
        after = self._next(member_id, current, beat.owned)
        if after != self.currents.get(member_id):
            self._emit(
                CurrentMemberRecord(group_id=self.group_id, member_id=member_id, current=after),
                records,
            )

    def _next(
        self, member_id: MemberId, current: CurrentAssignment, owned: Assignment | None
    ) -> CurrentAssignment:
        if current.state == MemberState.UNREVOKED:
            if owned is None or _intersects(owned, current.pending_revocation):
                return current
            current = replace(current, pending_revocation=_NOBODYS)
        elif (
            current.state == MemberState.STABLE
            and current.member_epoch == self.target_epoch
            and current.assigned == self.targets.get(member_id, _NOBODYS)
        ):
            return current
        target = self.targets.get(member_id, _NOBODYS)
        to_revoke = _minus(current.assigned, target)
        keeps = _minus(current.assigned, to_revoke)
        if to_revoke and owned is not None and not _intersects(owned, to_revoke):
            to_revoke = _NOBODYS  # it never took them up, or gave them up already
        if to_revoke:
            return replace(
                current,
                state=MemberState.UNREVOKED,
                assigned=keeps,
                pending_revocation=to_revoke,
            )
        free = self._free_of(member_id, _minus(target, keeps))
        assigned = _plus(keeps, free)
        waits = assigned != target
        return CurrentAssignment(
            member_epoch=self.target_epoch,
            previous_epoch=current.member_epoch,
            state=MemberState.UNRELEASED if waits else MemberState.STABLE,
            assigned=assigned,
            pending_revocation=_NOBODYS,
        )

    def _free_of(self, member_id: MemberId, wanted: Assignment) -> Assignment:
        free: dict[TopicId, frozenset[PartitionIndex]] = {}
        for topic, indexes in wanted.items():
            left = frozenset(
                i for i in indexes if self._owners.get((topic, i), member_id) == member_id
            )
            if left:
                free[topic] = left
        return free

    def _watch_revocation(
        self, member_id: MemberId, current: CurrentAssignment, now_ms: int
    ) -> None:
        if current.state != MemberState.UNREVOKED:
            self._revocation_ends_ms.pop(member_id, None)
        elif member_id not in self._revocation_ends_ms:
            timeout_ms = self.members[member_id].rebalance_timeout_ms
            self._revocation_ends_ms[member_id] = now_ms + timeout_ms

    # --- leaving -------------------------------------------------------------------------------

    def _leave(self, beat: ConsumerHeartbeat) -> tuple[list[GroupRecord], ConsumerHeartbeatAnswer]:
        records: list[GroupRecord] = []
        told = ConsumerHeartbeatAnswer(
            error=ErrorCode.NONE, member_id=beat.member_id, member_epoch=beat.member_epoch
        )
        member = self.members.get(beat.member_id)
        if member is None:
            return records, replace(told, error=ErrorCode.UNKNOWN_MEMBER_ID)
        if beat.member_epoch == STATIC_LEAVE_EPOCH and member.instance_id is not None:
            current = self.currents[beat.member_id]
            left = CurrentAssignment(
                member_epoch=STATIC_LEAVE_EPOCH,
                previous_epoch=current.member_epoch,
                state=MemberState.STABLE,
                assigned=current.assigned,
                pending_revocation=_NOBODYS,
            )
            self._emit(
                CurrentMemberRecord(group_id=self.group_id, member_id=beat.member_id, current=left),
                records,
            )
            return records, told
        self.remove(beat.member_id, records)
        return records, told

    def remove(self, member_id: MemberId, records: list[GroupRecord]) -> None:
        """Take a member out: its partitions are free, and the group's epoch rises."""
        self._emit_removal(member_id, records)
        self._emit(GroupEpochRecord(group_id=self.group_id, epoch=self.epoch + 1), records)

    def _emit_removal(self, member_id: MemberId, records: list[GroupRecord]) -> None:
        group_id = self.group_id
        for record in (
            CurrentMemberRecord(group_id=group_id, member_id=member_id, current=None),
            TargetMemberRecord(group_id=group_id, member_id=member_id, target=None),
            ConsumerMemberRecord(group_id=group_id, member_id=member_id, member=None),
        ):
            self._emit(record, records)
        self._session_ends_ms.pop(member_id, None)
        self._revocation_ends_ms.pop(member_id, None)
        self._subscriptions.pop(member_id, None)

    def tick(self, *, now_ms: int) -> list[GroupRecord]:
        """Take out who was silent for a session, or did not revoke in time."""
        records: list[GroupRecord] = []
        for ends in (self._session_ends_ms, self._revocation_ends_ms):
            for member_id in [m for m, ends_ms in ends.items() if ends_ms <= now_ms]:
                if member_id in self.members:
                    self.remove(member_id, records)
        return records

    def begin_sessions(self, *, now_ms: int) -> None:
        """After loading: everyone has a whole session to show itself."""
        for member_id in self.members:
            self._session_ends_ms[member_id] = now_ms + self.settings.session_timeout_ms
            self._watch_revocation(member_id, self.currents[member_id], now_ms)

    # --- offsets and description -----------------------------------------------------------------

    def check_epoch(self, member_id: MemberId | None, member_epoch: int) -> ErrorCode:
        """Whether a commit, or a fetch of offsets, may come from there."""
        if member_epoch < 0 and (not self.members or member_id is None):
            return ErrorCode.NONE  # a consumer that assigns itself, or an administrator
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member_epoch != self.currents[MemberId(member_id or "")].member_epoch:
            return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    @property
    def state_name(self) -> str:
        """As people are told."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        done = all(
            c.state == MemberState.STABLE and c.member_epoch == self.target_epoch
            for c in self.currents.values()
        )
        return "Stable" if done else "Reconciling"

    # --- replay ----------------------------------------------------------------------------------

    def _emit(self, record: GroupRecord, records: list[GroupRecord]) -> None:
        self.replay(record)
        records.append(record)

    def replay(self, record: GroupRecord) -> None:
        """Apply one record; the only place where written state changes."""
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
                raise AssertionError(f"{record} is not of a consumer group")

    def _replay_current(self, record: CurrentMemberRecord) -> None:
        old = self.currents.get(record.member_id)
        if old is not None:
            for pair in _pairs(old):
                if self._owners.get(pair) == record.member_id:
                    del self._owners[pair]
        _put(self.currents, record.member_id, record.current)
        if record.current is not None:
            for pair in _pairs(record.current):
                self._owners[pair] = record.member_id

    def tombstones(self) -> list[GroupRecord]:
        """Records that forget the group."""
        records: list[GroupRecord] = []
        for member_id in list(self.members):
            self._emit_removal(member_id, records)
        group_id = self.group_id
        records += [
            TargetEpochRecord(group_id=group_id, epoch=None),
            GroupTopicsRecord(group_id=group_id, topics=None),
            GroupEpochRecord(group_id=group_id, epoch=None),
        ]
        return records


def _put(table: dict[MemberId, T], member_id: MemberId, value: T | None) -> None:
    if value is None:
        table.pop(member_id, None)
    else:
        table[member_id] = value


def _pairs(current: CurrentAssignment) -> list[tuple[TopicId, PartitionIndex]]:
    return [
        (topic, index)
        for part in (current.assigned, current.pending_revocation)
        for topic, indexes in part.items()
        for index in indexes
    ]


def _minus(left: Assignment, right: Assignment) -> Assignment:
    rest = {t: indexes - right.get(t, frozenset()) for t, indexes in left.items()}
    return {t: indexes for t, indexes in rest.items() if indexes}


def _plus(left: Assignment, right: Assignment) -> Assignment:
    union: dict[TopicId, frozenset[PartitionIndex]] = dict(left)
    for topic, indexes in right.items():
        union[topic] = union.get(topic, frozenset()) | indexes
    return union


def _intersects(left: Assignment, right: Assignment) -> bool:
    return any(indexes & right.get(topic, frozenset()) for topic, indexes in left.items())


def _contains(whole: Assignment, part: Mapping[TopicId, frozenset[PartitionIndex]]) -> bool:
    return all(indexes <= whole.get(topic, frozenset()) for topic, indexes in part.items())
