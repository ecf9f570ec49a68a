"""The history of the simulated group members' operations, and the checks (P8, P9) that it must pass.

P8, offsets. Each partition of a group is a register: OffsetFetch reads it and OffsetCommit writes it. Each commit
attempt has its own id, so a read shows which attempt it returned. The register must be linearizable. An attempt of
unknown outcome may take effect at any time after it began, but not after its epoch was superseded. So commits of old
generations are fenced, and a committed offset is neither lost nor goes back. Observers, which are in no group, may see
the state of up to one lease ago (rule R13 bounds staleness); members may not.

P9, owners. In one epoch a partition has one owner. Over time, a member owns a partition from the moment when it learns
of the assignment until the beginning of its last request that the coordinator accepted without revoking the partition.
Such tenures of two members must not overlap.

Linearizability of registers with unique writes is decided with zones (Gibbons and Korach, *Testing Shared Memories*,
1997): the zone of a value spans from the first end to the last beginning among its write and its reads; forward zones
must not overlap, and no backward zone may lie inside of a forward one.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from odradek_protocol.identity import GroupId, TopicPartition
from tests.sim.history import Outcome, Violation

NEVER_US = 1 << 60


@dataclass(slots=True, kw_only=True)
class Commit:
    """One attempt to commit the offset of one partition."""

    group: GroupId
    partition: TopicPartition
    commit_id: str
    offset: int
    member_id: str  # the id of one membership; a removed member joins again with another id
    epoch: int  # epoch or generation
    began_us: int
    by: str
    ended_us: int = NEVER_US
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRead:
    """The result of OffsetFetch for one partition. `commit_id` is empty if nothing is committed."""

    group: GroupId
    partition: TopicPartition
    commit_id: str
    offset: int
    began_us: int
    ended_us: int
    by: str


@dataclass(slots=True, kw_only=True)
class Tenure:
    """A member owned a partition in one epoch, at least from `gained_us` to `confirmed_us`."""

    group: GroupId
    partition: TopicPartition
    epoch: int
    by: str  # the member's name; for static members the instance id
    gained_us: int
    confirmed_us: int = -1


# Group, partition, epoch, member, and the number of the member's join without state.
_TenureKey: TypeAlias = tuple[GroupId, TopicPartition, int, str, int]


@dataclass(slots=True)
class GroupHistory:
    """All operations of the group members of a run."""

    commits: list[Commit] = field(default_factory=list)
    reads: list[OffsetRead] = field(default_factory=list)
    tenures: dict[_TenureKey, Tenure] = field(default_factory=dict)
    # Groups that change between the classic and the consumer protocol. In these groups, a member may get the
    # same epoch as an earlier member, which has left.
    mixed: frozenset[GroupId] = frozenset()
    violations: list[Violation] = field(default_factory=list)  # those found during the run
    # The time at which a client first received a generation, and at which a member first received an epoch.
    _generations: dict[GroupId, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    _epochs: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    _synced: dict[tuple[GroupId, int, str], frozenset[TopicPartition]] = field(default_factory=dict)
    _group_epochs: set[tuple[GroupId, int]] = field(default_factory=set)
    _lives: Counter[tuple[GroupId, str]] = field(default_factory=Counter)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __len__(self) -> int:
        return len(self.commits) + len(self.reads)

    def next_id(self) -> str:
        return f"c{next(self._ids)}"

    @property
    def rebalances(self) -> int:
        """The number of generations and epochs that members have received."""
        return len(self._group_epochs)

    # --- reports of members -----------------------------------------------------------------------

    def begins_anew(self, group: GroupId, *, by: str) -> None:
        """Record that a member joins without any state. The member owns no partitions now, even if its epoch number
        occurs again.
        """
        self._lives[group, by] += 1

    def generation_synced(
        self,
        group: GroupId,
        generation: int,
        owned: frozenset[TopicPartition],
        *,
        by: str,
        is_static: bool,
        began_us: int,
        ended_us: int,
        member_id: str = "",
    ) -> None:
        """Record that a classic member received its assignment, which shows that the generation was committed."""
        self._epochs[member_id].setdefault(generation, ended_us)
        if group in self.mixed:
            self._synced[group, generation, by] = owned
        else:
            self._generations[group].setdefault(generation, ended_us)
        self._group_epochs.add((group, generation))
        before = self._synced.setdefault((group, generation, by), owned)
        if before != owned:
            text = (
                f"{group} generation {generation}: {by} had {_told(before)}, now has {_told(owned)}"
            )
            name = "static-member-moved" if is_static else "assignment-changed"
            self.violations.append(Violation(name=name, text=text))
        self._gain(group, generation, owned, by, ended_us)

    def confirmed(self, group: GroupId, generation: int, *, by: str, at_us: int) -> None:
        """Record that a heartbeat or commit that began at `at_us` was accepted."""
        self._keep(group, generation, self._synced[group, generation, by], by, at_us)

    def epoch_told(
        self,
        group: GroupId,
        epoch: int,
        owned: frozenset[TopicPartition],
        *,
        kept: frozenset[TopicPartition],
        by: str,
        member_id: str,
        began_us: int,
        ended_us: int,
    ) -> None:
        """Record that a member of the consumer protocol received its epoch and perhaps partitions."""
        self._epochs[member_id].setdefault(epoch, ended_us)
        self._group_epochs.add((group, epoch))
        self._gain(group, epoch, owned, by, ended_us)
        self._keep(group, epoch, kept, by, began_us)

    def _gain(
        self, group: GroupId, epoch: int, owned: Iterable[TopicPartition], by: str, at_us: int
    ) -> None:
        for partition in owned:
            self.tenures.setdefault(
                (group, partition, epoch, by, self._lives[group, by]),
                Tenure(group=group, partition=partition, epoch=epoch, by=by, gained_us=at_us),
            )

    def _keep(
        self, group: GroupId, epoch: int, kept: Iterable[TopicPartition], by: str, at_us: int
    ) -> None:
        for partition in kept:
            tenure = self.tenures.get((group, partition, epoch, by, self._lives[group, by]))
            if tenure is not None:
                tenure.confirmed_us = max(tenure.confirmed_us, at_us)

    # --- ends of epochs ---------------------------------------------------------------------------

    def superseded_us(self, commit: Commit) -> int:
        """Return the time from which no commit of this commit's epoch may be accepted, as far as any client knows.

        A generation ends for all members at once. In a group of the consumer protocol, each member moves to the next
        epoch by itself, or loses the partition to another member. In a group that changes its protocol, epochs restart
        after the group was empty, so only the member's own epochs count.
        """
        generations = self._generations.get(commit.group)
        if generations is not None:
            ends = (at for number, at in generations.items() if number > commit.epoch)
        else:
            told = self._epochs.get(commit.member_id, {})
            ends = (at for number, at in told.items() if number > commit.epoch)
        if commit.group in self.mixed:
            return min(ends, default=NEVER_US)
        lost = (
            tenure.gained_us
            for tenure in self.tenures.values()
            if tenure.partition == commit.partition
            and tenure.group == commit.group
            and tenure.epoch > commit.epoch
            and tenure.by != commit.by
        )
        return min((*ends, *lost), default=NEVER_US)


def check_groups(
    history: GroupHistory,
    *,
    observers: Iterable[str] = (),
    staleness_us: int = 0,
    ignored: Iterable[GroupId] = (),
) -> list[Violation]:
    """Check the history of a run, and return the violations.

    `observers` may see the state of `staleness_us` ago. `ignored` has the groups whose partition of
    `__consumer_offsets` lost more copies at once than its durability survives.
    """
    found = list(history.violations)
    skipped, lax = set(ignored), set(observers)
    _one_owner_an_epoch(history, found)
    _tenures_do_not_overlap(history, found)
    registers: dict[tuple[GroupId, TopicPartition], _Register] = defaultdict(_Register)
    for commit in history.commits:
        registers[commit.group, commit.partition].commits.append(commit)
    for read in history.reads:
        begins = read.began_us - staleness_us if read.by in lax else read.began_us
        registers[read.group, read.partition].reads.append((begins, read))
    for (group, partition), register in registers.items():
        if group not in skipped:
            register.judge(f"{group} {partition}", history, found)
    return found


def _one_owner_an_epoch(history: GroupHistory, found: list[Violation]) -> None:
    owners: dict[tuple[GroupId, TopicPartition, int], str] = {}
    for group, partition, epoch, by, _ in history.tenures:
        if group in history.mixed:
            continue
        other = owners.setdefault((group, partition, epoch), by)
        if other != by:
            text = f"{group} {partition} in epoch {epoch}: {other} and {by}"
            found.append(Violation(name="two-owners", text=text))


def _tenures_do_not_overlap(history: GroupHistory, found: list[Violation]) -> None:
    by_partition: dict[tuple[GroupId, TopicPartition], list[Tenure]] = defaultdict(list)
    for tenure in history.tenures.values():
        if tenure.confirmed_us >= tenure.gained_us:
            by_partition[tenure.group, tenure.partition].append(tenure)
    for tenures in by_partition.values():
        tenures.sort(key=lambda t: t.gained_us)
        for at, tenure in enumerate(tenures):
            for later in tenures[at + 1 :]:
                if later.gained_us > tenure.confirmed_us:
                    break
                if later.by != tenure.by:
                    text = f"{tenure} and {later}"
                    found.append(Violation(name="owners-overlap", text=text))


@dataclass(slots=True)
class _Zone:
    """The span from the first end to the last beginning among the write and the reads of one value."""

    first_end: int
    last_beginning: int

    @property
    def is_forward(self) -> bool:
        return self.first_end < self.last_beginning


@dataclass(slots=True)
class _Register:
    commits: list[Commit] = field(default_factory=list)
    reads: list[tuple[int, OffsetRead]] = field(default_factory=list)

    def judge(self, name: str, history: GroupHistory, found: list[Violation]) -> None:
        known = {commit.commit_id: commit for commit in self.commits}
        seen: dict[str, list[tuple[int, OffsetRead]]] = defaultdict(list)
        for begins, read in self.reads:
            seen[read.commit_id].append((begins, read))
        zones: list[tuple[str, _Zone]] = []
        for commit_id, reads in seen.items():
            commit = known.get(commit_id)
            if commit_id and commit is None:
                found.append(Violation(name="unknown-offset", text=f"{name}: {reads[0][1]}"))
            if commit is None:
                zones.append(("nothing", _zone(-1, -1, reads)))
        for commit_id, commit in known.items():
            self._judge_commit(name, commit, seen.get(commit_id, []), history, zones, found)
        _judge_zones(name, zones, found)

    def _judge_commit(
        self,
        name: str,
        commit: Commit,
        reads: list[tuple[int, OffsetRead]],
        history: GroupHistory,
        zones: list[tuple[str, _Zone]],
        found: list[Violation],
    ) -> None:
        if commit.outcome is Outcome.FAIL:
            if reads:
                found.append(Violation(name="refused-offset", text=f"{name}: {reads[0][1]}"))
            return
        if commit.outcome is Outcome.UNKNOWN and not reads:
            return
        over_us = history.superseded_us(commit)
        if over_us < commit.began_us:
            text = f"{name}: {commit} was accepted, but its epoch ended at {over_us}"
            found.append(Violation(name="commit-of-an-old-epoch", text=text))
        if any(read.ended_us < commit.began_us for _, read in reads):
            found.append(Violation(name="offset-from-the-future", text=f"{name}: {commit}"))
        ended_us = commit.ended_us if commit.outcome is Outcome.OK else NEVER_US
        zones.append((str(commit), _zone(commit.began_us, min(ended_us, over_us), reads)))


def _zone(began_us: int, ended_us: int, reads: list[tuple[int, OffsetRead]]) -> _Zone:
    return _Zone(
        min([ended_us, *(read.ended_us for _, read in reads)]),
        max([began_us, *(begins for begins, _ in reads)]),
    )


def _judge_zones(name: str, zones: list[tuple[str, _Zone]], found: list[Violation]) -> None:
    forward = sorted(
        ((z.first_end, z.last_beginning, text) for text, z in zones if z.is_forward),
    )
    for (_, ends, text), (begins, _, other) in itertools.pairwise(forward):
        if begins < ends:
            found.append(
                Violation(name="offset-went-back", text=f"{name}: {text} was read after {other}")
            )
    for text, zone in zones:
        if zone.is_forward:
            continue
        for begins, ends, other in forward:
            if begins < zone.last_beginning and zone.first_end < ends:
                found.append(
                    Violation(
                        name="offset-lost", text=f"{name}: {other} was read instead of {text}"
                    )
                )
                break


def _told(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(sorted(map(str, partitions))) or "nothing"
