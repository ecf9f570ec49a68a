"""Schedules of events that break or hang a transaction if one rule of the partition is missing;
each such rule is removed by a planted bug.

The oracle of TransactionWorld checks every append (transaction_world.py). docs/mechanisms.md lists
all planted bugs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odradek_broker.partition import transaction_gate
from odradek_broker.partition.events import RegistrationMode
from odradek_broker.partition.marker_writes import CoordinatorEpochs, MarkerWrites
from odradek_broker.partition.transaction_gate import TransactionGate
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.partition.transaction_world import HERE, TransactionWorld
from tests.worlds.transactions import Coordinator

ADD, VERIFY = RegistrationMode.ADD, RegistrationMode.VERIFY


def first_batch_after_the_abort_marker() -> None:
    """The client registered the partition and sent a batch, which an old connection delivers after
    the transaction ended.
    """
    world = TransactionWorld(mode=VERIFY)
    assert world.coordinator.add(0, HERE) is ErrorCode.NONE
    world.finish(is_commit=False)
    late = world.send(0, 0, number=0)
    world.settle()
    assert world.shown() == ["a0"]
    assert late.code is ErrorCode.TRANSACTION_ABORTABLE


def yes_for_a_transaction_that_ended() -> None:
    """The coordinator confirms a transaction, but a time-out ends it before the leader receives the
    confirmation (an ABA problem).
    """
    world = TransactionWorld(mode=VERIFY)
    assert world.coordinator.add(0, HERE) is ErrorCode.NONE
    late = world.send(0, 0, number=0)
    world.respond()
    world.finish(is_commit=False)
    world.hear()
    world.settle()
    assert world.shown() == ["a0"]
    assert late.code is ErrorCode.TRANSACTION_ABORTABLE


def marker_of_a_lost_coordinator() -> None:
    """A coordinator is deposed with a marker in flight.

    Its successor sends the marker, too, and the next transaction begins before the old one arrives.
    """
    world = TransactionWorld(mode=VERIFY)
    assert world.coordinator.add(0, HERE) is ErrorCode.NONE
    world.send(0, 0, number=0)
    world.register_all()
    world.end(is_commit=True)
    world.send_markers()
    world.coordinator.fail_over()
    world.send_markers()
    world.mark(1)
    assert world.coordinator.add(0, HERE) is ErrorCode.NONE
    world.send(0, 1, number=1)
    world.register_all()
    world.mark(0)
    world.send(0, 2, number=1)
    world.end(is_commit=False)
    world.settle()
    assert world.shown() == ["b0.0", "c0", "b0.1", "b0.2", "a0"]


def marker_of_a_lost_coordinator_at_a_leader_that_moved() -> None:
    """The deposed coordinator sent the marker twice, and the new leader has only that coordinator's
    epoch in its producer state.
    """
    world = TransactionWorld(mode=VERIFY)
    assert world.coordinator.add(0, HERE) is ErrorCode.NONE
    world.send(0, 0, number=0)
    world.register_all()
    world.end(is_commit=True)
    world.move_leader()
    world.send_markers()
    world.mark(again=True)
    world.coordinator.fail_over()
    assert world.coordinator.add(0, HERE) is ErrorCode.NONE
    world.send(0, 1, number=1)
    world.register_all()
    world.mark()
    world.end(is_commit=False)
    world.settle()
    assert world.shown() == ["b0.0", "c0", "b0.1", "a0"]


def coordinator_moves_between_markers() -> None:
    """The marker was appended, and its response was lost.

    The next coordinator sends it again, and must learn that it is there.
    """
    world = TransactionWorld()
    world.send(0, 0)
    world.register_all()
    world.end(is_commit=True)
    world.send_markers()
    world.mark(loses_response=True)
    world.coordinator.fail_over()
    world.settle()
    assert world.coordinator.now is None, "the transaction never completes"
    assert world.coordinator.refused_markers == []
    world.send(1, 0)
    world.settle()
    assert world.shown() == ["b0.0", "c1", "c1", "b1.0"]


def marker_lost_in_an_unclean_election() -> None:
    """The committed transaction is still open in the log of the new leader when the next one
    begins.
    """
    world = TransactionWorld()
    world.send(0, 0)
    world.register_all()
    world.finish(is_commit=True)
    world.move_leader(lost=1)
    world.send(1, 0)
    world.settle()
    world.end(is_commit=False)
    world.settle()
    assert world.shown() == ["b0.0", "c0", "b1.0", "a2"]
    assert [type(report).__name__ for report in world.reports] == ["OrphanEnded"]


def batch_without_replication() -> None:
    """A batch with acks=1, which only one replica may have, must not become part of a
    transaction.
    """
    world = TransactionWorld()
    sent = world.send(0, 0, acks=1)
    world.register_all()
    assert sent.code is ErrorCode.INVALID_REQUIRED_ACKS
    assert world.shown() == []


def next_transaction_before_the_marker() -> None:
    """The coordinator has decided, and the marker is in flight, when the next transaction's batch
    arrives.
    """
    world = TransactionWorld()
    world.send(0, 0)
    world.register_all()
    world.end(is_commit=True)
    world.send_markers()
    world.send(1, 0)
    world.register_all()
    world.settle()
    assert world.shown() == ["b0.0", "c1", "b1.0"]
    assert world.reports == []


Patch = Callable[[pytest.MonkeyPatch], None]


def no_verification(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionGate, "_must_register", lambda gate, batch: False)


def guard_not_voided_by_a_marker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionGate, "ended", lambda *_: [])


def coordinator_epoch_checked_in_the_entry_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatorEpochs, "heard", lambda epochs, partition, epoch: True)


def coordinator_epoch_not_checked(patch: pytest.MonkeyPatch) -> None:
    judge = MarkerWrites._judge

    def unfenced(self: MarkerWrites, marker: Any, *args: Any) -> ErrorCode:
        return judge(self, marker._replace(coordinator_epoch=1 << 30), *args)

    coordinator_epoch_checked_in_the_entry_only(patch)
    patch.setattr(MarkerWrites, "_judge", unfenced)


def repeated_marker_refused(patch: pytest.MonkeyPatch) -> None:
    judge = MarkerWrites._judge

    def strict(self: MarkerWrites, marker: Any, *args: Any) -> ErrorCode:
        entry = self._producers.entry(marker.producer_id)
        if marker.is_bumped and entry is not None and entry.epoch == marker.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return judge(self, marker, *args)

    patch.setattr(MarkerWrites, "_judge", strict)


def batch_joins_an_older_transaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionGate, "_orphan", lambda gate, batch, last: None)


def transactional_batch_taken_with_acks_1(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction_gate, "_ALL", 1)


def held_add_answered_before_complete(patch: pytest.MonkeyPatch) -> None:
    init = Coordinator.__init__

    def hasty(self: Coordinator) -> None:
        init(self)
        self.responds_before_complete = True

    patch.setattr(Coordinator, "__init__", hasty)


SCHEDULES: list[tuple[int, Patch, Callable[[], None]]] = [
    (41, no_verification, first_batch_after_the_abort_marker),
    (42, guard_not_voided_by_a_marker, yes_for_a_transaction_that_ended),
    (43, coordinator_epoch_not_checked, marker_of_a_lost_coordinator),
    (
        44,
        coordinator_epoch_checked_in_the_entry_only,
        marker_of_a_lost_coordinator_at_a_leader_that_moved,
    ),
    (45, repeated_marker_refused, coordinator_moves_between_markers),
    (58, batch_joins_an_older_transaction, marker_lost_in_an_unclean_election),
    (62, transactional_batch_taken_with_acks_1, batch_without_replication),
    (64, held_add_answered_before_complete, next_transaction_before_the_marker),
]


@pytest.mark.parametrize(
    ("bug", "schedule"),
    [(bug, schedule) for _, bug, schedule in SCHEDULES],
    ids=[f"{number}-{bug.__name__}" for number, bug, _ in SCHEDULES],
)
def test_the_schedule_passes_and_finds_the_bug(
    monkeypatch: pytest.MonkeyPatch, bug: Patch, schedule: Callable[[], None]
) -> None:
    schedule()
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        schedule()
