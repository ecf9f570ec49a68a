"""The history of simulated transactional clients, and the checks that it must pass.

The names of the anomalies are Jepsen's.

The checker knows nothing of brokers. Its input is each transaction with the outcome that its client
learned, all polls of read_committed readers, all group offsets that were fetched, and at the end the
visible records of each replica (or of each of several readers). So it can check histories of the
simulator and of real clusters. Times are integers of one clock, in any unit; values are unique in a
run.

    aborted read (G1a)        a reader got a value of a transaction that is known to be aborted
    intermediate read (G1b)   a reader passed a transaction in a partition and saw only some values
    torn (G1b)                at the end, only some of a transaction's values are visible
    cycle (G1c)               transactions read from each other in a circle, by values or offsets
    precommitted read         a poll saw a value, although the commit was requested after the poll ended
    lost write                a commit or a copy was confirmed, but a value is not visible
    duplicate                 a value is visible twice, or an input has two visible copies
    wrong commit              no client requested a commit, but values are visible
    zombie write              a commit took effect that was requested after another process took over
    offset tear               offsets of a group moved without the copies of the inputs, or vice versa
    regressed offset          an offset of a group went back
    wrong sum                 amounts whose sum is 0 in each transaction do not add up to 0
    hanging LSO               the clients have stopped, but the LSO stays below the log end

`poll skip`, `nonmonotonic poll` and `inconsistent offsets` must not occur in any log, with or
without transactions. Writes of several transactions may interleave (G0), as in Kafka;
`interleaved` counts them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple, TypeAlias

from tests.sim.history import Violation

Partition: TypeAlias = Any  # whatever is hashable; a mapping is invariant in its keys
Value: TypeAlias = Hashable


class GroupPartition(NamedTuple):
    """A partition together with the group that consumes it."""

    group: str
    partition: Partition


class Fate(Enum):
    """The end of a transaction, as far as its client knows it.

    It is UNKNOWN if the client got no response, or none that decides between a commit and an abort.
    """

    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """A process got an identity (producer id and epoch) for a transactional id, which fences the processes before it.

    The responses of two takeovers may arrive in another order than that in which they were decided. `identity` is None
    for clients that do not show it.
    """

    transactional_id: str
    process: str
    asked_at: int
    told_at: int
    identity: tuple[int, int] | None = None

    def fences(self, owner: Takeover | None) -> bool:
        """Return whether this takeover was certainly decided after `owner`. True if the takeover of the owner was not
        recorded.
        """
        if owner is None:
            return True
        if self.identity is not None and owner.identity is not None:
            (producer_id, epoch), (owner_id, owner_epoch) = self.identity, owner.identity
            # Equal identities are a bug, but say nothing about the order.
            if producer_id == owner_id and epoch != owner_epoch:
                return epoch > owner_epoch
        return self.asked_at > owner.told_at


@dataclass(slots=True, kw_only=True, eq=False)
class Transaction:
    """One attempt to run a transaction.

    `copies` maps each value that a copy wrote to the value that it read. `positions` are the positions at which its
    reads began. `group` is the name for which each input must be copied once. `commit_asked_at` is None if the client
    requested an abort, or died before it requested anything.
    """

    transactional_id: str
    process: str = ""
    group: str = ""
    began_at: int = 0
    values: dict[Partition, list[Value]] = field(default_factory=lambda: defaultdict(list))
    copies: dict[Value, Value] = field(default_factory=dict)
    positions: dict[GroupPartition, int] = field(default_factory=dict)
    offsets: dict[GroupPartition, int] = field(default_factory=dict)
    commit_asked_at: int | None = None
    told_at: int | None = None
    fate: Fate = Fate.UNKNOWN

    @property
    def all_values(self) -> list[tuple[Partition, Value]]:
        return [(place, value) for place, values in self.values.items() for value in values]

    def __str__(self) -> str:
        values = {str(place): values for place, values in self.values.items()}
        return (
            f"{self.transactional_id} by {self.process} from {self.began_at}, commit requested at"
            f" {self.commit_asked_at}, {self.fate.value} at {self.told_at}: {values}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPoll:
    """The values that a read_committed reader got from `position` on. Its next read begins at `next_position`."""

    reader: str
    partition: Partition
    position: int
    next_position: int
    records: tuple[tuple[int, Value], ...]
    ended_at: int
    is_reset: bool = False  # whether the position is the log start, because the reader was below it


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetch:
    """The committed offset of a group, as a client fetched it."""

    place: GroupPartition
    offset: int
    asked_at: int
    ended_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalRead:
    """The visible records of one replica or reader at the end of the run: offset -> value.

    `everything` is visible to read_uncommitted. `last_stable` and `log_end` are -1 if they are unknown.
    """

    committed: Mapping[int, Value]
    everything: Mapping[int, Value]
    log_start: int = 0
    last_stable: int = -1
    log_end: int = -1


@dataclass(slots=True)
class TransactionHistory:
    """All operations of a run.

    `amounts` has the amounts of values; in each transaction they add up to zero. `completed` has the group and the
    input of each confirmed copy.
    """

    takeovers: list[Takeover] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    polls: list[CommittedPoll] = field(default_factory=list)
    fetches: list[OffsetFetch] = field(default_factory=list)
    amounts: dict[Value, int] = field(default_factory=dict)
    completed: list[tuple[str, Value]] = field(default_factory=list)


Finals: TypeAlias = Mapping[Partition, Sequence[FinalRead]]


def check(
    history: TransactionHistory,
    finals: Finals,
    final_offsets: Mapping[GroupPartition, int] | None = None,
) -> list[Violation]:
    """Check the history of a run, and return the violations.

    `final_offsets` has each partition that a group copies; the offset is 0 if none was committed.
    """
    return [*_Judge(history, finals, final_offsets or {}).violations()]


def interleaved(history: TransactionHistory, finals: Finals) -> int:
    """Return the number of visible transactions whose writes are interleaved with those of others (G0)."""
    return len(_Judge(history, finals, {}).interleaved())


class _Judge:
    def __init__(
        self,
        history: TransactionHistory,
        finals: Finals,
        final_offsets: Mapping[GroupPartition, int],
    ) -> None:
        self.history = history
        self.finals = finals
        self.final_offsets = final_offsets
        self.owner: dict[Value, Transaction] = {
            value: transaction
            for transaction in history.transactions
            for _, value in transaction.all_values
        }
        self.visible: dict[tuple[Partition, Value], int] = {}
        self.written: dict[tuple[Partition, Value], int] = {}
        for partition, reads in finals.items():
            for offset, value in reads[0].committed.items():
                self.visible.setdefault((partition, value), offset)
            for offset, value in reads[0].everything.items():
                self.written.setdefault((partition, value), offset)
        self.inputs_copied: dict[str, dict[Value, list[Value]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def violations(self) -> Iterator[Violation]:
        yield from self._final_reads()
        for transaction in self.history.transactions:
            yield from self._fate(transaction)
        yield from self._zombies()
        yield from self._polls()
        yield from self._cycles()
        yield from self._copies()
        yield from self._offsets()
        yield from self._sum()

    def _log_start(self, partition: Partition) -> int:
        return max((read.log_start for read in self.finals.get(partition, ())), default=0)

    def _is_visible(self, transaction: Transaction) -> bool:
        return any(place in self.visible for place in transaction.all_values)

    # Checks of the final reads.

    def _final_reads(self) -> Iterator[Violation]:
        for partition, reads in self.finals.items():
            log_start = self._log_start(partition)
            shown = [_above(read.committed, log_start) for read in reads]
            everything = [_above(read.everything, log_start) for read in reads]
            if any(other != shown[0] for other in shown) or any(
                other != everything[0] for other in everything
            ):
                yield Violation(name="inconsistent offsets", text=f"replicas of {partition} differ")
            offset_of: dict[Value, int] = {}
            for offset, value in sorted(shown[0].items()):
                if offset_of.setdefault(value, offset) != offset:
                    text = f"{value} in {partition} at {offset_of[value]} and at {offset}"
                    yield Violation(name="duplicate", text=text)
            for read in reads:
                if read.last_stable < read.log_end:
                    text = f"{partition} is stable up to {read.last_stable} of {read.log_end}"
                    yield Violation(name="hanging LSO", text=text)

    def _fate(self, transaction: Transaction) -> Iterator[Violation]:
        """Compare the visible values of a transaction with what its client learned."""
        seen: list[bool] = []
        for partition, value in transaction.all_values:
            place = (partition, value)
            # A value that is in no log may have been deleted, if the log start has moved.
            if place in self.written or place in self.visible or not self._log_start(partition):
                seen.append(place in self.visible)
        text = f"{transaction}: {seen}"
        if transaction.fate is Fate.COMMITTED:
            if not all(seen):
                yield Violation(name="lost write", text=text)
        elif transaction.commit_asked_at is None:
            if any(seen):
                yield Violation(name="wrong commit", text=text)
        elif transaction.fate is Fate.ABORTED:
            if any(seen):
                yield Violation(name="aborted read", text=text)
        elif any(seen) and not all(seen):
            yield Violation(name="torn", text=text)

    def _zombies(self) -> Iterator[Violation]:
        takeovers: dict[str, list[Takeover]] = defaultdict(list)
        for takeover in self.history.takeovers:
            takeovers[takeover.transactional_id].append(takeover)
        for transaction in self.history.transactions:
            asked_at = transaction.commit_asked_at
            if asked_at is None or not self._is_visible(transaction):
                continue
            of_id = takeovers[transaction.transactional_id]
            own = [
                takeover
                for takeover in of_id
                if takeover.process == transaction.process
                and takeover.told_at <= transaction.began_at
            ]
            owner = max(own, key=lambda takeover: takeover.told_at, default=None)
            for takeover in of_id:
                is_between = transaction.began_at < takeover.told_at < asked_at
                is_other = takeover.process != transaction.process
                if is_between and is_other and takeover.fences(owner):
                    text = f"{takeover} does not fence {transaction}"
                    yield Violation(name="zombie write", text=text)
                    break

    def _sum(self) -> Iterator[Violation]:
        if any(self._log_start(partition) for partition in self.finals):
            return
        amounts = self.history.amounts
        total = sum(
            amounts.get(value, 0)
            for reads in self.finals.values()
            for value in reads[0].committed.values()
        )
        if total:
            yield Violation(name="wrong sum", text=f"amounts add up to {total}")

    # Checks of polls.

    def _polls(self) -> Iterator[Violation]:
        polls: dict[tuple[str, Partition], list[CommittedPoll]] = defaultdict(list)
        for poll in self.history.polls:
            polls[poll.reader, poll.partition].append(poll)
        for (reader, partition), of_reader in polls.items():
            yield from self._order(of_reader)
            final = self.finals.get(partition)
            if final is None:
                continue
            committed = final[0].committed
            offsets = sorted(committed)
            seen = {value for poll in of_reader for _, value in poll.records}
            for poll in of_reader:
                yield from self._seen(poll, committed)
                yield from self._missed(poll, committed, offsets, seen, reader)

    def _order(self, polls: Iterable[CommittedPoll]) -> Iterator[Violation]:
        position: int | None = None
        for poll in polls:
            if position is not None and poll.position != position and not poll.is_reset:
                name = "poll skip" if poll.position > position else "nonmonotonic poll"
                text = f"{poll.reader} was at {position} of {poll.partition}, then {poll.position}"
                yield Violation(name=name, text=text)
            expected = poll.position
            for offset, _ in poll.records:
                if offset < expected:
                    text = f"{poll.reader} got {offset} of {poll.partition} at {expected}"
                    yield Violation(name="nonmonotonic poll", text=text)
                expected = offset + 1
            position = poll.next_position

    def _seen(self, poll: CommittedPoll, committed: Mapping[int, Value]) -> Iterator[Violation]:
        log_start = self._log_start(poll.partition)
        for offset, value in poll.records:
            owner = self.owner.get(value)
            text = f"{poll.reader} saw {value} at {offset} of {poll.partition}, of {owner}"
            asked_at = None if owner is None else owner.commit_asked_at
            if owner is not None and owner.fate is Fate.ABORTED:
                yield Violation(name="aborted read", text=text)
            elif owner is not None and (asked_at is None or asked_at > poll.ended_at):
                yield Violation(name="precommitted read", text=text)
            elif offset >= log_start and offset not in committed:
                yield Violation(
                    name="aborted read", text=f"{text}, but it is not visible at the end"
                )
            elif offset >= log_start and committed[offset] != value:
                text = f"{text}, but at the end there is {committed[offset]}"
                yield Violation(name="inconsistent offsets", text=text)

    def _missed(
        self,
        poll: CommittedPoll,
        committed: Mapping[int, Value],
        offsets: Sequence[int],
        seen: set[Value],
        reader: str,
    ) -> Iterator[Violation]:
        got = {offset for offset, _ in poll.records}
        first = bisect_left(offsets, poll.position)
        end = bisect_left(offsets, poll.next_position)
        for offset in offsets[first:end]:
            if offset in got:
                continue
            value = committed[offset]
            owner = self.owner.get(value)
            others = () if owner is None else owner.values.get(poll.partition, ())
            is_part = any(other in seen for other in others)
            text = f"{reader} passed {value} at {offset} of {poll.partition}, of {owner}"
            yield Violation(name="intermediate read" if is_part else "poll skip", text=text)

    # Checks of reads between transactions.

    def _cycles(self) -> Iterator[Violation]:
        edges: dict[Transaction, set[Transaction]] = defaultdict(set)
        wrote_offset: dict[tuple[GroupPartition, int], list[Transaction]] = defaultdict(list)
        committed = [t for t in self.history.transactions if self._is_visible(t)]
        for transaction in committed:
            for place, offset in transaction.offsets.items():
                wrote_offset[place, offset].append(transaction)
        for transaction in committed:
            for value in transaction.copies.values():
                owner = self.owner.get(value)
                if owner is not None:
                    edges[transaction].add(owner)
            for place, position in transaction.positions.items():
                writers = wrote_offset.get((place, position), [])
                if len(writers) == 1 and transaction.offsets.get(place) != position:
                    edges[transaction].add(writers[0])
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            yield Violation(name="cycle", text=" <- ".join(map(str, error.args[1])))

    def interleaved(self) -> set[Transaction]:
        found: set[Transaction] = set()
        for reads in self.finals.values():
            ended: set[Transaction] = set()
            before: Transaction | None = None
            for _, value in sorted(reads[0].committed.items()):
                owner = self.owner.get(value)
                if before is not None and owner is not before:
                    ended.add(before)
                if owner in ended:
                    found.add(owner)
                before = owner
        return found

    # Checks of copies and their groups' offsets.

    def _copies(self) -> Iterator[Violation]:
        for transaction in self.history.transactions:
            copied = self.inputs_copied[transaction.group]
            for partition, value in transaction.all_values:
                if value in transaction.copies and (partition, value) in self.visible:
                    copied[transaction.copies[value]].append(value)
        for group, copies in self.inputs_copied.items():
            for source, outputs in copies.items():
                if len(outputs) > 1:
                    text = f"{group} copied {source} to {outputs}"
                    yield Violation(name="duplicate", text=text)
        for group, source in dict.fromkeys(self.history.completed):
            if source not in self.inputs_copied[group]:
                text = f"{group} was told that {source} is copied, but it is not"
                yield Violation(name="lost write", text=text)
        for place, end in self.final_offsets.items():
            copied = self.inputs_copied[place.group]
            reads = self.finals.get(place.partition)
            for offset, value in () if reads is None else sorted(reads[0].committed.items()):
                if (offset < end) is not (value in copied):
                    done = "is" if value in copied else "is not"
                    text = f"{place} is at {end}, {value} at {offset} {done} copied"
                    yield Violation(name="offset tear", text=text)

    def _offsets(self) -> Iterator[Violation]:
        known: dict[GroupPartition, list[tuple[int, int]]] = defaultdict(list)  # (time, offset)
        for fetch in self.history.fetches:
            known[fetch.place].append((fetch.ended_at, fetch.offset))
        for transaction in self.history.transactions:
            if transaction.fate is Fate.COMMITTED and transaction.told_at is not None:
                for place, offset in transaction.offsets.items():
                    known[place].append((transaction.told_at, offset))
        highest: dict[GroupPartition, list[int]] = {}
        for place, when in known.items():
            when.sort()
            rising: list[int] = []
            for _, offset in when:
                rising.append(max(offset, rising[-1] if rising else 0))
            highest[place] = rising
        for fetch in self.history.fetches:
            count = bisect_left(known[fetch.place], (fetch.asked_at, -1))
            least = highest[fetch.place][count - 1] if count else 0
            if fetch.offset < least:
                text = f"{fetch.place} was at {least}, but then {fetch}"
                yield Violation(name="regressed offset", text=text)
        for place, end in self.final_offsets.items():
            if place in highest and end < highest[place][-1]:
                text = f"{place} was at {highest[place][-1]}, but at the end {end}"
                yield Violation(name="regressed offset", text=text)


def _above(shown: Mapping[int, Value], log_start: int) -> dict[int, Value]:
    return {offset: value for offset, value in shown.items() if offset >= log_start}
