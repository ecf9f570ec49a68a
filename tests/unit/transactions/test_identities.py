"""Producer ids and epochs: which producers are fenced, and what happens when epochs run out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from odradek_broker.transactions.messages import InitProducer
from odradek_broker.transactions.settings import TransactionSettings
from odradek_broker.transactions.transaction import EndedBy, TransactionStatus
from odradek_protocol.identity import ProducerEpoch, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.transactions.coordinator import (
    FIRST,
    ORDERS,
    SECOND,
    TIMEOUT_MS,
    Coordinator,
    add,
    identity,
)

INIT = InitProducer(transactional_id=ORDERS, timeout_ms=TIMEOUT_MS)


def at_epoch(epoch: int, *, last_epoch: int = -1) -> Coordinator:
    """Return a coordinator with producer id 1000 at this epoch, without a transaction."""
    coordinator = Coordinator()
    coordinator.init()
    state = structs.replace(
        coordinator.state,
        producer_epoch=ProducerEpoch(epoch),
        last_epoch=ProducerEpoch(last_epoch),
    )
    coordinator.put(state)
    return coordinator


def test_a_new_producer_fences_the_one_before() -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    second = coordinator.init()
    assert (first.producer_id, first.epoch + 1) == (second.producer_id, second.epoch)
    assert coordinator.add(first, FIRST) is ErrorCode.PRODUCER_FENCED
    assert coordinator.ask(replace(INIT, identity=first)).error is ErrorCode.PRODUCER_FENCED
    assert coordinator.end(first, is_commit=False).error is ErrorCode.PRODUCER_FENCED
    assert coordinator.add(second, FIRST) is ErrorCode.NONE


def test_a_repeated_init_with_an_identity_bumps_once() -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    second = coordinator.init(first)
    records = len(coordinator.log)
    assert coordinator.init(first) == second
    assert len(coordinator.log) == records


def test_a_late_copy_of_an_init_does_not_end_the_next_transaction() -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    second = coordinator.init(first)
    coordinator.add(second, FIRST)
    assert coordinator.ask(replace(INIT, identity=first)).error is ErrorCode.PRODUCER_FENCED
    assert coordinator.state.status is TransactionStatus.ONGOING


@pytest.mark.parametrize("is_commit", [False, True])
def test_a_late_end_does_not_end_the_next_transaction(is_commit: bool) -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.add(first, FIRST)
    second = coordinator.end(first, is_commit=True).next_identity
    coordinator.mark()
    coordinator.add(second, FIRST)
    late = coordinator.end(first, is_commit=is_commit)
    assert late.error is ErrorCode.PRODUCER_FENCED
    assert coordinator.state.status is TransactionStatus.ONGOING


def test_an_unknown_id_gets_a_fresh_producer_id_whatever_identity_came() -> None:
    coordinator = Coordinator()
    assert coordinator.init(identity(7, 3)) == identity(1_000, 0)


def test_a_producer_that_takes_over_aborts_the_open_transaction_first() -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.add(first, FIRST, SECOND)
    waiting = coordinator.ask_later(INIT)
    assert waiting not in coordinator.responses
    (markers,) = coordinator.markers
    assert (markers.marker_epoch, markers.is_commit, markers.is_bumped) == (1, False, True)
    assert markers.partitions == {FIRST, SECOND}
    coordinator.mark()
    assert coordinator.responses[waiting].identity == identity(1_000, 2)
    assert coordinator.state.status is TransactionStatus.EMPTY
    # The producer before is fenced, and not asked to try again.
    assert coordinator.end(first, is_commit=True).error is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_gives_its_transaction_up_by_init_keeps_one_bump() -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.add(first, FIRST)
    waiting = coordinator.ask_later(replace(INIT, identity=first))
    assert coordinator.state.ended_by is EndedBy.CLIENT
    coordinator.mark()
    assert coordinator.responses[waiting].identity == identity(1_000, 1)


def test_tv2_gets_an_epoch_for_each_transaction_and_tv1_has_one_for_all() -> None:
    coordinator = Coordinator()
    present = coordinator.init()
    for _ in range(3):
        coordinator.add(present, FIRST, is_tv2=False)
        assert coordinator.end(present, is_commit=True, is_tv2=False).next_identity is None
        assert coordinator.markers[-1].marker_epoch == present.epoch
        assert not coordinator.markers[-1].is_bumped
        coordinator.mark()
    for number in range(3):
        coordinator.add(present, FIRST)
        present = coordinator.end(present, is_commit=True).next_identity
        assert present == identity(1_000, number + 1)
        assert coordinator.markers[-1].marker_epoch == present.epoch
        coordinator.mark()


@pytest.mark.parametrize("opened_by_tv2", [False, True])
def test_the_version_of_the_end_decides_whether_the_epoch_rises(opened_by_tv2: bool) -> None:
    coordinator = Coordinator()
    present = coordinator.init()
    coordinator.add(present, FIRST, is_tv2=opened_by_tv2)
    response = coordinator.end(present, is_commit=True, is_tv2=not opened_by_tv2)
    assert response.error is ErrorCode.NONE
    assert coordinator.markers[-1].is_bumped is not opened_by_tv2
    coordinator.move()
    assert coordinator.markers[-1].is_bumped is not opened_by_tv2


def test_an_old_holder_of_the_last_epochs_number_is_fenced() -> None:
    """The epoch before the last bump belongs to the present producer id, not to the previous
    one.
    """
    coordinator = at_epoch(32_766)
    first = coordinator.init()
    assert first == identity(1_001, 0)
    second = coordinator.init(first)
    third = coordinator.init(second)
    assert third == identity(1_001, 2)
    assert coordinator.state.previous_id == 1_000
    zombie = identity(1_000, 1)
    assert coordinator.ask(replace(INIT, identity=zombie)).error is ErrorCode.PRODUCER_FENCED


def test_no_client_sees_an_epoch_above_32766() -> None:
    coordinator = at_epoch(32_764)
    present = coordinator.state.next_identity
    seen = []
    for _ in range(4):
        coordinator.add(present, FIRST)
        present = coordinator.end(present, is_commit=True).next_identity
        coordinator.mark()
        seen.append(present)
    assert seen == [
        identity(1_000, 32_765),
        identity(1_000, 32_766),
        identity(1_001, 0),
        identity(1_001, 1),
    ]
    assert [markers.marker_epoch for markers in coordinator.markers] == [32_765, 32_766, 32_767, 1]
    assert coordinator.markers[2].producer_id == 1_000


@pytest.mark.parametrize("moves_meanwhile", [False, True])
def test_epochs_run_out_during_a_failover(moves_meanwhile: bool) -> None:
    """The repeated EndTxn, the repeated InitProducerId and the next AddPartitionsToTxn must find
    the state that the first coordinator reported.
    """
    coordinator = at_epoch(32_766)
    present = coordinator.state.next_identity
    coordinator.add(present, FIRST)
    following = coordinator.end(present, is_commit=True).next_identity
    if moves_meanwhile:
        coordinator.move()
    assert coordinator.end(present, is_commit=True).next_identity == following
    waiting = coordinator.ask_later(add(following, SECOND))
    coordinator.mark()
    assert coordinator.responses[waiting].error is ErrorCode.NONE
    coordinator.end(following, is_commit=True)
    coordinator.mark()
    state = coordinator.state
    assert (state.producer_id, state.producer_epoch, state.previous_id) == (1_001, 1, 1_000)


def test_a_repeated_end_is_recognized_after_the_producer_id_changed() -> None:
    coordinator = at_epoch(32_766)
    present = coordinator.state.next_identity
    coordinator.add(present, FIRST)
    following = coordinator.end(present, is_commit=True).next_identity
    coordinator.mark()
    coordinator.move()
    assert coordinator.end(present, is_commit=True).next_identity == following
    assert coordinator.init(present) == following


@pytest.mark.parametrize(
    ("events", "present"),
    [
        (("init",), identity(1_001, 0)),
        (("init with identity",), identity(1_001, 0)),
        (("abort without partitions",), identity(1_001, 0)),
        (("time-out",), identity(1_001, 0)),
        (("time-out", "init"), identity(1_001, 1)),
        (("take-over",), identity(1_001, 1)),
    ],
)
def test_every_bump_at_the_last_epoch_takes_a_fresh_producer_id(
    events: tuple[str, ...], present: object
) -> None:
    coordinator = at_epoch(32_766)
    last = coordinator.state.next_identity
    for event in events:
        match event:
            case "init":
                coordinator.init()
            case "init with identity":
                coordinator.init(last)
            case "abort without partitions":
                coordinator.end(last, is_commit=False)
            case "time-out":
                coordinator.add(last, FIRST, is_tv2=False)
                coordinator.tick(TIMEOUT_MS)
                assert coordinator.markers[-1].marker_epoch == 32_767
                coordinator.mark()
            case "take-over":
                coordinator.add(last, FIRST)
                coordinator.ask_later(INIT)
                coordinator.mark()
    assert coordinator.state.next_identity == present
    assert coordinator.add(last, FIRST) is not ErrorCode.NONE


def test_without_producer_ids_nothing_that_needs_one_is_decided() -> None:
    coordinator = at_epoch(32_766)
    coordinator.has_producer_ids = False
    while coordinator.shard.reserve:
        coordinator.shard.reserve.take()
    last = coordinator.state.next_identity
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    other = replace(INIT, transactional_id="other")
    assert coordinator.ask(INIT).error is loading
    assert coordinator.ask(other).error is loading
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.end(last, is_commit=False).error is unavailable
    coordinator.add(last, FIRST)
    assert coordinator.ask(INIT).error is loading
    assert coordinator.end(last, is_commit=True).error is unavailable
    coordinator.tick(TIMEOUT_MS)
    assert coordinator.state.status is TransactionStatus.ONGOING
    # A client that keeps its epoch needs none; and when ids are there, the time-out is not forgotten.
    coordinator.has_producer_ids = True
    coordinator.tick(1_000)
    assert coordinator.state.status is TransactionStatus.PREPARE_ABORT


def test_a_tv1_client_ends_its_last_epoch_without_a_fresh_id() -> None:
    coordinator = at_epoch(32_766)
    coordinator.has_producer_ids = False
    while coordinator.shard.reserve:
        coordinator.shard.reserve.take()
    last = coordinator.state.next_identity
    coordinator.add(last, FIRST, is_tv2=False)
    assert coordinator.end(last, is_commit=True, is_tv2=False).error is ErrorCode.NONE
    coordinator.mark()
    assert coordinator.state.next_identity == last


def test_a_shard_refuses_more_ids_than_it_may_have() -> None:
    coordinator = Coordinator(settings=TransactionSettings(ids_max=2))
    for name in ("a", "b"):
        assert coordinator.ask(replace(INIT, transactional_id=name)).error is ErrorCode.NONE
    third = replace(INIT, transactional_id="c")
    assert coordinator.ask(third).error is ErrorCode.POLICY_VIOLATION
    assert coordinator.ask(replace(INIT, transactional_id="a")).error is ErrorCode.NONE


def test_producer_ids_of_an_id_find_it() -> None:
    coordinator = at_epoch(32_766)
    coordinator.init()
    table = coordinator.shard.table
    first, second = ProducerId(1_000), ProducerId(1_001)
    assert table._by_producer == {first: ORDERS, second: ORDERS}
