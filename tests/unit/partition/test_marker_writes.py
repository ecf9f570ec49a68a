"""Which transaction markers a leader appends, when it responds, and what it reports."""

from __future__ import annotations

from typing import Any

import pytest

from odradek_broker.log.producer_state import ProducerStates, StoredBatch
from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.partition.events import Marker
from odradek_broker.partition.marker_writes import CoordinatorEpochs
from odradek_broker.partition.replica import Replica
from odradek_protocol.identity import LeaderEpoch, Offset, PartitionIndex
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.partition.test_produce import leader, replicate, tell

NONE = ErrorCode.NONE
FENCED = ErrorCode.TRANSACTION_COORDINATOR_FENCED


def marker(epoch: int = 1, **changes: Any) -> Marker:
    base = Marker(7, epoch, True, PartitionIndex(3), LeaderEpoch(5), is_bumped=True)
    return base._replace(**changes)


def batch(producers: ProducerStates, offset: int, *, epoch: int = 0, sequence: int = 0) -> None:
    stored = StoredBatch(sequence, sequence, Offset(offset), Offset(offset), 0)
    producers.note_batch(7, epoch, stored, is_transactional=True)


def mark(producers: ProducerStates, offset: int, one: Marker) -> None:
    producers.note_marker(
        one.producer_id,
        one.producer_epoch,
        coordinator_epoch=one.coordinator_epoch,
        is_abort=not one.is_commit,
        offset=Offset(offset),
        timestamp_ms=0,
    )


def request(replica: Replica, *markers: Marker, deadline_ms: int = 1_000) -> list[Any]:
    event = ev.MarkersRequested(request_id=1, markers=markers, deadline_ms=deadline_ms)
    return list(replica.step(event, 0))


def codes(effects: list[Any]) -> list[ErrorCode]:
    (answer,) = [effect for effect in effects if isinstance(effect, fx.AnswerMarkers)]
    return list(answer.error_codes)


def test_markers_of_one_request_are_one_append_and_the_response_waits_for_the_watermark() -> None:
    replica, _ = leader()
    (append,) = request(replica, marker(), marker(producer_id=8))
    assert [m.producer_id for m in append.markers] == [7, 8]
    assert list(replica.step(ev.MarkersAppended(end_offset=Offset(2)), 0)) == []
    assert codes(replicate(replica, 2)) == [NONE, NONE]


@pytest.mark.parametrize(
    ("entry_epoch", "is_open", "sent", "expected"),
    [
        (0, True, marker(1), NONE),
        (0, False, marker(1), NONE),
        (1, False, marker(1), NONE),
        (1, True, marker(1), ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, False, marker(1), ErrorCode.INVALID_PRODUCER_EPOCH),
        (0, True, marker(0, is_bumped=False), NONE),
        (0, True, marker(1, is_bumped=False), NONE),
        (1, True, marker(0, is_bumped=False), ErrorCode.INVALID_PRODUCER_EPOCH),
        (0, True, marker(1, coordinator_epoch=LeaderEpoch(4)), NONE),
    ],
)
def test_the_epoch_of_a_marker_says_which_transaction_it_may_end(
    entry_epoch: int, is_open: bool, sent: Marker, expected: ErrorCode
) -> None:
    replica, producers = leader(end=2)
    batch(producers, 0, epoch=entry_epoch)
    if not is_open:
        ended = marker(entry_epoch, is_bumped=False, coordinator_epoch=LeaderEpoch(4))
        mark(producers, 1, ended)
    effects = request(replica, sent)
    if expected is NONE:
        assert isinstance(effects[-1], fx.AppendMarkers)
    else:
        assert codes(effects) == [expected]


def test_a_refused_marker_does_not_stop_the_others_of_its_request() -> None:
    replica, producers = leader(end=1)
    batch(producers, 0, epoch=3)
    effects = request(replica, marker(1), marker(producer_id=8))
    assert [m.producer_id for m in effects[-1].markers] == [8]
    replica.step(ev.MarkersAppended(end_offset=Offset(2)), 0)
    assert codes(replicate(replica, 2)) == [ErrorCode.INVALID_PRODUCER_EPOCH, NONE]


def test_two_markers_of_one_producer_are_judged_in_their_order() -> None:
    replica, producers = leader(end=1)
    batch(producers, 0)
    effects = request(replica, marker(2), marker(1), marker(2))
    assert [m.producer_epoch for m in effects[-1].markers] == [2, 2]


def test_a_deposed_coordinator_is_fenced_for_all_producers_and_others_are_not() -> None:
    replica, _ = leader()
    request(replica, marker(coordinator_epoch=LeaderEpoch(6)))
    replica.step(ev.MarkersAppended(end_offset=Offset(1)), 0)
    late = marker(producer_id=8)
    effects = request(replica, late, late._replace(coordinator_partition=PartitionIndex(4)))
    assert [m.coordinator_partition for m in effects[-1].markers] == [4]
    replica.step(ev.MarkersAppended(end_offset=Offset(2)), 0)
    answers = [e for e in replicate(replica, 2) if isinstance(e, fx.AnswerMarkers)]
    assert answers[-1].error_codes == (FENCED, NONE)


def test_what_the_log_says_of_a_coordinator_is_known_after_a_restart() -> None:
    replica, producers = leader(end=2)
    batch(producers, 0)
    mark(producers, 1, marker(1, coordinator_epoch=LeaderEpoch(9)))
    assert codes(request(replica, marker(1))) == [FENCED]


def test_an_epoch_that_was_heard_never_falls() -> None:
    coordinators = CoordinatorEpochs()
    partition = PartitionIndex(0)
    heard = [coordinators.heard(partition, LeaderEpoch(epoch)) for epoch in (3, 3, 2, 5, 4)]
    assert heard == [True, True, False, True, False]
    assert coordinators.heard(PartitionIndex(1), LeaderEpoch(0))


def test_too_few_in_sync_replicas_refuse_a_marker_before_it_is_written() -> None:
    replica, _ = leader()
    tell(replica, "partition-changed leader=1 leader_epoch=5 partition_epoch=11 isr=1 elr=2")
    assert codes(request(replica, marker())) == [ErrorCode.NOT_ENOUGH_REPLICAS]


def test_a_marker_that_is_not_replicated_in_time_is_answered_as_unknown() -> None:
    replica, _ = leader()
    request(replica, marker())
    replica.step(ev.MarkersAppended(end_offset=Offset(1)), 0)
    assert codes(tell(replica, "tick", 1_000)) == [ErrorCode.REQUEST_TIMED_OUT]
    assert [e for e in replicate(replica, 1) if isinstance(e, fx.AnswerMarkers)] == []


def test_a_deposed_leader_and_one_whose_disk_is_full_say_so() -> None:
    replica, _ = leader()
    request(replica, marker())
    assert codes(list(replica.step(ev.AppendRefused(), 0))) == [ErrorCode.KAFKA_STORAGE_ERROR]
    request(replica, marker())
    replica.step(ev.MarkersAppended(end_offset=Offset(1)), 0)
    resigned = tell(replica, "partition-changed leader=2 leader_epoch=6 partition_epoch=12")
    assert codes(resigned) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert codes(request(replica, marker())) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize(
    ("ended", "late", "is_torn"),
    [
        (marker(1), marker(1, is_commit=False), True),
        (marker(1), marker(1), False),
        (
            marker(0, is_bumped=False, coordinator_epoch=LeaderEpoch(-1)),
            marker(is_commit=False),
            True,
        ),
        # A producer of the older protocol aborts its next transaction, of which nothing was written here.
        (marker(0, is_bumped=False), marker(0, is_bumped=False, is_commit=False), False),
        (marker(0, is_bumped=False), marker(1, is_commit=False), False),
    ],
)
def test_a_coordinator_that_decides_otherwise_than_the_log_is_reported(
    ended: Marker, late: Marker, is_torn: bool
) -> None:
    replica, producers = leader(end=2)
    batch(producers, 0)
    mark(producers, 1, ended)
    torn = [e for e in request(replica, late) if isinstance(e, fx.TransactionTorn)]
    assert len(torn) == is_torn
    if is_torn:
        assert (torn[0].first_offset, torn[0].marker_offset) == (0, 1)
