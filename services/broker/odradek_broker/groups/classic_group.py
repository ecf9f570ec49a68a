"""One group of the classic protocol, in which the group's leader assigns the partitions (KIP-62, 345, 394, 814).

    EMPTY ----join----> PREPARING ----all joined, or timed out----> COMPLETING ----leader syncs----> STABLE
      ^                  ^   ^                                         |                               |
      |                  |   +-- a member joins, leaves or changes ----+-------------------------------+
      +-- none remain ---+

The coordinator writes a `ClassicGroupState` when the leader of a generation has sent the assignment, and when the group
becomes empty. All other state (sessions, joined members, waiting requests) is in the coordinator's memory only. A new
coordinator starts from the last written generation (`restore`), and starts a full session for each member. A written
generation with members but without a leader comes from a migration of a consumer group (migration.py) and has no
assignment, so the group starts in PREPARING and all members join again.

Invariants:

- A generation has one protocol and one leader.
- A member gets an assignment only in the generation for which the assignment was made.
- Each waiting request gets exactly one response.
- A member is fenced when a newer member has joined with the same instance id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from odradek_broker.coordinator_step import NOTHING, RequestId, Response, Step, respond
from odradek_broker.groups.classic_members import (
    NEVER_MS,
    NO_MEMBER,
    ClassicMembers,
    ClassicState,
    Member,
    PendingMembers,
)
from odradek_broker.groups.formats.consumer_protocol import subscribed_topics
from odradek_broker.groups.messages import (
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    Synced,
    SyncGroup,
)
from odradek_broker.groups.records import (
    GROUP_BYTES_MAX,
    ClassicGroupRecord,
    ClassicGroupState,
    GroupRecord,
)
from odradek_protocol.identity import GroupId, MemberId
from odradek_protocol.kafka.error_codes import ErrorCode


@dataclass(slots=True, kw_only=True)
class ClassicGroup:
    """A classic group. In all methods, `now_ms` is the monotonic time."""

    group_id: GroupId
    members_max: int
    initial_rebalance_delay_ms: int
    state: ClassicState = ClassicState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: MemberId = NO_MEMBER
    members: ClassicMembers = field(default_factory=ClassicMembers)
    pending_members: PendingMembers = field(default_factory=PendingMembers)
    _join_ends_ms: int | None = None
    """In PREPARING: the time at which the rebalance continues without the members that have not joined."""
    _initial_ends_ms: int | None = None
    """In PREPARING after EMPTY: the latest time to which further joins may extend the initial delay."""
    _sync_ends_ms: int | None = None
    """In COMPLETING: the time at which members that have not synced are removed."""

    @property
    def is_empty(self) -> bool:
        return not self.members

    def handle_join(
        self, request_id: RequestId, join: JoinGroup, *, now_ms: int
    ) -> Step[GroupRecord]:
        """Handle JoinGroup. The response is sent when the rebalance is complete, or at once if none is needed."""
        refusal = self._refuse_join(join)
        if refusal is not ErrorCode.NONE:
            return respond(request_id, Joined(error=refusal, member_id=join.member_id))
        if join.member_id == NO_MEMBER:
            if self.members.static_holder(join.instance_id) is not None:
                return self._replace_static(request_id, join, now_ms)
            if join.instance_id is None and join.requires_known_member:
                self.pending_members.hand_out(
                    join.new_member_id, ends_ms=now_ms + join.session_timeout_ms
                )
                refused = Joined(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=join.new_member_id)
                return respond(request_id, refused)
            return self._add_and_rebalance(request_id, join, join.new_member_id, now_ms)
        if self.pending_members.use(join.member_id):
            return self._add_and_rebalance(request_id, join, join.member_id, now_ms)
        return self._rejoin(request_id, join, now_ms)

    def _refuse_join(self, join: JoinGroup) -> ErrorCode:
        holder = self.members.static_holder(join.instance_id)
        if join.member_id != NO_MEMBER and holder not in (None, join.member_id):
            return ErrorCode.FENCED_INSTANCE_ID
        is_known = join.member_id in self.members or join.member_id in self.pending_members
        if join.member_id != NO_MEMBER and not is_known:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_new = join.member_id not in self.members and holder is None
        is_stranger = is_new and join.member_id == NO_MEMBER
        pending = len(self.pending_members) if is_stranger else 0
        if is_new and max(len(self.members), pending) >= self.members_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not join.protocols or not join.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.members.keys() - {join.member_id}:
            if join.protocol_type != self.protocol_type:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            if not {name for name, _ in join.protocols} & self.members.shared_protocols(
                without=join.member_id
            ):
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            size_bytes = self.members.metadata_bytes(without=join.member_id)
            if size_bytes + sum(len(m) for _, m in join.protocols) > GROUP_BYTES_MAX:
                return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _add_and_rebalance(
        self, request_id: RequestId, join: JoinGroup, member_id: MemberId, now_ms: int
    ) -> Step[GroupRecord]:
        if not self.members:
            self.protocol_type = join.protocol_type
        member = Member.from_join(join, member_id, now_ms=now_ms)
        member.await_join(request_id)
        self.members.add(member)
        if self.state is ClassicState.PREPARING and self._initial_ends_ms is not None:
            assert self._join_ends_ms is not None
            extended = now_ms + self.initial_rebalance_delay_ms
            self._join_ends_ms = max(self._join_ends_ms, min(extended, self._initial_ends_ms))
        return self._prepare(now_ms)

    def _rejoin(self, request_id: RequestId, join: JoinGroup, now_ms: int) -> Step[GroupRecord]:
        member = self.members[join.member_id]
        changed = member.protocols != join.protocols
        if self.state is ClassicState.COMPLETING and not changed:
            return respond(request_id, self._joined(member))
        if self.state is ClassicState.STABLE and not changed and member.member_id != self.leader:
            member.begin_session(now_ms=now_ms)
            return respond(request_id, self._joined(member))
        member.update(join, now_ms=now_ms)
        return member.await_join(request_id) + self._prepare(now_ms)

    def _replace_static(
        self, request_id: RequestId, join: JoinGroup, now_ms: int
    ) -> Step[GroupRecord]:
        """Replace a static member, which joins again without its member id, by a member with a new id (KIP-345)."""
        holder = self.members.static_holder(join.instance_id)
        assert holder is not None, join
        old = self.members[holder]
        self.members.remove(old)
        step = old.refuse_all(ErrorCode.FENCED_INSTANCE_ID)
        member = Member.from_join(
            join, join.new_member_id, assignment=old.assignment, now_ms=now_ms
        )
        self.members.add(member)
        was_leader = self.leader == old.member_id
        if was_leader:
            self.leader = member.member_id
        # Only the topics are compared, because the owned partitions in the metadata change with a restart.
        is_same = self.members.choose_protocol() == self.protocol and (
            subscribed_topics(old.metadata(self.protocol))
            == subscribed_topics(member.metadata(self.protocol))
        )
        if self.state is ClassicState.STABLE and is_same:
            joined = self._joined(member, skips=was_leader and join.may_skip_assignment)
            # A client without KIP-814 would compute the assignment again if the response named this client as the
            # leader. Therefore the response contains the old member id as the leader.
            if was_leader and not join.may_skip_assignment:
                joined = Joined(
                    error=ErrorCode.NONE,
                    generation=self.generation,
                    protocol_type=self.protocol_type,
                    protocol=self.protocol,
                    leader=old.member_id,
                    member_id=member.member_id,
                )
            return step + Step((self._record(now_ms),), (Response(request_id, joined),))
        return step + member.await_join(request_id) + self._prepare(now_ms)

    def _prepare(self, now_ms: int) -> Step[GroupRecord]:
        step = NOTHING
        if self.state is not ClassicState.PREPARING:
            step += self.members.refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
            rebalance_ms = self.members.rebalance_timeout_ms()
            if self.state is ClassicState.EMPTY and self.initial_rebalance_delay_ms > 0:
                delay_ms = min(self.initial_rebalance_delay_ms, rebalance_ms)
                self._join_ends_ms = now_ms + delay_ms
                self._initial_ends_ms = now_ms + rebalance_ms
            else:
                self._join_ends_ms = now_ms + rebalance_ms
                self._initial_ends_ms = None
            self._sync_ends_ms = None
            self.state = ClassicState.PREPARING
        return step + self._complete_if_all_joined(now_ms)

    def _complete_if_all_joined(self, now_ms: int) -> Step[GroupRecord]:
        if self.state is not ClassicState.PREPARING or self._initial_ends_ms is not None:
            return NOTHING
        if self.pending_members or not self.members.have_all_joined:
            return NOTHING
        return self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> Step[GroupRecord]:
        self.members.remove_absent()
        self._join_ends_ms = self._initial_ends_ms = None
        if self.members and not self.members.is_any_joining:
            # Only static members that have not joined remain, so wait for them for another rebalance timeout.
            self._join_ends_ms = now_ms + self.members.rebalance_timeout_ms()
            return NOTHING
        self.generation += 1
        if not self.members:
            self.state, self.protocol, self.leader = ClassicState.EMPTY, None, NO_MEMBER
            return Step((self._record(now_ms),))
        self.protocol = self.members.choose_protocol()
        leader = self.members.get(self.leader)
        if leader is None or leader.join_request is None:
            joined = (m.member_id for m in self.members.values() if m.join_request is not None)
            self.leader = next(joined)
        self.state = ClassicState.COMPLETING
        self._sync_ends_ms = now_ms + self.members.rebalance_timeout_ms()
        return Step(responses=self.members.begin_generation(self._joined, now_ms=now_ms))

    def handle_sync(
        self, request_id: RequestId, sync: SyncGroup, *, now_ms: int
    ) -> Step[GroupRecord]:
        """Handle SyncGroup. The response is sent when the leader's assignment has been written."""
        error = self._check_member(sync.member_id, sync.instance_id, sync.generation)
        if error is ErrorCode.NONE and self.state is ClassicState.PREPARING:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is ErrorCode.NONE and (
            (sync.protocol_type is not None and sync.protocol_type != self.protocol_type)
            or (sync.protocol is not None and sync.protocol != self.protocol)
        ):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is not ErrorCode.NONE:
            return respond(request_id, Synced(error=error))
        member = self.members[sync.member_id]
        member.begin_session(now_ms=now_ms)
        if self.state is ClassicState.STABLE:
            return respond(request_id, self._synced(member))
        step = member.await_sync(request_id)
        if sync.member_id != self.leader:
            return step
        if self._record_bytes(sync.assignments) > GROUP_BYTES_MAX:
            # Kafka responds with the same error.
            step += self.members.refuse_syncs(ErrorCode.UNKNOWN_SERVER_ERROR)
            return step + self._prepare(now_ms)
        self.state, self._sync_ends_ms = ClassicState.STABLE, None
        responses = self.members.assign(sync.assignments, self._synced, now_ms=now_ms)
        return step + Step((self._record(now_ms),), responses)

    def handle_heartbeat(self, heartbeat: Heartbeat, *, now_ms: int) -> ErrorCode:
        """Handle Heartbeat. Return REBALANCE_IN_PROGRESS if the member has to join again, or NONE, or another error."""
        error = self._check_member(heartbeat.member_id, heartbeat.instance_id, heartbeat.generation)
        if error is not ErrorCode.NONE:
            return error
        self.members[heartbeat.member_id].begin_session(now_ms=now_ms)
        preparing = self.state is ClassicState.PREPARING
        return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE

    def handle_leave(
        self, request_id: RequestId, leave: LeaveGroup, *, now_ms: int
    ) -> Step[GroupRecord]:
        """Handle LeaveGroup. The members are removed at once, and the group rebalances."""
        results: list[tuple[MemberId, str | None, ErrorCode]] = []
        step, removed = NOTHING, False
        for member_id, instance_id in leave.members:
            current = self.members.static_holder(instance_id)
            if current is not None:
                fenced = member_id not in (NO_MEMBER, current)
                error = ErrorCode.FENCED_INSTANCE_ID if fenced else ErrorCode.NONE
                member = None if fenced else self.members[current]
            elif instance_id is None and self.pending_members.use(member_id):
                error, member = ErrorCode.NONE, None
            else:
                member = self.members.get(member_id) if instance_id is None else None
                error = ErrorCode.NONE if member else ErrorCode.UNKNOWN_MEMBER_ID
            if member is not None:
                step += self._remove(member)
                removed = True
            results.append((member_id, instance_id, error))
        response = Response(request_id, Left(error=ErrorCode.NONE, members=tuple(results)))
        rebalance = self._after_removal(now_ms) if removed else self._complete_if_all_joined(now_ms)
        return step + rebalance + Step(responses=(response,))

    def tick(self, *, now_ms: int) -> Step[GroupRecord]:
        """Remove members whose session has expired, and continue a rebalance whose timeout has passed."""
        self.pending_members.expire(now_ms=now_ms)
        expired = [
            m for m in self.members.values() if m.session_ends_ms <= now_ms and not m.is_waiting
        ]
        step = NOTHING
        for member in expired:
            step += self._remove(member)
        if self.state is ClassicState.COMPLETING and self._is_over(self._sync_ends_ms, now_ms):
            late = [m for m in self.members.values() if m.sync_request is None]
            for member in late:
                step += self._remove(member)
            return step + self._prepare(now_ms) if self.members else step + self._empty(now_ms)
        if expired:
            step += self._after_removal(now_ms)
        if self.state is ClassicState.PREPARING and self._is_over(self._join_ends_ms, now_ms):
            step += self._complete_join(now_ms)
        else:
            step += self._complete_if_all_joined(now_ms)
        return step

    @staticmethod
    def _is_over(ends_ms: int | None, now_ms: int) -> bool:
        return ends_ms is not None and ends_ms <= now_ms

    def _after_removal(self, now_ms: int) -> Step[GroupRecord]:
        match self.state:
            case ClassicState.STABLE | ClassicState.COMPLETING:
                return self._prepare(now_ms) if self.members else self._empty(now_ms)
            case ClassicState.PREPARING if not self.members and not self.pending_members:
                return self._empty(now_ms)
            case ClassicState.PREPARING:
                return self._complete_if_all_joined(now_ms)
        return NOTHING

    def _empty(self, now_ms: int) -> Step[GroupRecord]:
        self._join_ends_ms = self._initial_ends_ms = self._sync_ends_ms = None
        self.generation += 1
        self.state, self.protocol, self.leader = ClassicState.EMPTY, None, NO_MEMBER
        return Step((self._record(now_ms),))

    def _remove(self, member: Member) -> Step[GroupRecord]:
        self.members.remove(member)
        return member.refuse_all(ErrorCode.UNKNOWN_MEMBER_ID)

    def check_commit(
        self, member_id: MemberId, instance_id: str | None, generation: int, *, now_ms: int
    ) -> ErrorCode:
        """Return NONE if the member may commit offsets now, or else an error code. A commit extends the session."""
        # A request without a generation comes from a consumer with manual assignment (`assign`), which is not a member.
        if generation < 0 and self.state is ClassicState.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and member_id == NO_MEMBER and instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self._check_member(member_id, instance_id, generation)
        if error is ErrorCode.NONE and self.state is ClassicState.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if error is ErrorCode.NONE:
            self.members[member_id].begin_session(now_ms=now_ms)
        return error

    def _check_member(
        self, member_id: MemberId, instance_id: str | None, generation: int
    ) -> ErrorCode:
        if instance_id is not None:
            current = self.members.static_holder(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != self.generation and not self._comes_from(member_id, generation):
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    def _comes_from(self, member_id: MemberId, epoch: int) -> bool:
        """Return whether `epoch` is the epoch that the member had in a consumer group before the group's migration.
        Requests may contain that epoch instead of the generation until all members have joined.
        """
        is_preparing = self.state is ClassicState.PREPARING
        return is_preparing and self.members[member_id].consumer_epoch == epoch

    def _joined(self, member: Member, *, skips: bool = False) -> Joined:
        leads = member.member_id == self.leader
        return Joined(
            error=ErrorCode.NONE,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            member_id=member.member_id,
            members=self.members.for_leader(self.protocol) if leads else (),
            skips_assignment=skips,
        )

    def _synced(self, member: Member) -> Synced:
        return Synced(
            error=ErrorCode.NONE,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            assignment=member.assignment,
        )

    def _record(self, now_ms: int) -> ClassicGroupRecord:
        state = ClassicGroupState(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader or None,
            state_timestamp_ms=now_ms,
            members=tuple(m.to_record(self.protocol) for m in self.members.values()),
        )
        return ClassicGroupRecord(group_id=self.group_id, state=state)

    def _record_bytes(self, assignments: Mapping[MemberId, bytes]) -> int:
        """Return the approximate size of the group's record with these assignments."""
        return sum(
            len(m.metadata(self.protocol)) + len(assignments.get(m.member_id, b""))
            for m in self.members.values()
        )

    def restore(self, state: ClassicGroupState) -> None:
        """Restore the group from its record. The caller must call `begin_sessions` next.

        If the state has members but no leader, the generation has no assignment, and all members have to join again.
        """
        self.generation, self.protocol_type = state.generation, state.protocol_type or None
        self.protocol, self.leader = state.protocol, state.leader or NO_MEMBER
        self.members = ClassicMembers(Member.from_record(m, state.protocol) for m in state.members)
        if not self.members:
            self.state = ClassicState.EMPTY
        elif state.leader:
            self.state = ClassicState.STABLE
        else:
            self.state = ClassicState.PREPARING

    def begin_sessions(self, *, now_ms: int) -> None:
        """Start the session timeout of each member and, in the state PreparingRebalance, the rebalance timeout. This is
        called after the group was loaded, or converted from a group of the consumer protocol.
        """
        self.members.begin_sessions(now_ms=now_ms)
        if self.state is ClassicState.PREPARING:
            self._join_ends_ms = now_ms + self.members.rebalance_timeout_ms()

    def due_ms(self) -> int:
        """Return the monotonic time of the earliest deadline. `tick` need not be called earlier, unless a request
        arrives.
        """
        ends = [m.session_ends_ms for m in self.members.values() if not m.is_waiting]
        ends += self.pending_members.values()
        ends += [at for at in (self._join_ends_ms, self._sync_ends_ms) if at is not None]
        return min(ends, default=NEVER_MS)
