"""The members of a classic group, and the choice of their common protocol.

The session of a member, and its JoinGroup or SyncGroup request that waits for a response, are only in the memory of the
coordinator. The record of the group contains a `ClassicMember` for each member.

Invariants: at most one JoinGroup and one SyncGroup of a member wait for a response. An instance id belongs to the
member that joined with it last.
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
"""The maximum number of a group's pending member ids (`PendingMembers`)."""


class ClassicState(Enum):
    """The state of a classic group. The values are the names in Kafka's DescribeGroups response."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, kw_only=True)
class Member:
    """A member. `join_request` and `sync_request` are the member's requests that wait for a response, or None."""

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
    """The member's epoch in the consumer group that has just become this classic group; None after the rebalance."""

    @classmethod
    def from_join(
        cls, join: JoinGroup, member_id: MemberId, *, assignment: bytes = b"", now_ms: int
    ) -> Member:
        """Create a member from a JoinGroup request. Its session starts now."""
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
        """Create a member from the group's record. The caller must start its session."""
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
        """Update the member from another JoinGroup request, and start a new session."""
        self.protocols = join.protocols
        self.client_id, self.client_host = join.client_id, join.client_host
        self.session_timeout_ms = join.session_timeout_ms
        self.rebalance_timeout_ms = join.rebalance_timeout_ms
        self.begin_session(now_ms=now_ms)

    def begin_session(self, *, now_ms: int) -> None:
        """Start a new session, because a request of the member has arrived, or a response is sent to the member."""
        self.session_ends_ms = now_ms + self.session_timeout_ms

    def await_join(self, request_id: RequestId) -> Step[Any]:
        """Let a JoinGroup request wait for the other members. If the member's previous JoinGroup still waits, refuse
        that request.
        """
        superseded = self.refuse_join(ErrorCode.UNKNOWN_MEMBER_ID)
        self.join_request = request_id
        return superseded

    def await_sync(self, request_id: RequestId) -> Step[Any]:
        """Let a SyncGroup request wait for the assignment. If the member's previous SyncGroup still waits, refuse that
        request.
        """
        superseded = self.refuse_sync(ErrorCode.UNKNOWN_MEMBER_ID)
        self.sync_request = request_id
        return superseded

    def refuse_join(self, error: ErrorCode) -> Step[Any]:
        """Respond with an error to the waiting JoinGroup request, if there is one."""
        if self.join_request is None:
            return NOTHING
        request_id, self.join_request = self.join_request, None
        return respond(request_id, Joined(error=error, member_id=self.member_id))

    def refuse_sync(self, error: ErrorCode) -> Step[Any]:
        """Respond with an error to the waiting SyncGroup request, if there is one."""
        if self.sync_request is None:
            return NOTHING
        request_id, self.sync_request = self.sync_request, None
        return respond(request_id, Synced(error=error))

    def refuse_all(self, error: ErrorCode) -> Step[Any]:
        """Respond with an error to the waiting requests of the member."""
        return self.refuse_join(error) + self.refuse_sync(error)

    @property
    def is_waiting(self) -> bool:
        """Whether a request of the member waits for other members. The session cannot expire in that time, because some
        client libraries send no heartbeats while they wait.
        """
        return self.join_request is not None or self.sync_request is not None

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol, or b"" if the member does not support the protocol."""
        return next((m for name, m in self.protocols if name == protocol), b"")


class PendingMembers(Mapping[MemberId, int]):
    """Pending member ids, each with the monotonic time at which it expires. The coordinator has assigned these ids, but
    no client has joined with them yet (KIP-394).
    """

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
        """Add a member id that is assigned to a client. If there are too many pending ids, the oldest one is removed,
        and its client has to request another id.
        """
        while len(self._ends_ms) >= PENDING_MEMBERS_MAX:
            del self._ends_ms[next(iter(self._ends_ms))]
        self._ends_ms[member_id] = ends_ms

    def use(self, member_id: MemberId) -> bool:
        """Remove a member id, because its client joins or leaves. Return whether the id was pending."""
        return self._ends_ms.pop(member_id, None) is not None

    def expire(self, *, now_ms: int) -> None:
        """Remove the member ids that have expired."""
        for member_id in [m for m, ends_ms in self._ends_ms.items() if ends_ms <= now_ms]:
            del self._ends_ms[member_id]


class ClassicMembers(Mapping[MemberId, Member]):
    """The members of one group, by member id, in the order in which they joined. Static members can also be looked up
    by instance id.
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
        """Add a member. If the member has an instance id, the id belongs to this member from now on."""
        self._by_id[member.member_id] = member
        if member.instance_id is not None:
            self._statics[member.instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        del self._by_id[member.member_id]
        if self.static_holder(member.instance_id) == member.member_id:
            assert member.instance_id is not None, member
            del self._statics[member.instance_id]

    def static_holder(self, instance_id: str | None) -> MemberId | None:
        """Return the member id of the static member with this instance id, or None."""
        return self._statics.get(instance_id) if instance_id is not None else None

    def shared_protocols(self, *, without: MemberId = NO_MEMBER) -> set[str]:
        """Return the protocols that all members except `without` support. The group must have another member."""
        supported = ({n for n, _ in m.protocols} for m in self.values() if m.member_id != without)
        return set.intersection(*supported)

    def choose_protocol(self) -> str:
        """Return the protocol with the most votes. A member votes for its first protocol that all members support."""
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
        """Whether a JoinGroup request of at least one member waits for other members."""
        return any(m.join_request is not None for m in self.values())

    @property
    def have_all_joined(self) -> bool:
        """Whether JoinGroup requests of all members wait, so that the rebalance can be completed."""
        return all(m.join_request is not None for m in self.values())

    def remove_absent(self) -> None:
        """Remove the dynamic members that have not joined. Static members stay until their session expires."""
        for member in [m for m in self.values() if m.join_request is None]:
            if member.instance_id is None:
                self.remove(member)

    def begin_generation(
        self, joined: Callable[[Member], Joined], *, now_ms: int
    ) -> tuple[Response, ...]:
        """Respond to all waiting JoinGroup requests, and clear the assignments, because a new generation begins."""
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
        """Store the leader's assignments, and respond to all waiting SyncGroup requests."""
        responses = []
        for member in self.values():
            member.assignment = bytes(assignments.get(member.member_id, b""))
            if member.sync_request is not None:
                responses.append(Response(member.sync_request, synced(member)))
                member.sync_request = None
                member.begin_session(now_ms=now_ms)
        return tuple(responses)

    def refuse_syncs(self, error: ErrorCode) -> Step[Any]:
        """Respond with an error to all waiting SyncGroup requests."""
        step = NOTHING
        for member in self.values():
            step += member.refuse_sync(error)
        return step

    def take_joins(
        self, group_id: GroupId, protocol_type: str
    ) -> list[tuple[RequestId, JoinGroup]]:
        """Remove and return all waiting JoinGroup requests, because the group becomes a consumer group."""
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
        """Start the session of each member. This is called after a load or a migration."""
        for member in self.values():
            member.begin_session(now_ms=now_ms)

    def come_from_consumer_group(
        self,
        *,
        protocols: Mapping[MemberId, tuple[tuple[str, bytes], ...]],
        epochs: Mapping[MemberId, int],
    ) -> None:
        """Set the fields that the group's record does not contain, after the members were in a consumer group."""
        for member_id, member in self.items():
            member.protocols = protocols[member_id]
            member.consumer_epoch = epochs[member_id]

    def for_leader(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """Return the members for the response to the leader's JoinGroup, with the metadata for the protocol."""
        return tuple(
            JoinedMember(
                member_id=m.member_id, instance_id=m.instance_id, metadata=m.metadata(protocol)
            )
            for m in self.values()
        )
