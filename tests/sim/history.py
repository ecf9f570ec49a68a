"""The history of the simulated clients' operations, and the checks (P1-P6, P12, P17, P18) that it must pass.

The checker knows nothing of brokers. Its input is the operations of all clients, each with its outcome (`ok`; `fail`:
definitely not done; `unknown`), and at the end the records below the high watermark of each replica of each partition.
Names of violations follow Jepsen's kafka workload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

Partition = TypeVar("Partition")


class Outcome(Enum):
    """The outcome of an operation, as far as its client knows it."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(slots=True, kw_only=True)
class Send(Generic[Partition]):
    """One batch of one producer. Values are unique in a run."""

    client: int
    partition: Partition
    values: tuple[int, ...]
    producer_epoch: int
    base_sequence: int
    acks: int
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1
    is_refused_repeat: bool = False  # OUT_OF_ORDER_SEQUENCE_NUMBER for the oldest batch in flight
    is_invalid: bool = False  # whether a broker must refuse the batch
    made_ms: int = -1  # the timestamp of the records; -1: unknown
    keys: tuple[bytes, ...] = ()  # keys of the records, in a compacted topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(Generic[Partition]):
    """The result of a fetch at `position`: pairs of (offset, value), and the high watermark of the response."""

    client: int
    partition: Partition
    position: int
    records: tuple[tuple[int, int], ...]
    high_watermark: int
    reset_from: int = -1  # the old position, if it was below the log start


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest(Generic[Partition]):
    """An end offset that a leader reported to a client."""

    client: int
    partition: Partition
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup(Generic[Partition]):
    """The response to a ListOffsets request for a timestamp: an offset and the timestamp of its record, or
    -1 and -1.
    """

    client: int
    partition: Partition
    timestamp_ms: int
    offset: int
    found_ms: int
    log_start: int  # log start offset of the leader that responded


@dataclass(frozen=True, slots=True, kw_only=True)
class WentBack(Generic[Partition]):
    """A leader reported that its log diverged from a reader's at `end_offset`, below the reader's position."""

    client: int
    partition: Partition
    position: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A property that is violated, with Jepsen's name for the violation if there is one."""

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


Shown = Mapping[int, int]  # offset -> value, below one replica's high watermark


@dataclass(slots=True)
class History(Generic[Partition]):
    """All operations of a run, each list in the order in which the operations ended."""

    sends: list[Send[Partition]] = field(default_factory=list)
    polls: list[Poll[Partition]] = field(default_factory=list)
    latests: list[Latest[Partition]] = field(default_factory=list)
    lookups: list[Lookup[Partition]] = field(default_factory=list)
    went_back: list[WentBack[Partition]] = field(default_factory=list)
    producer_ids: list[int] = field(default_factory=list)  # producer ids from InitProducerId
    topics_acknowledged: list[str] = field(default_factory=list)
    topics_deleted: dict[str, Outcome] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sends) + len(self.polls) + len(self.latests)


def check(
    history: History[Partition],
    final: Mapping[Partition, Mapping[int, Shown]],
    *,
    ignored: Iterable[Partition] = (),
    topics_by_node: Mapping[int, Iterable[str]] | None = None,
    log_starts: Mapping[Partition, int] | None = None,
) -> list[Violation]:
    """Check the history of a run, and return the violations.

    `final` maps each partition and replica to the visible records. `ignored` has the partitions that lost more copies
    at once than their durability survives. `log_starts` has the offsets below which retention deleted records.
    """
    skipped = set(ignored)
    found: list[Violation] = []
    for partition, replicas in final.items():
        if partition in skipped:
            continue
        sends = [s for s in history.sends if s.partition == partition]
        polls = [p for p in history.polls if p.partition == partition]
        log = _one_value_each(partition, replicas, polls, found)
        is_compacted = any(s.keys for s in sends)
        if is_compacted:
            _latest_of_each_key_kept(sends, replicas, log, found)
        else:
            _nothing_lost(sends, log, (log_starts or {}).get(partition, 0), found)
        _repeats_recognized(sends, log, (log_starts or {}).get(partition, 0), found)
        _nothing_refused(sends, log, found)
        _no_duplicates(sends, log, found)
        _in_order(sends, log, found)
        _polls_follow(polls, found, has_gaps=is_compacted)
        _times_found([x for x in history.lookups if x.partition == partition], sends, log, found)
        for reader in (x for x in history.went_back if x.partition == partition):
            text = f"reader {reader.client} at {reader.position} was told that the logs diverge at {reader.end_offset}"
            found.append(Violation(name="lost-write", text=text))
        _watermarks_rise([x for x in history.latests if x.partition == partition], polls, found)
    _nothing_invalid(history, found)
    for producer_id, count in Counter(history.producer_ids).items():
        if count > 1:
            text = f"{producer_id} was assigned to {count} producers"
            found.append(Violation(name="producer-id-twice", text=text))
    _topics_are_there(history, topics_by_node or {}, found)
    return found


def _one_value_each(
    partition: object,
    replicas: Mapping[int, Shown],
    polls: Iterable[Poll[Partition]],
    found: list[Violation],
) -> dict[int, int]:
    """Check P2: an offset always has the same value, at each replica and for each reader."""
    log: dict[int, int] = {}
    views = [(f"replica {r}", shown.items()) for r, shown in replicas.items()]
    views += [(f"reader {p.client}", p.records) for p in polls]  # type: ignore[misc]
    for who, items in views:
        for offset, value in items:
            if log.setdefault(offset, value) != value:
                text = f"{partition} offset {offset}: {log[offset]}, but {who} has {value}"
                found.append(Violation(name="inconsistent-offsets", text=text))
                break
    return log


def _nothing_lost(
    sends: Iterable[Send[Partition]], log: Shown, log_start: int, found: list[Violation]
) -> None:
    """Check P1: every record that was acknowledged with acks=all is at its acknowledged offset."""
    for send in sends:
        if send.outcome is not Outcome.OK or send.acks != -1:
            continue
        for offset, value in enumerate(send.values, send.offset):
            if offset >= log_start and log.get(offset) != value:
                text = (
                    f"{value} was acknowledged at {offset}, but the log has {log.get(offset)} there"
                )
                found.append(Violation(name="lost-write", text=text))
                break


def _latest_of_each_key_kept(
    sends: Iterable[Send[Partition]],
    replicas: Mapping[int, Shown],
    log: Shown,
    found: list[Violation],
) -> None:
    """Check P1 of a compacted topic: each acknowledged record, or a later record with its key, is in the log."""
    key_of = {
        value: key for send in sends for value, key in zip(send.values, send.keys, strict=False)
    }
    for replica, shown in replicas.items():
        latest: dict[bytes, int] = {}
        for offset, value in shown.items():
            if (key := key_of.get(value)) is not None:
                latest[key] = max(latest.get(key, -1), offset)
        for send in sends:
            if send.outcome is not Outcome.OK or send.acks != -1:
                continue
            for offset, key in enumerate(send.keys, send.offset):
                if latest.get(key, -1) < offset:
                    text = f"replica {replica}: {key!r} was acknowledged at {offset}, the latest are {latest}"
                    found.append(Violation(name="lost-write", text=text))
                    return
    for send in sends:
        if send.outcome is Outcome.OK:
            for offset, value in enumerate(send.values, send.offset):
                if log.get(offset, value) != value:
                    text = (
                        f"{value} was acknowledged at {offset}, but the log has {log[offset]} there"
                    )
                    found.append(Violation(name="lost-write", text=text))


def _nothing_invalid(history: History[Partition], found: list[Violation]) -> None:
    """Check P17: a batch that breaks the rules is refused."""
    for send in history.sends:
        if send.is_invalid and send.outcome is Outcome.OK:
            text = f"client {send.client}: {send.values} at {send.offset} of {send.partition}"
            found.append(Violation(name="invalid-accepted", text=text))


def _times_found(
    lookups: Iterable[Lookup[Partition]],
    sends: Iterable[Send[Partition]],
    log: Shown,
    found: list[Violation],
) -> None:
    """Check P18: a lookup by timestamp returns the first record at or after that timestamp, with the record's
    timestamp.
    """
    times = {value: send.made_ms for send in sends for value in send.values}
    for lookup in lookups:
        value = log.get(lookup.offset)
        if lookup.found_ms < 0 or value is None:
            continue
        if times[value] != lookup.found_ms or lookup.found_ms < lookup.timestamp_ms:
            text = f"{lookup}: the record at this offset has the timestamp {times[value]}"
            found.append(Violation(name="wrong-time", text=text))
        first = next(
            (
                offset
                for offset in range(lookup.log_start, lookup.offset)
                if times.get(log.get(offset, -1), -1) >= lookup.timestamp_ms >= 0
            ),
            None,
        )
        if first is not None:
            text = f"{lookup}: the record at {first} is an earlier match"
            found.append(Violation(name="wrong-time", text=text))


def _repeats_recognized(
    sends: Iterable[Send[Partition]], log: Shown, log_start: int, found: list[Violation]
) -> None:
    """Check P4: a producer with at most five batches in flight may repeat each of them, and the broker recognizes the
    duplicate.

    Two cases are exempt: batches below the log start, because a replica whose log begins at the log start does not know
    the batches below it, and batches without acks=all, because a new leader may lack the preceding batch.
    """
    where = {value: offset for offset, value in log.items()}
    for send in sends:
        if send.acks != -1 or not send.is_refused_repeat:
            continue
        if min(where.get(v, -1) for v in send.values) >= log_start:
            text = f"client {send.client} sequence {send.base_sequence}: refused, although the batch is in the log"
            found.append(Violation(name="repeat-not-recognized", text=text))


def _nothing_refused(sends: Iterable[Send[Partition]], log: Shown, found: list[Violation]) -> None:
    """Check P3: no record of a send that definitely failed is read."""
    shown = set(log.values())
    for send in sends:
        if send.outcome is Outcome.FAIL and not shown.isdisjoint(send.values):
            text = f"client {send.client} was refused {send.values}, but the records were read"
            found.append(Violation(name="aborted-read", text=text))


def _no_duplicates(sends: Iterable[Send[Partition]], log: Shown, found: list[Violation]) -> None:
    """Check P4: each value is at one offset only."""
    where: dict[int, int] = {}
    for offset, value in sorted(log.items()):
        if value in where:
            text = f"{value} is at {where[value]} and at {offset}"
            found.append(Violation(name="duplicate", text=text))
        where[value] = offset


def _in_order(sends: Iterable[Send[Partition]], log: Shown, found: list[Violation]) -> None:
    """Check P4: the records of one producer and producer epoch keep their order."""
    where = {value: offset for offset, value in log.items()}
    last: dict[tuple[int, int], tuple[int, int]] = {}
    ordered = sorted(sends, key=lambda s: (s.client, s.producer_epoch, s.base_sequence))
    for send in ordered:
        offset = where.get(send.values[0])
        if offset is None:
            continue
        key = (send.client, send.producer_epoch)
        before = last.get(key)
        if before is not None and offset <= before[1]:
            text = (
                f"client {send.client}: sequence {send.base_sequence} is at {offset},"
                f" the sequence before it is {before}"
            )
            found.append(Violation(name="nonmonotonic-send", text=text))
        last[key] = (send.base_sequence, offset)


def _polls_follow(
    polls: Iterable[Poll[Partition]], found: list[Violation], *, has_gaps: bool = False
) -> None:
    """Check P5 and P6.

    P5: in a poll and between polls, offsets rise by one, or by more in a compacted topic. P6: a reader gets no record
    at or above the high watermark in the response.
    """
    position: dict[int, int] = {}
    for poll in polls:
        expected = position.get(poll.client, poll.position)
        if poll.reset_from >= 0:
            if poll.reset_from >= poll.position:
                text = f"reader {poll.client} at {poll.reset_from} is above the log end"
                found.append(Violation(name="lost-write", text=text))
            expected = poll.position
        if poll.position != expected:
            name = "poll-skip" if poll.position > expected else "nonmonotonic-poll"
            text = f"reader {poll.client} was at {expected}, but reads at {poll.position}"
            found.append(Violation(name=name, text=text))
        expected = poll.position
        for offset, _ in poll.records:
            if offset < expected or (offset > expected and not has_gaps):
                name = "int-poll-skip" if offset > expected else "int-nonmonotonic-poll"
                text = f"reader {poll.client} got {offset} after {expected - 1}"
                found.append(Violation(name=name, text=text))
                break
            expected = offset + 1
        if poll.records and poll.records[-1][0] >= poll.high_watermark:
            text = f"reader {poll.client} got {poll.records[-1][0]} with the high watermark {poll.high_watermark}"
            found.append(Violation(name="read-past-watermark", text=text))
        position[poll.client] = expected


def _watermarks_rise(
    latests: Iterable[Latest[Partition]],
    polls: Iterable[Poll[Partition]],
    found: list[Violation],
) -> None:
    """Check P6: the end offset of a partition never falls for one client."""
    seen: dict[int, int] = {}
    for latest in latests:
        if latest.offset < seen.get(latest.client, 0):
            text = f"client {latest.client} saw {seen[latest.client]}, then {latest.offset}"
            found.append(Violation(name="watermark-fell", text=text))
        seen[latest.client] = latest.offset


def _topics_are_there(
    history: History[Partition], by_node: Mapping[int, Iterable[str]], found: list[Violation]
) -> None:
    """Check P12: every node knows a topic whose creation was acknowledged, and none knows a deleted
    one.
    """
    wanted = set(history.topics_acknowledged) - history.topics_deleted.keys()
    gone = {name for name, outcome in history.topics_deleted.items() if outcome is Outcome.OK}
    for node, names in by_node.items():
        topics = set(names)
        for missing in sorted(wanted - topics):
            text = f"{missing} was created, but node {node} does not know it"
            found.append(Violation(name="lost-metadata", text=text))
        for undead in sorted(gone & topics):
            text = f"{undead} was deleted, but node {node} still has it"
            found.append(Violation(name="undead-topic", text=text))
