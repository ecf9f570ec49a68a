"""One group of the consumer protocol (KIP-848). The coordinator assigns partitions, and each member moves to its target
assignment independently of the others.

Three epochs describe the progress of a rebalance. The *group epoch* rises when members, subscriptions or subscribed
topics change. The *target epoch* is the group epoch for which the current target assignments were computed. The *member
epoch* is the target epoch to which a member has been reconciled.

    member:  STABLE --must revoke partitions-------------> UNREVOKED --has revoked them--> STABLE or UNRELEASED
             STABLE --waits until others have revoked----> UNRELEASED --partitions are free--> STABLE

A member in UNREVOKED keeps its old epoch until it reports that it has revoked the partitions. It must do so within its
rebalance timeout. An offset commit is accepted only with the member's current epoch. A group may also have members of
the classic protocol, which are reconciled in the same way (classic_membership).

All state except sessions and other deadlines is written to the log. `ConsumerGroup.state` contains the written state,
and only `ConsumerGroupState.replay` changes it. Targets are computed once per group epoch, by the assignor that most
members request.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec.structs import replace

from odradek_broker.coordinator_step import judges
from odradek_broker.groups.assignors import ASSIGNORS
from odradek_broker.groups.classic_members import NEVER_MS, PendingMembers
from odradek_broker.groups.consumer_group_state import ConsumerGroupState
from odradek_broker.groups.messages import (
    Assignment,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    InvalidPattern,
    TopicCatalog,
)
from odradek_broker.groups.reconciliation import (
    NOTHING_OWNED,
    MemberState,
    contains,
    reconciled,
)
from odradek_broker.groups.records import (
    ConsumerMember,
    CurrentAssignment,
    GroupRecord,
    GroupTopicsRecord,
    TopicSnapshot,
)
from odradek_broker.groups.settings import ConsumerGroupSettings
from odradek_protocol.identity import GroupId, MemberId, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


@dataclass(slots=True, kw_only=True)
class ConsumerGroup:
    """A consumer group. In all methods, `now_ms` is the monotonic time."""

    group_id: GroupId
    settings: ConsumerGroupSettings
    state: ConsumerGroupState = field(init=False)
    pending_members: PendingMembers = field(default_factory=PendingMembers)
    """Ids that the coordinator has assigned to new members of the classic protocol, which have not joined yet."""
    _catalog_version: int = -1
    _session_ends_ms: dict[MemberId, int] = field(default_factory=dict)
    _revocation_ends_ms: dict[MemberId, int] = field(default_factory=dict)
    _duty_ends_ms: dict[MemberId, int] = field(default_factory=dict)
    """For members of the classic protocol: the monotonic time by which a member must have joined again and synced.
    After that, the member is removed.
    """
    _pace: HeartbeatPace = field(init=False)

    def __post_init__(self) -> None:
        self.state = ConsumerGroupState(group_id=self.group_id)
        self._pace = HeartbeatPace(
            calm_interval_ms=self.settings.heartbeat_interval_of(self.group_id),
            restless_interval_ms=self.settings.rebalance_heartbeat_interval_ms,
        )

    @property
    def is_empty(self) -> bool:
        return not self.state.members

    def handle_heartbeat(
        self, beat: ConsumerHeartbeat, catalog: TopicCatalog, *, now_ms: int
    ) -> tuple[list[GroupRecord], ConsumerHeartbeatAnswer]:
        """Handle ConsumerGroupHeartbeat. The response has the member epoch and, if the assignment changed, the
        assignment.
        """
        if beat.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(beat)
        error, message = self._refuse(beat, catalog)
        if error is not ErrorCode.NONE:
            return [], ConsumerHeartbeatAnswer(error=error, error_message=message)
        records: list[GroupRecord] = []
        before = self.state.currents.get(beat.member_id)
        if beat.member_id not in self.state.members:
            self.take_over_static(beat.member_id, beat.instance_id, records)
        current = self.settle_member(
            self._member_of(beat),
            catalog,
            owned=beat.owned,
            restarted=beat.member_epoch == JOIN_EPOCH,
            now_ms=now_ms,
            records=records,
        )
        is_full = (
            beat.rebalance_timeout_ms != -1
            and (beat.subscribed_topics is not None or beat.subscribed_regex is not None)
            and beat.owned is not None
        )
        has_assignment = (
            beat.member_epoch == JOIN_EPOCH
            or is_full
            or before is None
            or before.assigned != current.assigned
        )
        return records, ConsumerHeartbeatAnswer(
            error=ErrorCode.NONE,
            member_id=beat.member_id,
            member_epoch=current.member_epoch,
            heartbeat_interval_ms=self._heartbeat_interval_ms(),
            assignment=current.assigned if has_assignment else None,
        )

    def _heartbeat_interval_ms(self) -> int:
        self._pace.calm_interval_ms = self.settings.heartbeat_interval_of(self.group_id)
        return self._pace.interval_ms(len(self.state.members))

    @judges
    def _refuse(
        self, beat: ConsumerHeartbeat, catalog: TopicCatalog
    ) -> tuple[ErrorCode, str | None]:
        if beat.server_assignor is not None and beat.server_assignor not in ASSIGNORS:
            names = ", ".join(ASSIGNORS)
            return (
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"the assignor {beat.server_assignor} is not supported: use one of {names}",
            )
        if beat.subscribed_regex:
            try:
                catalog.matching(beat.subscribed_regex)
            except InvalidPattern as error:
                return ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)
        if beat.member_epoch == JOIN_EPOCH:
            return self._refuse_join(beat)
        member = self.state.members.get(beat.member_id)
        instance_error = self._check_instance(beat)
        if instance_error is ErrorCode.FENCED_INSTANCE_ID:
            return instance_error, f"another member uses the instance id {beat.instance_id}"
        if member is None or instance_error is not ErrorCode.NONE:
            return (
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {self.group_id} has no member {beat.member_id}: join again with member epoch 0",
            )
        if member.classic is not None:
            return (
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"member {beat.member_id} uses the classic protocol, not the consumer protocol",
            )
        current = self.state.currents[beat.member_id]
        if beat.member_epoch > current.member_epoch:
            return (
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"the member epoch {beat.member_epoch} is above the current epoch {current.member_epoch}: join again"
                " with member epoch 0",
            )
        # True if the member did not receive the response with its current epoch.
        missed_response = (
            beat.member_epoch == current.previous_epoch
            and beat.owned is not None
            and contains(current.assigned, beat.owned)
        )
        if beat.member_epoch < current.member_epoch and not missed_response:
            return (
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"the member epoch {beat.member_epoch} is below the current epoch {current.member_epoch}: join again"
                " with member epoch 0",
            )
        return ErrorCode.NONE, None

    def _check_instance(self, beat: ConsumerHeartbeat) -> ErrorCode:
        """Return an error code if the heartbeat has an instance id that does not belong to its member."""
        if beat.instance_id is None:
            return ErrorCode.NONE
        holder = self.state.static_holder(beat.instance_id)
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if holder == beat.member_id else ErrorCode.FENCED_INSTANCE_ID

    def _refuse_join(self, beat: ConsumerHeartbeat) -> tuple[ErrorCode, str | None]:
        if beat.rebalance_timeout_ms < 0:
            return ErrorCode.INVALID_REQUEST, "a joining member must send its rebalance timeout"
        if beat.subscribed_topics is None and beat.subscribed_regex is None:
            return ErrorCode.INVALID_REQUEST, "a joining member must send its subscription"
        if beat.owned is None or beat.owned:
            return (
                ErrorCode.INVALID_REQUEST,
                "a joining member must send an empty list of owned partitions",
            )
        is_known = beat.member_id in self.state.members
        holder = self.state.static_holder(beat.instance_id)
        if holder is not None and holder != beat.member_id:
            has_left = self.state.currents[holder].member_epoch == STATIC_LEAVE_EPOCH
            if not has_left and self.state.members[holder].classic is None:
                return (
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"member {holder} still uses the instance id {beat.instance_id}: wait until it has left the group,"
                    " or choose another group.instance.id",
                )
            is_known = True
        if not is_known and len(self.state.members) >= self.settings.members_max:
            return (
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"the group has {self.settings.members_max} members, which is the limit"
                " (group.consumer.max.size)",
            )
        return ErrorCode.NONE, None

    def _member_of(self, beat: ConsumerHeartbeat) -> ConsumerMember:
        """Return the member with the fields of the heartbeat. Fields that the heartbeat omits keep their values."""
        old = self.state.members.get(beat.member_id)
        return ConsumerMember(
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
            principal=beat.principal,
        )

    def take_over_static(
        self, heir: MemberId, instance_id: str | None, records: list[GroupRecord]
    ) -> None:
        """Move the state of the static member with this instance id to the member id `heir`, with which it joins again
        (KIP-345).
        """
        holder = self.state.static_holder(instance_id)
        if holder is None or holder == heir:
            return
        member, target, current = (
            self.state.members[holder],
            self.state.targets.get(holder),
            self.state.currents[holder],
        )
        self._remove(holder, records)
        self.state.emit_member(replace(member, member_id=heir), records)
        if target is not None:
            self.state.emit_target(heir, target, records)
        if current.member_epoch == STATIC_LEAVE_EPOCH:
            current = replace(current, member_epoch=current.previous_epoch)
        self.state.emit_current(heir, current, records)

    def settle_member(
        self,
        member: ConsumerMember,
        catalog: TopicCatalog,
        *,
        owned: Assignment | None,
        restarted: bool,
        now_ms: int,
        records: list[GroupRecord],
    ) -> CurrentAssignment:
        """Store a member's fields and reconcile the member. If the group has changed, its epoch is raised and the
        targets are computed first.

        `restarted` means that the member has joined again and owns no partitions any more.
        """
        member_id, old = member.member_id, self.state.members.get(member.member_id)
        if member != old:
            self.state.emit_member(member, records)
        changed = old is None or _wanted_by(member) != _wanted_by(old)
        self.update_epoch(catalog, records, subscription_changed=changed)
        if self.state.epoch > self.state.target_epoch:
            self.compute_targets(catalog, records)
        self._pace.epoch_is(self.state.epoch, now_ms=now_ms)
        before = self.state.currents.get(member_id)
        current = self._reconcile(member_id, owned, records, restarted=restarted)
        self.touch(member_id, now_ms=now_ms)
        if current != before:
            self._watch_revocation(member_id, current, now_ms)
        return current

    def touch(self, member_id: MemberId, *, now_ms: int) -> None:
        """Start a new session of a member, because a request of the member has arrived."""
        classic = self.state.members[member_id].classic
        session_ms = (
            classic.session_timeout_ms
            if classic
            else self.settings.session_timeout_of(self.group_id)
        )
        self._session_ends_ms[member_id] = now_ms + session_ms

    def begin_duty(self, member_id: MemberId, *, now_ms: int, renew: bool) -> None:
        """Start the rebalance timeout in which a classic member has to join again or to send SyncGroup. If the timeout
        is already running, it is restarted only if `renew` is True.
        """
        ends_ms = now_ms + self.state.members[member_id].rebalance_timeout_ms
        if renew:
            self._duty_ends_ms[member_id] = ends_ms
        else:
            self._duty_ends_ms.setdefault(member_id, ends_ms)

    def end_duty(self, member_id: MemberId) -> None:
        """Stop the rebalance timeout of a classic member, because the member has joined again and synced."""
        self._duty_ends_ms.pop(member_id, None)

    def update_epoch(
        self, catalog: TopicCatalog, records: list[GroupRecord], *, subscription_changed: bool
    ) -> None:
        """Raise the group epoch if the members' subscriptions or the subscribed topics have changed.

        The topics are also checked after a member has left, because the member may have been the only subscriber of
        some topics.
        """
        has_targets = self.state.epoch == self.state.target_epoch
        if has_targets and not subscription_changed and catalog.version == self._catalog_version:
            return
        self._catalog_version = catalog.version
        names = set().union(*self._subscriptions(catalog).values())
        snapshot = tuple(
            TopicSnapshot(topic_id=catalog.topics[n][0], topic=n, partitions=catalog.topics[n][1])
            for n in sorted(names)
            if n in catalog.topics
        )
        if snapshot != self.state.topics:
            self.state.emit(GroupTopicsRecord(group_id=self.group_id, topics=snapshot), records)
        elif not subscription_changed:
            return
        self.state.emit_epoch(self.state.epoch + 1, records)

    def _subscriptions(self, catalog: TopicCatalog) -> dict[_Subscription, frozenset[TopicName]]:
        """Return the subscribed topics of each distinct subscription. Most members of a group have equal
        subscriptions.
        """
        subscriptions: dict[_Subscription, frozenset[TopicName]] = {}
        for member in self.state.members.values():
            subscription = _subscription(member)
            if subscription not in subscriptions:
                subscriptions[subscription] = frozenset(self._subscribed(member, catalog))
        return subscriptions

    def _subscribed(self, member: ConsumerMember, catalog: TopicCatalog) -> set[TopicName]:
        names = set(member.subscribed_topics)
        if member.subscribed_regex:
            # Invalid patterns are refused in requests, but an older release may have stored one.
            with suppress(InvalidPattern):
                matched = catalog.matching(member.subscribed_regex)
                host = member.client_host.removeprefix("/")
                names |= catalog.visible(member.principal, host, matched)
        return names

    def compute_targets(self, catalog: TopicCatalog, records: list[GroupRecord]) -> None:
        """Compute the target assignments for the current group epoch, and emit a record for each target assignment that
        changes.
        """
        by_name = {snapshot.topic: snapshot.topic_id for snapshot in self.state.topics}
        topic_ids = {
            subscription: frozenset(by_name[name] for name in names if name in by_name)
            for subscription, names in self._subscriptions(catalog).items()
        }
        subscriptions = {
            member.member_id: topic_ids[_subscription(member)]
            for member in self.state.members.values()
        }
        counts = {snapshot.topic_id: snapshot.partitions for snapshot in self.state.topics}
        targets = ASSIGNORS[self.assignor](subscriptions, counts, self.state.targets)
        for member_id, target in sorted(targets.items()):
            if self.state.targets.get(member_id) != target:
                self.state.emit_target(member_id, target, records)
        self.state.emit_target_epoch(self.state.epoch, records)

    @property
    def assignor(self) -> str:
        """The assignor that most members request, or the broker's default assignor if no member requests one."""
        requested = [m.server_assignor for m in self.state.members.values() if m.server_assignor]
        return (
            max(sorted(set(requested)), key=requested.count)
            if requested
            else self.settings.default_assignor
        )

    def _reconcile(
        self,
        member_id: MemberId,
        owned: Assignment | None,
        records: list[GroupRecord],
        *,
        restarted: bool,
    ) -> CurrentAssignment:
        before = self.state.currents.get(member_id)
        current = before or CurrentAssignment(
            member_epoch=0,
            previous_epoch=0,
            state=MemberState.STABLE,
            assigned=NOTHING_OWNED,
            pending_revocation=NOTHING_OWNED,
        )
        if restarted:
            current = replace(
                current,
                member_epoch=max(current.member_epoch, 0),
                state=MemberState.STABLE,
                assigned=NOTHING_OWNED,
                pending_revocation=NOTHING_OWNED,
            )
        after = reconciled(
            current,
            target=self.state.targets.get(member_id, NOTHING_OWNED),
            target_epoch=self.state.target_epoch,
            owned=owned,
            is_free=lambda topic, index: self.state.owner_of(topic, index) in (None, member_id),
        )
        if after != before:
            self.state.emit_current(member_id, after, records)
        return after

    def _watch_revocation(
        self, member_id: MemberId, current: CurrentAssignment, now_ms: int
    ) -> None:
        """Start the rebalance timeout if the member has to revoke partitions; otherwise stop it."""
        if current.state == MemberState.UNREVOKED:
            timeout_ms = self.state.members[member_id].rebalance_timeout_ms
            self._revocation_ends_ms[member_id] = now_ms + timeout_ms
        else:
            self._revocation_ends_ms.pop(member_id, None)

    def _leave(self, beat: ConsumerHeartbeat) -> tuple[list[GroupRecord], ConsumerHeartbeatAnswer]:
        records: list[GroupRecord] = []
        response = ConsumerHeartbeatAnswer(
            error=ErrorCode.NONE, member_id=beat.member_id, member_epoch=beat.member_epoch
        )
        member = self.state.members.get(beat.member_id)
        error = self._check_instance(beat)
        if member is None and error is ErrorCode.NONE:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if member is None or error is not ErrorCode.NONE:
            return records, ConsumerHeartbeatAnswer(error=error)
        if beat.member_epoch == STATIC_LEAVE_EPOCH and member.instance_id is not None:
            current = self.state.currents[beat.member_id]
            departed = CurrentAssignment(
                member_epoch=STATIC_LEAVE_EPOCH,
                previous_epoch=current.member_epoch,
                state=MemberState.STABLE,
                assigned=current.assigned,
                pending_revocation=NOTHING_OWNED,
            )
            self.state.emit_current(beat.member_id, departed, records)
            self._revocation_ends_ms.pop(beat.member_id, None)
            return records, response
        self.remove(beat.member_id, records)
        return records, response

    def remove(self, member_id: MemberId, records: list[GroupRecord]) -> None:
        """Remove a member, free its partitions, and raise the group epoch."""
        self._remove(member_id, records)
        self.state.emit_epoch(self.state.epoch + 1, records)

    def _remove(self, member_id: MemberId, records: list[GroupRecord]) -> None:
        self.state.emit_removal(member_id, records)
        for ends in (self._session_ends_ms, self._revocation_ends_ms, self._duty_ends_ms):
            ends.pop(member_id, None)

    def tick(self, *, now_ms: int) -> list[GroupRecord]:
        """Remove members whose session has expired, or that did not revoke partitions, join again or sync in time."""
        records: list[GroupRecord] = []
        self.pending_members.expire(now_ms=now_ms)
        for ends in (self._session_ends_ms, self._revocation_ends_ms, self._duty_ends_ms):
            for member_id in [m for m, ends_ms in ends.items() if ends_ms <= now_ms]:
                if member_id in self.state.members:
                    self.remove(member_id, records)
        self._pace.epoch_is(self.state.epoch, now_ms=now_ms)
        self._pace.look(
            is_stable=self.state.name == "Stable",
            session_ends_ms=min(self._session_ends_ms.values(), default=None),
            now_ms=now_ms,
        )
        return records

    def due_ms(self, *, now_ms: int) -> int:
        """Return the monotonic time before which `tick` need not be called, unless a request arrives. The result is
        `now_ms` while a group with members is not calm.
        """
        if self.state.members and not self._pace.is_calm:
            return now_ms
        quiet_ms = 2 * self.settings.heartbeat_interval_of(self.group_id)
        ends = [ends_ms - quiet_ms for ends_ms in self._session_ends_ms.values()]
        for times in (self._revocation_ends_ms, self._duty_ends_ms, self.pending_members):
            ends += times.values()
        return min(ends, default=NEVER_MS)

    def begin_sessions(self, *, now_ms: int) -> None:
        """Start the session of each member, and the timeouts of members that have to revoke partitions. This is called
        after a load or a migration.
        """
        for member_id in self.state.members:
            self.touch(member_id, now_ms=now_ms)
            self._watch_revocation(member_id, self.state.currents[member_id], now_ms)

    def check_epoch(
        self, member_id: MemberId | None, member_epoch: int, instance_id: str | None = None
    ) -> ErrorCode:
        """Return NONE if the member may commit or fetch offsets with this epoch, or else an error code."""
        # A request without an epoch comes from an administrator, or from a consumer with manual assignment (`assign`),
        # which is not a member.
        if member_epoch < 0 and (not self.state.members or member_id is None):
            return ErrorCode.NONE
        member = self.state.members.get(MemberId(member_id or ""))
        holder = self.state.static_holder(instance_id)
        if holder is not None and holder != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member_epoch != self.state.currents[member.member_id].member_epoch:
            is_classic = member.classic is not None
            return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE


def _wanted_by(member: ConsumerMember) -> tuple[object, ...]:
    """Return the fields of a member that raise the group epoch when they change."""
    principal = member.principal if member.subscribed_regex else ""
    return member.subscribed_topics, member.subscribed_regex, principal, member.server_assignor


_Subscription: TypeAlias = tuple[tuple[TopicName, ...], str | None, str, str]


def _subscription(member: ConsumerMember) -> _Subscription:
    """Return the fields of a member on which its subscribed topics depend."""
    if not member.subscribed_regex:
        return member.subscribed_topics, None, "", ""
    return (
        member.subscribed_topics,
        member.subscribed_regex,
        member.principal,
        member.client_host,
    )


_MS_A_MEMBER = 5


@dataclass(slots=True, kw_only=True)
class HeartbeatPace:
    """Chooses the heartbeat interval of one group's members. Times are monotonic, in ms.

    The response to a heartbeat contains the partitions that the member has to revoke or may own, so a rebalance takes
    about one heartbeat interval per step. In a calm group the interval is long. It is short

    - from a change of the group epoch until all members are reconciled, and for at least two long intervals, because
      members tend to join and leave together;
    - when a member's session is about to expire, so that the other members get its partitions soon after its removal.

    In large groups the short interval is longer, so that a group sends at most about 200 heartbeats a second. This
    state is not written to the log; after a load, a group is treated as not calm. The caller must call `look` a few
    times a second.
    """

    calm_interval_ms: int
    restless_interval_ms: int
    _epoch: int = -1
    _changed_ms: int = 0
    is_calm: bool = False

    def epoch_is(self, epoch: int, *, now_ms: int) -> None:
        """Record the group epoch. If the epoch has changed, a rebalance begins."""
        if epoch != self._epoch:
            self._epoch, self._changed_ms, self.is_calm = epoch, now_ms, False

    def look(self, *, is_stable: bool, session_ends_ms: int | None, now_ms: int) -> None:
        """Decide whether the group is calm. `session_ends_ms` is the earliest expiry time of a member's session."""
        soon_ms = now_ms + 2 * self.calm_interval_ms
        is_quiet = now_ms - self._changed_ms >= 2 * self.calm_interval_ms
        all_show = session_ends_ms is None or session_ends_ms > soon_ms
        self.is_calm = is_stable and is_quiet and all_show

    def interval_ms(self, members: int) -> int:
        """Return the heartbeat interval for the next response. `members` is the number of members of the group."""
        if self.is_calm:
            return self.calm_interval_ms
        return min(self.calm_interval_ms, max(self.restless_interval_ms, _MS_A_MEMBER * members))
