"""The history checker finds every anomaly in a history that contains it, and none in correct histories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from tests.sim.transactions.history_checker import (
    CommittedPoll,
    Fate,
    FinalRead,
    GroupPartition,
    OffsetFetch,
    Takeover,
    Transaction,
    TransactionHistory,
    check,
    interleaved,
)

PLACE = GroupPartition("copiers", "in")


@dataclass
class Run:
    """A history, and the records at the end of the run: offset -> value for each partition."""

    history: TransactionHistory = field(default_factory=TransactionHistory)
    committed: dict[str, dict[int, object]] = field(default_factory=dict)
    aborted: dict[str, dict[int, object]] = field(default_factory=dict)
    last_stable: int = -1
    offsets: dict[GroupPartition, int] = field(default_factory=dict)
    log_start: int = 0

    def transact(
        self,
        values: Mapping[str, list[object]],
        fate: Fate = Fate.COMMITTED,
        *,
        asks: bool = True,
        began: int = 10,
        asked: int = 20,
        told: int = 30,
        process: str = "p1",
        copies: Mapping[object, object] | None = None,
        offsets: Mapping[GroupPartition, int] | None = None,
        positions: Mapping[GroupPartition, int] | None = None,
    ) -> Transaction:
        transaction = Transaction(
            transactional_id="tx",
            process=process,
            group="copiers",
            began_at=began,
            commit_asked_at=asked if asks else None,
            told_at=None if fate is Fate.UNKNOWN else told,
            fate=fate,
            copies=dict(copies or {}),
            offsets=dict(offsets or {}),
            positions=dict(positions or {}),
        )
        transaction.values.update({partition: list(of) for partition, of in values.items()})
        self.history.transactions.append(transaction)
        return transaction

    def take_over(
        self, process: str, *, asked: int, told: int, identity: tuple[int, int] | None = None
    ) -> None:
        takeover = Takeover(
            transactional_id="tx",
            process=process,
            asked_at=asked,
            told_at=told,
            identity=identity,
        )
        self.history.takeovers.append(takeover)

    def poll(
        self,
        position: int,
        next_position: int,
        records: Mapping[int, object],
        *,
        at: int = 100,
        partition: str = "a",
        is_reset: bool = False,
    ) -> None:
        poll = CommittedPoll(
            reader="r",
            partition=partition,
            position=position,
            next_position=next_position,
            records=tuple(records.items()),
            ended_at=at,
            is_reset=is_reset,
        )
        self.history.polls.append(poll)

    def fetch(self, offset: int, asked: int) -> None:
        fetched = OffsetFetch(place=PLACE, offset=offset, asked_at=asked, ended_at=asked + 1)
        self.history.fetches.append(fetched)

    def copy(self, number: int, *, position: int, fate: Fate = Fate.COMMITTED) -> None:
        """Copy the input `number` at `position` to the output 100 + `number`, at offset `number`."""
        self.transact(
            {"out": [100 + number]},
            fate,
            copies={100 + number: number},
            positions={PLACE: position},
            offsets={PLACE: position + 1},
            told=30 + number,
        )

    def found(self) -> set[str]:
        partitions = self.committed.keys() | self.aborted.keys()
        finals: dict[str, list[FinalRead]] = {}
        for partition in partitions:
            committed = self.committed.get(partition, {})
            everything = {**committed, **self.aborted.get(partition, {})}
            end = max(everything, default=-1) + 2
            last_stable = self.last_stable if self.last_stable >= 0 else end
            read = FinalRead(
                committed=committed,
                everything=everything,
                log_start=self.log_start,
                last_stable=last_stable,
                log_end=end,
            )
            finals[partition] = [read, read]
        return {violation.name for violation in check(self.history, finals, self.offsets)}


def aborted_read(run: Run) -> None:
    run.aborted = {"a": {0: 1}}
    run.transact({"a": [1]}, Fate.ABORTED, asks=False)
    run.poll(0, 1, {0: 1})


def aborted_read_finally(run: Run) -> None:
    """A value is visible although the client learned that its commit was refused."""
    run.committed = {"a": {0: 1}}
    run.transact({"a": [1]}, Fate.ABORTED)


def proven_aborted_read(run: Run) -> None:
    """A reader got a value that is not visible in the end; the client does not know the outcome."""
    run.aborted = {"a": {0: 1}}
    run.transact({"a": [1]}, Fate.UNKNOWN)
    run.poll(0, 1, {0: 1})


def intermediate_read(run: Run) -> None:
    run.committed = {"a": {0: 1, 1: 2}}
    run.transact({"a": [1, 2]})
    run.poll(0, 3, {1: 2})


def torn(run: Run) -> None:
    run.committed, run.aborted = {"a": {0: 1}}, {"b": {0: 2}}
    run.transact({"a": [1], "b": [2]}, Fate.UNKNOWN)


def cycle(run: Run) -> None:
    run.committed = {"a": {0: 1, 1: 2}}
    run.transact({"a": [1]}, copies={1: 2})
    run.transact({"a": [2]}, copies={2: 1})


def cycle_over_offsets(run: Run) -> None:
    """The first copy began at the offset that the second one committed, and the second one copied the output of the
    first.
    """
    run.committed = {"in": {0: 1}, "out": {0: 2}}
    run.transact({"in": [1]}, positions={PLACE: 5})
    run.transact({"out": [2]}, copies={2: 1}, offsets={PLACE: 5})


def precommitted_read(run: Run) -> None:
    run.committed = {"a": {0: 1}}
    run.transact({"a": [1]}, asked=200, told=300)
    run.poll(0, 1, {0: 1}, at=100)


def lost_write(run: Run) -> None:
    run.committed, run.aborted = {"a": {0: 1}}, {"b": {0: 2}}
    run.transact({"a": [1], "b": [2]})


def lost_without_a_trace(run: Run) -> None:
    run.committed = {"a": {0: 1}}
    run.transact({"a": [1, 2]})


def completed_without_copies(run: Run) -> None:
    run.committed = {"out": {0: 101}}
    run.history.completed = [("copiers", 1), ("copiers", 2)]
    run.copy(1, position=0)


def duplicate(run: Run) -> None:
    run.committed = {"a": {0: 1, 1: 1}}
    run.transact({"a": [1]})


def copied_twice(run: Run) -> None:
    run.committed = {"in": {0: 1}, "out": {0: 101, 1: 201}}
    run.offsets = {PLACE: 1}
    run.copy(1, position=0)
    run.transact({"out": [201]}, copies={201: 1}, offsets={PLACE: 1})


def wrong_commit_of_an_abort(run: Run) -> None:
    run.committed = {"a": {0: 1}}
    run.transact({"a": [1]}, Fate.ABORTED, asks=False)


def wrong_commit_after_a_crash(run: Run) -> None:
    run.committed = {"a": {0: 1}}
    run.transact({"a": [1]}, Fate.UNKNOWN, asks=False)


def zombie_write(run: Run) -> None:
    run.committed = {"a": {0: 1}}
    run.take_over("p2", asked=12, told=15)
    run.transact({"a": [1]}, Fate.UNKNOWN)


def zombie_write_after_a_takeover_asked_for_earlier(run: Run) -> None:
    run.committed = {"a": {0: 1}}
    run.take_over("p1", asked=5, told=9, identity=(7, 3))
    run.take_over("p2", asked=4, told=15, identity=(7, 4))
    run.transact({"a": [1]}, Fate.UNKNOWN)


def offsets_without_copies(run: Run) -> None:
    run.committed = {"in": {0: 1, 1: 2}, "out": {0: 101}}
    run.offsets = {PLACE: 2}
    run.copy(1, position=0)


def copies_without_offsets(run: Run) -> None:
    run.committed = {"in": {0: 1}, "out": {0: 101}}
    run.offsets = {PLACE: 0}
    run.copy(1, position=0, fate=Fate.UNKNOWN)


def regressed_offset(run: Run) -> None:
    run.fetch(7, 10)
    run.fetch(5, 20)


def regressed_offset_after_a_commit(run: Run) -> None:
    run.transact({}, offsets={PLACE: 9}, told=30)
    run.fetch(5, 40)


def regressed_offset_finally(run: Run) -> None:
    run.fetch(7, 10)
    run.offsets = {PLACE: 5}


def poll_skip(run: Run) -> None:
    run.committed = {"a": {0: 1, 1: 2}}
    run.poll(0, 1, {0: 1})
    run.poll(2, 3, {})


def poll_that_leaves_a_transaction_out(run: Run) -> None:
    run.committed = {"a": {0: 1, 1: 2}}
    run.poll(0, 2, {0: 1})


def nonmonotonic_poll(run: Run) -> None:
    run.committed = {"a": {0: 1, 1: 2}}
    run.poll(0, 2, {0: 1, 1: 2})
    run.poll(1, 2, {1: 2})


def offsets_out_of_order_in_a_poll(run: Run) -> None:
    run.committed = {"a": {0: 1, 1: 2}}
    run.poll(0, 2, {1: 2, 0: 1})


def inconsistent_offsets(run: Run) -> None:
    run.committed = {"a": {0: 1}}
    run.poll(0, 1, {0: 2})


def wrong_sum(run: Run) -> None:
    """Half of a transfer is missing, and no client has a record of the transaction."""
    run.committed = {"a": {0: 1}}
    run.history.amounts = {1: 50, 2: -50}


def hanging_lso(run: Run) -> None:
    run.committed = {"a": {0: 1, 1: 2}}
    run.last_stable = 1


BAD: list[tuple[Callable[[Run], None], str]] = [
    (aborted_read, "aborted read"),
    (aborted_read_finally, "aborted read"),
    (proven_aborted_read, "aborted read"),
    (intermediate_read, "intermediate read"),
    (torn, "torn"),
    (cycle, "cycle"),
    (cycle_over_offsets, "cycle"),
    (precommitted_read, "precommitted read"),
    (lost_write, "lost write"),
    (lost_without_a_trace, "lost write"),
    (completed_without_copies, "lost write"),
    (duplicate, "duplicate"),
    (copied_twice, "duplicate"),
    (wrong_commit_of_an_abort, "wrong commit"),
    (wrong_commit_after_a_crash, "wrong commit"),
    (zombie_write, "zombie write"),
    (zombie_write_after_a_takeover_asked_for_earlier, "zombie write"),
    (offsets_without_copies, "offset tear"),
    (copies_without_offsets, "offset tear"),
    (regressed_offset, "regressed offset"),
    (regressed_offset_after_a_commit, "regressed offset"),
    (regressed_offset_finally, "regressed offset"),
    (poll_skip, "poll skip"),
    (poll_that_leaves_a_transaction_out, "poll skip"),
    (nonmonotonic_poll, "nonmonotonic poll"),
    (offsets_out_of_order_in_a_poll, "nonmonotonic poll"),
    (inconsistent_offsets, "inconsistent offsets"),
    (wrong_sum, "wrong sum"),
    (hanging_lso, "hanging LSO"),
]


@pytest.mark.parametrize(("make", "name"), BAD, ids=lambda part: getattr(part, "__name__", ""))
def test_a_bad_history_is_found_by_its_name_alone(make: Callable[[Run], None], name: str) -> None:
    run = Run()
    make(run)
    assert run.found() == {name}


def test_replicas_that_differ_are_found() -> None:
    reads = [FinalRead(committed={0: 1}, everything={0: 1}), FinalRead(committed={}, everything={})]
    (violation,) = check(TransactionHistory(), {"a": reads})
    assert violation.name == "inconsistent offsets"


def commits_and_aborts(run: Run) -> None:
    run.committed, run.aborted = {"a": {0: 1, 2: 3}, "b": {0: 2}}, {"a": {1: 4}}
    run.transact({"a": [1], "b": [2]})
    run.transact({"a": [4]}, Fate.ABORTED, asks=False)
    run.transact({"a": [3]}, Fate.UNKNOWN)
    run.transact({"a": [5]}, Fate.UNKNOWN)
    run.poll(0, 2, {0: 1})
    run.poll(2, 5, {2: 3})


def a_commit_is_read_before_it_is_confirmed(run: Run) -> None:
    run.committed = {"a": {0: 1}}
    run.transact({"a": [1]}, asked=20, told=300)
    run.poll(0, 2, {0: 1}, at=100)


def a_takeover_ends_what_was_open(run: Run) -> None:
    run.committed, run.aborted = {"a": {1: 2}}, {"a": {0: 1}}
    run.transact({"a": [1]}, Fate.UNKNOWN, began=10, asked=20)
    run.take_over("p2", asked=12, told=15)
    run.transact({"a": [2]}, process="p2", began=16, asked=20)


def a_commit_on_its_way_beats_a_takeover(run: Run) -> None:
    run.committed = {"a": {0: 1}}
    run.transact({"a": [1]}, Fate.UNKNOWN, began=10, asked=20)
    run.take_over("p2", asked=12, told=25)


def a_takeover_that_was_decided_earlier_is_confirmed_later(run: Run) -> None:
    run.committed = {"a": {0: 1}}
    run.take_over("p2", asked=4, told=15, identity=(7, 3))
    run.take_over("p1", asked=5, told=9, identity=(7, 4))
    run.transact({"a": [1]})


def two_takeovers_at_once_without_identities_prove_nothing(run: Run) -> None:
    run.committed = {"a": {0: 1}}
    run.take_over("p2", asked=4, told=15)
    run.take_over("p1", asked=5, told=9)
    run.transact({"a": [1]})


def copies_with_their_offsets(run: Run) -> None:
    run.committed = {"in": {0: 1, 2: 2, 3: 3}, "out": {0: 101, 1: 102}}
    run.aborted = {"in": {1: 9}, "out": {2: 103}}
    run.offsets = {PLACE: 3}
    run.copy(1, position=0)
    run.copy(2, position=2)
    run.copy(3, position=3, fate=Fate.UNKNOWN)
    run.fetch(0, 1)
    run.fetch(3, 50)


def what_retention_deleted_is_not_lost(run: Run) -> None:
    run.committed, run.log_start = {"a": {5: 2}}, 5
    run.transact({"a": [1]})
    run.transact({"a": [2]})
    run.poll(0, 1, {0: 1})
    run.poll(5, 6, {5: 2}, is_reset=True)


def transfers_balance(run: Run) -> None:
    run.committed = {"a": {0: 1}, "b": {0: 2}}
    run.history.amounts = {1: 50, 2: -50, 3: 7, 4: -7}
    run.transact({"a": [1], "b": [2]})
    run.transact({"a": [3], "b": [4]}, Fate.UNKNOWN)


@pytest.mark.parametrize(
    "make",
    [
        commits_and_aborts,
        a_commit_is_read_before_it_is_confirmed,
        a_takeover_ends_what_was_open,
        a_takeover_that_was_decided_earlier_is_confirmed_later,
        two_takeovers_at_once_without_identities_prove_nothing,
        a_commit_on_its_way_beats_a_takeover,
        copies_with_their_offsets,
        what_retention_deleted_is_not_lost,
        transfers_balance,
    ],
    ids=lambda make: make.__name__,
)
def test_a_good_history_passes(make: Callable[[Run], None]) -> None:
    run = Run()
    make(run)
    assert run.found() == set()


def test_interleaved_writes_are_allowed_and_counted() -> None:
    run = Run()
    run.transact({"a": [1, 3]})
    run.transact({"a": [2, 4]})
    read = FinalRead(committed={0: 1, 1: 2, 2: 3, 3: 4}, everything={0: 1, 1: 2, 2: 3, 3: 4})
    assert check(run.history, {"a": [read]}) == []
    assert interleaved(run.history, {"a": [read]}) == 2
