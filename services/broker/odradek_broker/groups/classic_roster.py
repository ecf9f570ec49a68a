"""The members of a classic group: who they are, what they agree on, what they are told, and how they are kept.

Soft state (sessions, who has joined, who waits) lives only here, at the coordinator that leads the group's
partition; a new coordinator starts from the last generation that was written, with all members given a whole
session to show themselves. A generation that has members but no leader is one that nobody assigned: the group
came down from the consumer protocol, and a coordinator that loads it lets everyone join again.

Invariants: a member waits for at most one join and one sync; every waiting request is answered once; a static
member's instance id has one member id, the latest, and older ones are fenced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from odradek_broker.groups.messages import Joined, JoinedMember, JoinGroup, Synced
from odradek_broker.groups.records import (
    GROUP_BYTES_MAX,
    ClassicGroupRecord,
    ClassicGroupState,
    ClassicMember,
)
from odradek_broker.groups.step import NOTHING, RequestId, Step, answer
from odradek_protocol.identity import GroupId, MemberId
from odradek_protocol.kafka.error_codes import ErrorCode

NO_MEMBER = MemberId("")
NEVER_MS = 1 << 62


class ClassicState(Enum):
    """As the group is described to people, Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, kw_only=True)
class Member:
    """A member, and what it waits for."""

    member_id: MemberId
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    session_ends_ms: int
    assignment: bytes = b""
    join_request: RequestId | None = None
    sync_request: RequestId | None = None
    consumer_epoch: int | None = None  # of one that was in a consumer group until a moment ago

    @property
    def is_waiting(self) -> bool:
        """For the others, in a join or a sync: some libraries send no heartbeats meanwhile."""
        return self.join_request is not None or self.sync_request is not None

    def metadata(self, protocol: str | None) -> bytes:
        """What it said under that protocol."""
        return next((m for name, m in self.protocols if name == protocol), b"")


@dataclass(slots=True, kw_only=True)
class ClassicRoster:
    """See the module's essay. `now_ms` is the caller's monotonic clock."""

    group_id: GroupId
    members_max: int
    state: ClassicState = ClassicState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: MemberId = NO_MEMBER
    members: dict[MemberId, Member] = field(default_factory=dict)
    pending_members: dict[MemberId, int] = field(default_factory=dict)  # told their id; session end
    _statics: dict[str, MemberId] = field(default_factory=dict)
    _join_ends_ms: int | None = None  # PREPARING: when to go on with who is there
    _initial_ends_ms: int | None = (
        None  # PREPARING from EMPTY: the last moment of the initial delay
    )
    _sync_ends_ms: int | None = None  # COMPLETING: who has not synced by then is out

    # --- agreement ---------------------------------------------------------------------------

    def _refuse_join(self, join: JoinGroup) -> ErrorCode:
        known = join.member_id in self.members or join.member_id in self.pending_members
        if join.instance_id is not None and join.member_id != NO_MEMBER:
            current = self._statics.get(join.instance_id)
            if current is not None and current != join.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if join.member_id != NO_MEMBER and not known:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_new = join.member_id not in self.members and not (
            join.instance_id is not None and join.instance_id in self._statics
        )
        is_stranger = is_new and join.member_id == NO_MEMBER
        pending = len(self.pending_members) if is_stranger else 0
        if is_new and max(len(self.members), pending) >= self.members_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not join.protocols or not join.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        others = [m for m in self.members.values() if m.member_id != join.member_id]
        if others:
            if join.protocol_type != self.protocol_type:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            if not {name for name, _ in join.protocols} & self._shared_protocols(others):
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            said = sum(len(metadata) for m in others for _, metadata in m.protocols)
            if said + sum(len(metadata) for _, metadata in join.protocols) > GROUP_BYTES_MAX:
                return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _shared_protocols(self, members: list[Member]) -> set[str]:
        return set.intersection(*({name for name, _ in m.protocols} for m in members))

    def _choose_protocol(self) -> str:
        """The shared protocol that most members name first among the shared ones."""
        shared = self._shared_protocols(list(self.members.values()))
        votes = Counter(
            next(name for name, _ in m.protocols if name in shared)
            for m in self.members.values()
            if shared
        )
        return max(sorted(votes), key=lambda name: votes[name]) if votes else ""

    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asks for."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    # --- checks and answers -----------------------------------------------------------------

    def _check_member(
        self, member_id: MemberId, instance_id: str | None, generation: int
    ) -> ErrorCode:
        if instance_id is not None:
            current = self._statics.get(instance_id)
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
        """Whether the member still is where the consumer group left it: it keeps that until all joined."""
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
            members=tuple(
                JoinedMember(
                    member_id=m.member_id,
                    instance_id=m.instance_id,
                    metadata=m.metadata(self.protocol),
                )
                for m in self.members.values()
            )
            if leads
            else (),
            skips_assignment=skips,
        )

    def _synced(self, member: Member) -> Synced:
        return Synced(
            error=ErrorCode.NONE,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            assignment=member.assignment,
        )

    def take_joins(self) -> list[tuple[RequestId, JoinGroup]]:
        """The joins that wait, for who answers them in this group's stead."""
        taken: list[tuple[RequestId, JoinGroup]] = []
        for member in self.members.values():
            if member.join_request is None:
                continue
            join = JoinGroup(
                group_id=self.group_id,
                member_id=member.member_id,
                instance_id=member.instance_id,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocol_type=self.protocol_type or "",
                protocols=member.protocols,
                client_id=member.client_id,
                client_host=member.client_host,
                new_member_id=member.member_id,
                requires_known_member=False,
                may_skip_assignment=False,
            )
            taken.append((member.join_request, join))
            member.join_request = None
        return taken

    def interrupt_syncs(self, error: ErrorCode) -> Step:
        """Answer all syncs that wait."""
        step = NOTHING
        for member in self.members.values():
            step += self._supersede_sync(member, error)
        return step

    def _supersede_join(self, member: Member, error: ErrorCode) -> Step:
        if member.join_request is None:
            return NOTHING
        request_id, member.join_request = member.join_request, None
        return answer(request_id, Joined(error=error, member_id=member.member_id))

    def _supersede_sync(self, member: Member, error: ErrorCode) -> Step:
        if member.sync_request is None:
            return NOTHING
        request_id, member.sync_request = member.sync_request, None
        return answer(request_id, Synced(error=error))

    def _forget(self, member: Member) -> None:
        del self.members[member.member_id]
        if (
            member.instance_id is not None
            and self._statics.get(member.instance_id) == member.member_id
        ):
            del self._statics[member.instance_id]

    # --- written state ----------------------------------------------------------------------

    def _record(self, now_ms: int) -> ClassicGroupRecord:
        state = ClassicGroupState(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader or None,
            state_timestamp_ms=now_ms,
            members=tuple(
                ClassicMember(
                    member_id=m.member_id,
                    instance_id=m.instance_id,
                    client_id=m.client_id,
                    client_host=m.client_host,
                    rebalance_timeout_ms=m.rebalance_timeout_ms,
                    session_timeout_ms=m.session_timeout_ms,
                    subscription=m.metadata(self.protocol),
                    assignment=m.assignment,
                )
                for m in self.members.values()
            ),
        )
        return ClassicGroupRecord(group_id=self.group_id, state=state)

    def _record_bytes(self, assignments: Mapping[MemberId, bytes]) -> int:
        """About the size of the generation's record with these assignments."""
        return sum(
            len(m.metadata(self.protocol)) + len(assignments.get(m.member_id, b""))
            for m in self.members.values()
        )

    def restore(self, state: ClassicGroupState) -> None:
        """Begin from what was written; `begin_sessions` follows.

        With members but no leader, everyone has to join again: nobody assigned this generation.
        """
        self.generation, self.protocol_type = state.generation, state.protocol_type or None
        self.protocol, self.leader = state.protocol, state.leader or NO_MEMBER
        self.members = {
            m.member_id: Member(
                member_id=m.member_id,
                instance_id=m.instance_id,
                client_id=m.client_id,
                client_host=m.client_host,
                session_timeout_ms=m.session_timeout_ms,
                rebalance_timeout_ms=m.rebalance_timeout_ms,
                protocols=((state.protocol or "", m.subscription),),
                session_ends_ms=0,
                assignment=m.assignment,
            )
            for m in state.members
        }
        self._statics = {
            m.instance_id: m.member_id for m in state.members if m.instance_id is not None
        }
        if not self.members:
            self.state = ClassicState.EMPTY
        elif state.leader:
            self.state = ClassicState.STABLE
        else:
            self.state = ClassicState.PREPARING

    def begin_sessions(self, *, now_ms: int) -> None:
        """All is loaded: each member gets a whole session, and time to join again where that is due."""
        for member in self.members.values():
            member.session_ends_ms = now_ms + member.session_timeout_ms
        if self.state is ClassicState.PREPARING:
            self._join_ends_ms = now_ms + self.rebalance_timeout_ms()

    def due_ms(self) -> int:
        """Before then, time alone changes nothing."""
        ends = [m.session_ends_ms for m in self.members.values() if not m.is_waiting]
        ends += self.pending_members.values()
        ends += [at for at in (self._join_ends_ms, self._sync_ends_ms) if at is not None]
        return min(ends, default=NEVER_MS)
