"""A model of the metadata quorum: one committed log, and a leader that may be deposed.

Raft has its own simulator (`quorum/`). This model assumes Raft's guarantees, and uses all the freedom that they leave:
a proposal is committed when it has reached a majority of controllers; an isolated leader assumes for a while that it
still leads, and its proposals in that time are lost; after a crash of the leader it may be unknown that a proposal was
committed; members apply committed entries at their own pace; and a snapshot replaces old entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from odradek_protocol.identity import MetadataOffset, PartitionIndex, TopicId
from odradek_protocol.metadata.codec import encode_batch
from odradek_protocol.metadata.features import METADATA_VERSION_MAX
from odradek_protocol.metadata.image import MetadataImage, check_partition
from odradek_protocol.metadata.records import MetadataBatch, MetadataRecord
from odradek_protocol.metadata.snapshot import snapshot_bytes
from tests.sim.network import Network
from tests.sim.scheduler import MS, Process, Scheduler

ELECTION_MIN_US = 500 * MS
ELECTION_MAX_US = 1_000 * MS
RETRY_US = 30 * MS


class Member(Protocol):
    """The interface of a controller that the metadata log calls."""

    controller_id: int
    process: Process
    applied: int
    term: int | None  # the term in which it leads; None: it does not lead

    def lead(self, term: int) -> None:
        """Make this member the leader. The member has applied all committed entries."""

    def step_down(self) -> None:
        """Notify the member that it is no longer the leader."""

    def apply_committed(self) -> None:
        """Apply the entries that are committed and not applied yet."""


@dataclass(frozen=True)
class Entry:
    """One entry of the log. An entry without records is the no-op with which a leader begins its term."""

    term: int
    records: tuple[MetadataRecord, ...]

    @cached_property
    def payload(self) -> bytes:
        """The entry in the encoding of the network and the log."""
        if not self.records:
            return b""
        batch = MetadataBatch(controller_epoch=self.term, records=self.records)
        return encode_batch(batch, level=METADATA_VERSION_MAX)


@dataclass(slots=True)
class _Proposal:
    entry: Entry
    reached: set[int] = field(default_factory=set)


class MetadataLog:
    """The log, its leader, and the metadata image of all committed entries."""

    def __init__(self, scheduler: Scheduler, network: Network) -> None:
        self.scheduler = scheduler
        self.network = network
        self.members: dict[int, Member] = {}
        self.term = 0
        self.leader_id: int | None = None
        self.entries: list[Entry] = []
        self.image = MetadataImage()
        self.trimmed = 0  # entries below this index are only in the snapshot
        self.snapshot: bytes = b""
        self.on_committed: list[Callable[[int, Entry], None]] = []
        self._proposals: list[_Proposal] = []
        self._leaderless_since_us: int | None = 0
        self._patience_us = 0
        self._replicating = False

    def start(self) -> None:
        self._watch()

    # --- proposals --------------------------------------------------------------------------------

    def propose(self, member: Member, term: int, records: tuple[MetadataRecord, ...]) -> bool:
        """Append a proposal. Return False if this member knows already that it no longer leads.

        A proposal of a deposed leader that does not know this is accepted, but never committed.
        """
        if term != self.term:
            return not self._knows(member)
        proposal = _Proposal(Entry(term, records), {member.controller_id})
        self._proposals.append(proposal)
        self.scheduler.after(self.scheduler.between(200, 1500), self._replicate, term)
        return True

    def _replicate(self, term: int) -> None:
        if term != self.term or not self._proposals:
            return
        leader = self.members[self.leader_id] if self.leader_id is not None else None
        if leader is None or leader.term != term:
            return
        if leader.process.is_running:
            reached = {m.controller_id for m in self._reachable(leader)}
            if 2 * len(reached) > len(self.members):
                proposals, self._proposals = self._proposals, []
                for proposal in proposals:
                    self._commit(proposal.entry)
        if self._proposals:
            self.scheduler.after(RETRY_US, self._replicate, term)

    def _commit(self, entry: Entry) -> None:
        offset = MetadataOffset(len(self.entries))
        self.entries.append(entry)
        touched: set[tuple[TopicId, PartitionIndex]] = set()
        for record in entry.records:
            self.image.replay(offset, entry.term, record)
            topic_id, index = getattr(record, "topic_id", None), getattr(record, "partition", None)
            if topic_id is not None and index is not None:
                touched.add((topic_id, index))
        if not entry.records:
            self.image.advance(offset, entry.term)
        for topic_id, index in sorted(touched):
            state = self.image.partition(topic_id, index)
            if state is not None:
                check_partition(state, self.image.min_insync_replicas(state))
        for listener in self.on_committed:
            listener(offset, entry)
        for member in self.members.values():
            is_leader = member.controller_id == self.leader_id
            delay = 0 if is_leader else self.scheduler.between(300, 20 * MS)
            self.scheduler.after(delay, self._tell, member)

    def _tell(self, member: Member) -> None:
        if self._knows(member):
            member.process.deliver(self._apply, member)

    def _apply(self, member: Member) -> None:
        if member.applied < len(self.entries):
            member.apply_committed()

    # --- leadership -------------------------------------------------------------------------------

    def _reachable(self, member: Member) -> list[Member]:
        """Return the members that this member can reach, itself included."""
        return [
            other
            for other in self.members.values()
            if other.process.is_running
            and (
                other is member or self.network.both_ways(member.controller_id, other.controller_id)
            )
        ]

    def has_majority(self, member: Member) -> bool:
        return member.process.is_running and 2 * len(self._reachable(member)) > len(self.members)

    def _knows(self, member: Member) -> bool:
        """Return whether entries of the current leader reach this member."""
        if self.leader_id is None or not member.process.is_alive:
            return False
        leader = self.members[self.leader_id]
        return member is leader or (
            leader.process.is_running
            and self.network.both_ways(leader.controller_id, member.controller_id)
        )

    def _watch(self) -> None:
        """Every 50 ms, elect a leader if there is none, and send entries to members that are behind."""
        now_us = self.scheduler.now_us
        leader = self.members.get(self.leader_id) if self.leader_id is not None else None
        if leader is not None and leader.term == self.term and self.has_majority(leader):
            self._leaderless_since_us = None
        elif self._leaderless_since_us is None:
            self._leaderless_since_us = now_us
            self._patience_us = self.scheduler.between(ELECTION_MIN_US, ELECTION_MAX_US)
        elif now_us - self._leaderless_since_us >= self._patience_us:
            self._elect(None)
        for member in self.members.values():
            if self._knows(member) and member.applied < len(self.entries):
                member.process.deliver(self._apply, member)
        self.scheduler.after(50 * MS, self._watch)

    def _elect(self, wanted: int | None) -> None:
        able = [m for m in self.members.values() if self.has_majority(m)]
        if wanted is not None:
            able = [m for m in able if m.controller_id == wanted]
        if not able:
            return
        candidate = self.scheduler.random.choice(able)
        before = self.members.get(self.leader_id) if self.leader_id is not None else None
        self.term += 1
        self.leader_id = candidate.controller_id
        self._proposals = []
        self._leaderless_since_us = None
        self.scheduler.counters["controller elections"] += 1
        self.scheduler.note(f"controller {candidate.controller_id} leads term {self.term}")
        if before is not None:
            self._depose(before, self.scheduler.now_us + 1_500 * MS)
        self._commit(Entry(self.term, ()))
        candidate.process.deliver(self._lead, candidate, self.term)

    def _depose(self, member: Member, deadline_us: int) -> None:
        """Let the old leader learn of the new term, or step down at `deadline_us` because it has no majority."""
        if (
            member.controller_id == self.leader_id
            or self._knows(member)
            or self.scheduler.now_us >= deadline_us
        ):
            member.process.deliver(member.step_down)
        else:
            self.scheduler.after(50 * MS, self._depose, member, deadline_us)

    def _lead(self, member: Member, term: int) -> None:
        if term == self.term:
            self._apply(member)
            member.lead(term)

    def transfer(self, wanted: int) -> None:
        """Move the leadership to this member, if possible."""
        if wanted != self.leader_id:
            self._elect(wanted)

    # --- snapshots --------------------------------------------------------------------------------

    def trim(self) -> None:
        """Write a snapshot of the committed entries, and delete the entries that the snapshot contains."""
        if self.entries:
            self.trimmed = len(self.entries)
            self.snapshot = snapshot_bytes(self.image)
