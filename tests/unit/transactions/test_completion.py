"""Transaction markers, their acknowledgements, and requests that wait until a transaction is
complete.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek_broker.transactions.identity import ProducerIdentity
from odradek_broker.transactions.messages import InitProducer, Resolution, TransactionCompleted
from odradek_broker.transactions.settings import TransactionSettings
from odradek_broker.transactions.transaction import EndedBy, TransactionStatus
from odradek_protocol.identity import PartitionIndex, TopicId
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.transactions.coordinator import (
    FIRST,
    ORDERS,
    SECOND,
    THIRD,
    TIMEOUT_MS,
    Coordinator,
    add,
    end,
    identity,
)

INIT = InitProducer(transactional_id=ORDERS, timeout_ms=TIMEOUT_MS)


def decided(*, is_commit: bool = True) -> tuple[Coordinator, ProducerIdentity]:
    """Return a coordinator with a decided transaction over two partitions, and the producer id and
    epoch for the next one.
    """
    coordinator = Coordinator()
    present = coordinator.init()
    coordinator.add(present, FIRST)
    coordinator.add(present, SECOND)
    return coordinator, coordinator.end(present, is_commit=is_commit).next_identity


@pytest.mark.parametrize("is_commit", [False, True])
def test_a_transaction_is_complete_when_every_partition_has_its_marker(is_commit: bool) -> None:
    coordinator, _ = decided(is_commit=is_commit)
    coordinator.mark(FIRST)
    coordinator.mark(FIRST)
    assert coordinator.state.status.is_decided
    assert coordinator.shard.markers_due.partitions_of(ORDERS) == {SECOND}
    coordinator.now_ms += 7
    coordinator.mark(SECOND)
    assert not coordinator.state.status.is_decided
    assert coordinator.state.status.is_commit is is_commit
    assert not coordinator.state.partitions
    assert coordinator.orders[-1] == TransactionCompleted(
        transactional_id=ORDERS,
        is_commit=is_commit,
        ended_by=EndedBy.CLIENT,
        open_ms=0,
        decided_for_ms=7,
    )
    assert not len(coordinator.shard.markers_due)


@pytest.mark.parametrize(
    ("error", "is_done"),
    [
        (ErrorCode.NONE, True),
        (ErrorCode.INVALID_PRODUCER_EPOCH, True),
        (ErrorCode.UNKNOWN_TOPIC_ID, True),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
        (ErrorCode.NOT_ENOUGH_REPLICAS, False),
        (ErrorCode.REQUEST_TIMED_OUT, False),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, False),
        (ErrorCode.KAFKA_STORAGE_ERROR, False),
    ],
)
def test_which_errors_of_a_marker_end_a_partition(error: ErrorCode, is_done: bool) -> None:
    coordinator, _ = decided()
    coordinator.mark(FIRST)
    coordinator.mark(SECOND, error=error)
    assert coordinator.state.status.is_decided is not is_done


def test_late_acknowledgement_of_a_marker() -> None:
    """The acknowledgement of an earlier transaction's marker must not count for the marker of the
    next one (KAFKA-16352).
    """
    coordinator, present = decided()
    earlier = coordinator.markers[-1].decision
    coordinator.mark()
    coordinator.add(present, FIRST)
    coordinator.end(present, is_commit=False)
    for partition in (FIRST, SECOND):
        step = coordinator.shard.handle_marked(
            earlier, partition, ErrorCode.NONE, now_ms=0, wall_ms=0
        )
        coordinator.take(step)
    assert coordinator.state.status is TransactionStatus.PREPARE_ABORT
    coordinator.mark()
    assert coordinator.state.status is TransactionStatus.COMPLETE_ABORT


def test_a_new_coordinator_sends_all_markers_again() -> None:
    coordinator, _ = decided()
    coordinator.mark(FIRST)
    before = coordinator.markers[-1]
    coordinator.move()
    assert replace(coordinator.markers[-1], decision=before.decision) == before
    coordinator.mark()
    assert coordinator.state.status is TransactionStatus.COMPLETE_COMMIT


def test_the_next_transaction_waits_for_the_completion_and_begins_with_it() -> None:
    coordinator, present = decided()
    first = coordinator.ask_later(add(present, THIRD))
    second = coordinator.ask_later(add(present, FIRST))
    third = coordinator.ask_later(end(present, is_commit=True))
    assert coordinator.responses[third].error is ErrorCode.INVALID_TXN_STATE
    records = len(coordinator.log)
    coordinator.mark()
    assert coordinator.responses[first].error is ErrorCode.NONE
    assert coordinator.responses[second].error is ErrorCode.NONE
    assert coordinator.state.partitions == {FIRST, THIRD}
    written = [record.state for record in coordinator.log[records:]]
    assert [state.status for state in written if state] == [
        TransactionStatus.COMPLETE_COMMIT,
        TransactionStatus.ONGOING,
        TransactionStatus.ONGOING,
    ]


def test_requests_are_decided_in_the_order_of_their_arrival() -> None:
    coordinator, present = decided()
    adding = coordinator.ask_later(add(present, THIRD))
    taking_over = coordinator.ask_later(INIT)
    late = coordinator.ask_later(add(present, FIRST))
    coordinator.mark()
    # The take-over ends the transaction that the first request began, so that the third one waits again.
    assert coordinator.responses[adding].error is ErrorCode.NONE
    assert taking_over not in coordinator.responses
    assert coordinator.responses[late].error is ErrorCode.PRODUCER_FENCED
    coordinator.mark()
    assert coordinator.responses[taking_over].identity == identity(1_000, 3)


def test_a_held_request_is_refused_at_its_deadline() -> None:
    coordinator, present = decided()
    default = coordinator.ask_later(add(present))
    patient = coordinator.ask_later(replace(add(present), wait_until_ms=coordinator.now_ms + 900))
    coordinator.tick(199)
    assert default not in coordinator.responses
    coordinator.tick(1)
    assert coordinator.responses[default].error is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.tick(699)
    assert patient not in coordinator.responses
    coordinator.can_write = False
    coordinator.tick(1)
    assert coordinator.responses[patient].error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert not len(coordinator.shard.held)


def test_an_empty_abort_waits_like_the_others() -> None:
    coordinator, present = decided()
    waiting = coordinator.ask_later(end(present, is_commit=False))
    coordinator.mark()
    assert coordinator.responses[waiting].next_identity == identity(1_000, 2)
    refused = coordinator.ask_later(end(identity(1_000, 2), is_commit=False))
    assert coordinator.responses[refused].next_identity == identity(1_000, 3)


def test_held_requests_are_bounded_for_an_id_and_a_shard() -> None:
    coordinator = Coordinator(settings=TransactionSettings(held_of_id_max=2, held_max=3))
    present: dict[str, ProducerIdentity] = {}
    for name in ("a", "b"):
        got = coordinator.ask(replace(INIT, transactional_id=name)).identity
        coordinator.ask(replace(add(got), transactional_id=name))
        ended = coordinator.ask(replace(end(got, is_commit=True), transactional_id=name))
        present[name] = ended.next_identity
    errors = []
    for name in ("a", "a", "a", "b", "b"):
        response = coordinator.ask(replace(add(present[name]), transactional_id=name))
        errors.append(response and response.error)
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    assert errors == [None, None, concurrent, None, concurrent]


def test_a_transaction_has_a_bounded_number_of_partitions() -> None:
    coordinator = Coordinator(settings=TransactionSettings(partitions_max=2))
    present = coordinator.init()
    assert coordinator.add(present, FIRST, SECOND) is ErrorCode.NONE
    assert coordinator.add(present, THIRD) is ErrorCode.TRANSACTION_ABORTABLE
    assert coordinator.state.partitions == {FIRST, SECOND}
    assert coordinator.add(present, SECOND, FIRST) is ErrorCode.NONE


def test_a_partition_that_is_registered_twice_is_written_once() -> None:
    coordinator = Coordinator()
    present = coordinator.init()
    coordinator.add(present, FIRST)
    records = len(coordinator.log)
    assert coordinator.add(present, FIRST) is ErrorCode.NONE
    assert len(coordinator.log) == records


def test_adding_no_partition_begins_no_transaction() -> None:
    coordinator = Coordinator()
    present = coordinator.init()
    assert coordinator.ask(replace(add(present), partitions=())).error is ErrorCode.NONE
    assert coordinator.state.status is TransactionStatus.EMPTY


def test_what_became_of_a_transaction_that_a_leader_finds_open() -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    table, place = coordinator.shard.table, (FIRST.topic_id, FIRST.partition)
    assert table.resolve(first, *place) is Resolution.UNKNOWN
    coordinator.add(first, FIRST)
    assert table.resolve(first, *place) is Resolution.LIVE
    assert table.resolve(first, FIRST.topic_id, PartitionIndex(9)) is Resolution.UNKNOWN
    assert table.resolve(first, TopicId(b"x" * 16), FIRST.partition) is Resolution.UNKNOWN
    second = coordinator.end(first, is_commit=True).next_identity
    assert table.resolve(first, *place) is Resolution.LIVE
    coordinator.mark()
    assert table.resolve(first, *place) is Resolution.COMMITTED
    coordinator.add(second, SECOND)
    assert table.resolve(first, *place) is Resolution.COMMITTED
    coordinator.end(second, is_commit=False)
    coordinator.mark()
    assert table.resolve(second, *place) is Resolution.ABORTED
    assert table.resolve(first, *place) is Resolution.UNKNOWN
    assert table.resolve(identity(5, 0), *place) is Resolution.UNKNOWN


def test_no_request_waits_for_longer_than_a_minute_whatever_it_asks_for() -> None:
    """Its client may be gone, and the partition that lacks its marker may have no leader for days."""
    coordinator, _ = decided()
    held = coordinator.ask_later(replace(INIT, wait_until_ms=1 << 40))
    coordinator.tick(59_999)
    assert held not in coordinator.responses
    coordinator.tick(1)
    assert coordinator.responses[held].error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert not len(coordinator.shard.held)
