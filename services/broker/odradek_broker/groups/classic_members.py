"""The members of a classic group, and the protocol that they share.

Most of a member is kept in memory only: only the coordinator that leads the group's partition knows its session,
and the join or sync that waits for a response. The record of a generation has a `ClassicMember` for each member.

Invariants: at most one join and one sync of a member wait for a response; an instance id belongs to one member, the
latest one that joined with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from odradek_broker.coordinator_step import NOTHING, RequestId, Response, Step, respond
from odradek_broker.groups.messages import Joined, JoinedMember, JoinGroup, Synced
from odradek_broker.groups.records import ClassicMember
from odradek_protocol.identity import GroupId, MemberId
from odradek_protocol.kafka.error_codes import ErrorCode

NO_MEMBER = MemberId("")
NEVER_MS = 1 << 62
PENDING_MEMBERS_MAX: Final = 1_000
"""The most member ids of one group that clients were given and have not used yet."""


class ClassicState(Enum):
    """The state of a classic group. The values are the names that Kafka's DescribeGroups shows."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, kw_only=True)
class Member:
    """A member, with its JoinGroup and its SyncGroup that wait for a response."""

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
    consumer_epoch: int | None = None
    """The epoch that the member had in a consumer group, if the present rebalance made that group a classic one."""

    @classmethod
    def from_join(
        cls, join: JoinGroup, member_id: MemberId, *, assignment: bytes = b"", now_ms: int
    ) -> Member:
        """Return the member that a join describes, with this id; its session begins now."""
        return cls(
            member_id=member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            protocols=join.protocols,
            session_ends_ms=now_ms + join.session_timeout_ms,
            assignment=assignment,
        )

    @classmethod
    def from_record(cls, written: ClassicMember, protocol: str | None) -> Member:
        """Return the member that a record describes; the caller begins its session."""
        return cls(
            member_id=written.member_id,
            instance_id=written.instance_id,
            client_id=written.client_id,
            client_host=written.client_host,
            session_timeout_ms=written.session_timeout_ms,
            rebalance_timeout_ms=written.rebalance_timeout_ms,
            protocols=((protocol or "", written.subscription),),
            session_ends_ms=0,
            assignment=written.assignment,
        )

    def to_record(self, protocol: str | None) -> ClassicMember:
        return ClassicMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=self.assignment,
        )

    def update(self, join: JoinGroup, *, now_ms: int) -> None:
        """Update the member from a repeated join, and begin a new session."""
        self.protocols = join.protocols
        self.client_id, self.client_host = join.client_id, join.client_host
        self.session_timeout_ms = join.session_timeout_ms
        self.rebalance_timeout_ms = join.rebalance_timeout_ms
        self.begin_session(now_ms=now_ms)

    def begin_session(self, *, now_ms: int) -> None:
        """Begin a new session, because a request of the member arrived, or a response to it is sent."""
        self.session_ends_ms = now_ms + self.session_timeout_ms

    def await_join(self, request_id: RequestId) -> Step[Any]:
        """Let a join wait for the other members. If another join of the member waits already, refuse that one."""
        superseded = self.refuse_join(ErrorCode.UNKNOWN_MEMBER_ID)
        self.join_request = request_id
        return superseded

    def await_sync(self, request_id: RequestId) -> Step[Any]:
        """Let a sync wait for the assignment. If another sync of the member waits already, refuse that one."""
        superseded = self.refuse_sync(ErrorCode.UNKNOWN_MEMBER_ID)
        self.sync_request = request_id
        return superseded

    def refuse_join(self, error: ErrorCode) -> Step[Any]:
        """Respond with an error to the join that waits, if there is one."""
        if self.join_request is None:
            return NOTHING
        request_id, self.join_request = self.join_request, None
        return respond(request_id, Joined(error=error, member_id=self.member_id))

    def refuse_sync(self, error: ErrorCode) -> Step[Any]:
        """Respond with an error to the sync that waits, if there is one."""
        if self.sync_request is None:
            return NOTHING
        request_id, self.sync_request = self.sync_request, None
        return respond(request_id, Synced(error=error))

    def refuse_all(self, error: ErrorCode) -> Step[Any]:
        """Respond with an error to the join and to the sync that wait."""
        return self.refuse_join(error) + self.refuse_sync(error)

    @property
    def is_waiting(self) -> bool:
        """Whether a join or sync of the member waits for other members. Some client libraries send no heartbeats during
        that time.
        """
        return self.join_request is not None or self.sync_request is not None

    def metadata(self, protocol: str | None) -> bytes:
        """Return the metadata that the member sent for this protocol; empty if it does not support it."""
        return next((m for name, m in self.protocols if name == protocol), b"")


class PendingMembers(Mapping[MemberId, int]):
    """Member ids that clients were given and have not used yet, with the time at which each one expires (KIP-394)."""

    __slots__ = ("_ends_ms",)

    def __init__(self, ends_ms: Mapping[MemberId, int] | None = None) -> None:
        self._ends_ms: dict[MemberId, int] = dict(ends_ms or {})

    def __getitem__(self, member_id: MemberId) -> int:
        return self._ends_ms[member_id]

    def __iter__(self) -> Iterator[MemberId]:
        return iter(self._ends_ms)

    def __len__(self) -> int:
        return len(self._ends_ms)

    def hand_out(self, member_id: MemberId, *, ends_ms: int) -> None:
        """Record a member id that a client is given. If there are too many, the oldest one is removed; its client may
        ask for another.
        """
        while len(self._ends_ms) >= PENDING_MEMBERS_MAX:
            del self._ends_ms[next(iter(self._ends_ms))]
        self._ends_ms[member_id] = ends_ms

    def use(self, member_id: MemberId) -> bool:
        """Remove an id, because its client joins with it or leaves. Returns whether a client was given this id."""
        return self._ends_ms.pop(member_id, None) is not None

    def expire(self, *, now_ms: int) -> None:
        """Remove the ids whose time has passed."""
        for member_id in [m for m, ends_ms in self._ends_ms.items() if ends_ms <= now_ms]:
            del self._ends_ms[member_id]


class ClassicMembers(Mapping[MemberId, Member]):
    """The members of one group by member id, in the order in which they joined, and the static members by
    instance id.
    """

    __slots__ = ("_by_id", "_statics")

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self._by_id: dict[MemberId, Member] = {}
        self._statics: dict[str, MemberId] = {}
        for member in members:
            self.add(member)

    def __getitem__(self, member_id: MemberId) -> Member:
        return self._by_id[member_id]

    def __iter__(self) -> Iterator[MemberId]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, member: Member) -> None:
        """Add a member. Its instance id belongs to it from now on."""
        self._by_id[member.member_id] = member
        if member.instance_id is not None:
            self._statics[member.instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        del self._by_id[member.member_id]
        if self.static_holder(member.instance_id) == member.member_id:
            assert member.instance_id is not None, member
            del self._statics[member.instance_id]

    def static_holder(self, instance_id: str | None) -> MemberId | None:
        """Return the id of the member with this instance id; None if there is none."""
        return self._statics.get(instance_id) if instance_id is not None else None

    def shared_protocols(self, *, without: MemberId = NO_MEMBER) -> set[str]:
        """Return the protocols that all members except `without` support. There must be at least one such member."""
        supported = ({n for n, _ in m.protocols} for m in self.values() if m.member_id != without)
        return set.intersection(*supported)

    def choose_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all members support."""
        shared = self.shared_protocols() if self else set()
        votes = Counter(
            next(name for name, _ in m.protocols if name in shared) for m in self.values() if shared
        )
        return max(sorted(votes), key=lambda name: votes[name]) if votes else ""

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of all members."""
        return max((m.rebalance_timeout_ms for m in self.values()), default=0)

    def metadata_bytes(self, *, without: MemberId) -> int:
        """Return the size of the metadata of all protocols of all members except `without`."""
        others = (m for m in self.values() if m.member_id != without)
        return sum(len(metadata) for m in others for _, metadata in m.protocols)

    @property
    def is_any_joining(self) -> bool:
        """Whether the join of any member waits for the others."""
        return any(m.join_request is not None for m in self.values())

    @property
    def have_all_joined(self) -> bool:
        """Whether the joins of all members wait, so that the rebalance is complete."""
        return all(m.join_request is not None for m in self.values())

    def remove_absent(self) -> None:
        """Remove the dynamic members that have not joined. A static member may come back within its session."""
        for member in [m for m in self.values() if m.join_request is None]:
            if member.instance_id is None:
                self.remove(member)

    def begin_generation(
        self, joined: Callable[[Member], Joined], *, now_ms: int
    ) -> tuple[Response, ...]:
        """Respond to the joins that wait. No member has an assignment in the new generation yet."""
        responses = []
        for member in self.values():
            member.assignment, member.consumer_epoch = b"", None
            if member.join_request is not None:
                responses.append(Response(member.join_request, joined(member)))
                member.join_request = None
                member.begin_session(now_ms=now_ms)
        return tuple(responses)

    def assign(
        self,
        assignments: Mapping[MemberId, bytes],
        synced: Callable[[Member], Synced],
        *,
        now_ms: int,
    ) -> tuple[Response, ...]:
        """Give each member what the leader assigned to it, and respond to the syncs that wait."""
        responses = []
        for member in self.values():
            member.assignment = bytes(assignments.get(member.member_id, b""))
            if member.sync_request is not None:
                responses.append(Response(member.sync_request, synced(member)))
                member.sync_request = None
                member.begin_session(now_ms=now_ms)
        return tuple(responses)

    def refuse_syncs(self, error: ErrorCode) -> Step[Any]:
        """Respond with an error to all syncs that wait."""
        step = NOTHING
        for member in self.values():
            step += member.refuse_sync(error)
        return step

    def take_joins(
        self, group_id: GroupId, protocol_type: str
    ) -> list[tuple[RequestId, JoinGroup]]:
        """Remove and return the joins that wait, so that a group of the other protocol can handle them."""
        taken: list[tuple[RequestId, JoinGroup]] = []
        for member in self.values():
            if member.join_request is None:
                continue
            join = JoinGroup(
                group_id=group_id,
                member_id=member.member_id,
                instance_id=member.instance_id,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocol_type=protocol_type,
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

    def begin_sessions(self, *, now_ms: int) -> None:
        """Begin a session for each member, after loading."""
        for member in self.values():
            member.begin_session(now_ms=now_ms)

    def come_from_consumer_group(
        self,
        *,
        protocols: Mapping[MemberId, tuple[tuple[str, bytes], ...]],
        epochs: Mapping[MemberId, int],
    ) -> None:
        """Restore the fields that a generation's record lacks, for members that were in a consumer group until now."""
        for member_id, member in self.items():
            member.protocols = protocols[member_id]
            member.consumer_epoch = epochs[member_id]

    def for_leader(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """Return the members in the form in which JoinGroup's response lists them for the leader, with this protocol's
        metadata.
        """
        return tuple(
            JoinedMember(
                member_id=m.member_id, instance_id=m.instance_id, metadata=m.metadata(protocol)
            )
            for m in self.values()
        )
