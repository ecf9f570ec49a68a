"""The members of a classic group, and the protocol that they share.

Most of a member is soft state: only the coordinator that leads the group's partition knows its session, and the join or
sync that waits for a response. The record of a generation has a `ClassicMember` for each member.

Invariants: at most one join and one sync of a member wait for a response; an instance id belongs to one member, the
latest one that joined with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from odradek_broker.coordinator_step import RequestId
from odradek_broker.groups.records import ClassicMember
from odradek_protocol.identity import MemberId

NO_MEMBER = MemberId("")
NEVER_MS = 1 << 62


class ClassicState(Enum):
    """The state of a classic group. The values are the names that Kafka's DescribeGroups shows."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, kw_only=True)
class Member:
    """A member, and its join and sync that wait for a response."""

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
    """The member epoch that it had in a consumer group, if the rebalance under way made the group a classic one."""

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

    @property
    def is_waiting(self) -> bool:
        """Whether a join or sync of it waits for other members. Some libraries send no heartbeats meanwhile."""
        return self.join_request is not None or self.sync_request is not None

    def metadata(self, protocol: str | None) -> bytes:
        """Return the metadata that the member sent for this protocol; empty if it does not support it."""
        return next((m for name, m in self.protocols if name == protocol), b"")


class ClassicMembers(Mapping[MemberId, Member]):
    """The members of one group by member id, in the order in which they joined, and static ones by instance id."""

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
        """Return the protocols that all members except `without` support; there must be such members."""
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

    def is_any_joining(self) -> bool:
        return any(m.join_request is not None for m in self.values())
