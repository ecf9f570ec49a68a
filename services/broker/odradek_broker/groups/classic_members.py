"""The members of a classic group, and what they agree on.

A member is soft state: its session, and the join or sync that it waits in, are known only to the coordinator that
leads the group's partition. What is written of it is a `ClassicMember` in the record of a generation.

Invariants: a member waits for at most one join and one sync; an instance id belongs to one member, the latest one that
joined with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from odradek_broker.groups.records import ClassicMember
from odradek_broker.groups.step import RequestId
from odradek_protocol.identity import MemberId

NO_MEMBER = MemberId("")
NEVER_MS = 1 << 62


class ClassicState(Enum):
    """The state of a classic group, under the names that Kafka describes it by."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, kw_only=True)
class Member:
    """A member, and the requests that it waits in."""

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
    """Its member epoch, if it was in a consumer group until the rebalance that is under way."""

    @classmethod
    def from_record(cls, written: ClassicMember, protocol: str | None) -> Member:
        """Load a member; its session has yet to begin."""
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
        """Whether it waits for the others, in a join or a sync. Some libraries send no heartbeats meanwhile."""
        return self.join_request is not None or self.sync_request is not None

    def metadata(self, protocol: str | None) -> bytes:
        """Return what the member sent for that protocol."""
        return next((m for name, m in self.protocols if name == protocol), b"")


class ClassicMembers(Mapping[MemberId, Member]):
    """The members of one group in the order in which they joined, and the static ones by instance id."""

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
        """Let a member in; from now on its instance id is its own."""
        self._by_id[member.member_id] = member
        if member.instance_id is not None:
            self._statics[member.instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        del self._by_id[member.member_id]
        if self.static_holder(member.instance_id) == member.member_id:
            assert member.instance_id is not None, member
            del self._statics[member.instance_id]

    def static_holder(self, instance_id: str | None) -> MemberId | None:
        """Return the member of that instance id; None without one."""
        return self._statics.get(instance_id) if instance_id is not None else None

    def shared_protocols(self, *, without: MemberId = NO_MEMBER) -> set[str]:
        """Return the protocols that all members but one name; there must be such members."""
        named = ({n for n, _ in m.protocols} for m in self.values() if m.member_id != without)
        return set.intersection(*named)

    def choose_protocol(self) -> str:
        """Return the shared protocol that most members name first among the shared ones."""
        shared = self.shared_protocols() if self else set()
        votes = Counter(
            next(name for name, _ in m.protocols if name in shared) for m in self.values() if shared
        )
        return max(sorted(votes), key=lambda name: votes[name]) if votes else ""

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout that any member asks for."""
        return max((m.rebalance_timeout_ms for m in self.values()), default=0)

    def metadata_bytes(self, *, without: MemberId) -> int:
        """Return the size of what all members but one sent for all of their protocols."""
        others = (m for m in self.values() if m.member_id != without)
        return sum(len(metadata) for m in others for _, metadata in m.protocols)

    def is_any_joining(self) -> bool:
        return any(m.join_request is not None for m in self.values())
