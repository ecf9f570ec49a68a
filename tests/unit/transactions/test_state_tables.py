"""Tables of every request in every state with every producer id and epoch: the response, and the
state that follows.

The state has producer id 100 and epoch 5 (100:5); 100:4 was valid before the last bump of the
epoch. A request has one of these:

    none      no producer id and epoch (InitProducerId only)
    current   100:5
    retry     100:4
    stale     100:3
    foreign   999:5

In the tables, `held` means that there is no response yet. A word in capitals is an error (`ERRORS`)
that changes nothing. `-> STATUS identity` is success, with the state that follows; `-> as before`
writes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from odradek_broker.transactions.messages import InitProducer
from odradek_broker.transactions.transaction import (
    EndedBy,
    Outcome,
    Transaction,
    TransactionStatus,
)
from odradek_protocol.identity import ProducerEpoch, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.transactions.coordinator import (
    FIRST,
    ORDERS,
    SECOND,
    TIMEOUT_MS,
    WALL_MS,
    Coordinator,
    add,
    end,
    identity,
    verify,
)

ERRORS = {
    "FENCED": ErrorCode.PRODUCER_FENCED,
    "UNMAPPED": ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    "ILLEGAL": ErrorCode.INVALID_TXN_STATE,
    "ABORTABLE": ErrorCode.TRANSACTION_ABORTABLE,
    "CONCURRENT": ErrorCode.CONCURRENT_TRANSACTIONS,
    "NONE": ErrorCode.NONE,
}
IDENTITIES = {
    "none": None,
    "current": identity(100, 5),
    "retry": identity(100, 4),
    "stale": identity(100, 3),
    "foreign": identity(999, 5),
}


def in_status(status: TransactionStatus, ended_by: EndedBy = EndedBy.CLIENT) -> Transaction:
    """Return a state whose last decision raised the epoch, as with transaction.version 2, time-outs
    and admin requests.
    """
    has_partitions = not status.is_between
    is_fenced = ended_by is EndedBy.FENCE
    outcome = None
    if status not in (TransactionStatus.EMPTY, TransactionStatus.ONGOING):
        outcome = Outcome(identity(100, 4), status.is_commit)
    return Transaction(
        producer_id=ProducerId(100),
        producer_epoch=ProducerEpoch(5),
        last_epoch=ProducerEpoch(-1 if is_fenced else 4),
        timeout_ms=TIMEOUT_MS,
        status=status,
        partitions=frozenset({FIRST} if has_partitions else ()),
        update_ms=WALL_MS,
        start_ms=WALL_MS if has_partitions else -1,
        ended_by=ended_by,
        last_outcome=outcome,
    )


def rows(table: str) -> list[Any]:
    """Return (row, column, expectation) of a table whose columns are separated by two spaces or more."""
    lines = [line.split("  ") for line in table.strip().splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    head = cells[0]
    return [
        pytest.param(row[0], column, expectation, id=f"{row[0]}-{column}")
        for row in cells[1:]
        for column, expectation in zip(head[1:], row[1:], strict=True)
    ]


def check(coordinator: Coordinator, before: Transaction, response: Any, expectation: str) -> None:
    """Compare the response, and the state after it, with a cell of a table."""
    if expectation == "held":
        assert response is None
        assert coordinator.state == before
        return
    if not expectation.startswith("->"):
        assert response.error is ERRORS[expectation]
        assert coordinator.state == before
        return
    assert response.error is ErrorCode.NONE
    if expectation == "-> as before":
        assert coordinator.state == before
        return
    _, status, present = expectation.split()
    assert coordinator.state.status is TransactionStatus[status]
    assert str(coordinator.state.next_identity) == present


INIT = """
status           none            current         retry         stale   foreign
EMPTY            -> EMPTY 100:6  -> EMPTY 100:6  -> as before  FENCED  FENCED
ONGOING          held            held            FENCED        FENCED  FENCED
PREPARE_COMMIT   held            held            held          FENCED  FENCED
PREPARE_ABORT    held            held            held          FENCED  FENCED
COMPLETE_COMMIT  -> EMPTY 100:6  -> EMPTY 100:6  -> as before  FENCED  FENCED
COMPLETE_ABORT   -> EMPTY 100:6  -> EMPTY 100:6  -> as before  FENCED  FENCED
"""


@pytest.mark.parametrize(("status", "match", "expectation"), rows(INIT))
def test_init(status: str, match: str, expectation: str) -> None:
    coordinator, before = Coordinator(), in_status(TransactionStatus[status])
    coordinator.put(before)
    request = InitProducer(
        transactional_id=ORDERS, timeout_ms=TIMEOUT_MS, identity=IDENTITIES[match]
    )
    response = coordinator.ask(request)
    if status == "ONGOING" and expectation == "held":
        # The open transaction is aborted first.
        assert response is None
        assert coordinator.state.status is TransactionStatus.PREPARE_ABORT
        assert coordinator.state.ended_by is (EndedBy.FENCE if match == "none" else EndedBy.CLIENT)
        assert coordinator.markers[-1].marker_epoch == 6
        assert coordinator.markers[-1].is_bumped
        return
    check(coordinator, before, response, expectation)
    if response is not None and response.error is ErrorCode.NONE:
        assert response.identity == coordinator.state.next_identity


ADD_TV2 = """
status           current           retry   stale   foreign
EMPTY            -> ONGOING 100:5  FENCED  FENCED  UNMAPPED
ONGOING          -> ONGOING 100:5  FENCED  FENCED  UNMAPPED
PREPARE_COMMIT   held              FENCED  FENCED  UNMAPPED
PREPARE_ABORT    held              FENCED  FENCED  UNMAPPED
COMPLETE_COMMIT  -> ONGOING 100:5  FENCED  FENCED  UNMAPPED
COMPLETE_ABORT   -> ONGOING 100:5  FENCED  FENCED  UNMAPPED
"""


@pytest.mark.parametrize("is_tv2", [False, True])
@pytest.mark.parametrize(("status", "match", "expectation"), rows(ADD_TV2))
def test_add(status: str, match: str, expectation: str, is_tv2: bool) -> None:
    coordinator, before = Coordinator(), in_status(TransactionStatus[status])
    coordinator.put(before)
    present = IDENTITIES[match]
    assert present is not None
    response = coordinator.ask(add(present, SECOND, is_tv2=is_tv2))
    check(coordinator, before, response, expectation)
    if response is not None and response.error is ErrorCode.NONE:
        assert coordinator.state.partitions == before.partitions | {SECOND}
        assert coordinator.state.start_ms == WALL_MS
        assert response.last_outcome == before.last_outcome


@pytest.mark.parametrize("status", ["PREPARE_ABORT", "COMPLETE_ABORT"])
@pytest.mark.parametrize("ended_by", [EndedBy.TIMEOUT, EndedBy.OPERATOR])
@pytest.mark.parametrize(
    ("is_tv2", "error"),
    [
        (True, ErrorCode.TRANSACTION_ABORTABLE),
        (False, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_add_and_end_after_a_timeout_tell_the_client_to_abort(
    status: str, ended_by: EndedBy, is_tv2: bool, error: ErrorCode
) -> None:
    coordinator, before = Coordinator(), in_status(TransactionStatus[status], ended_by)
    coordinator.put(before)
    retry = identity(100, 4)
    assert coordinator.ask(add(retry, is_tv2=is_tv2)).error is error
    assert coordinator.end(retry, is_commit=True, is_tv2=is_tv2).error is error
    assert coordinator.ask(verify(retry)).errors == {FIRST: ErrorCode.TRANSACTION_ABORTABLE}
    assert coordinator.state == before


VERIFY = """
status           current     retry   stale   foreign
EMPTY            ABORTABLE   FENCED  FENCED  UNMAPPED
ONGOING          NONE        FENCED  FENCED  UNMAPPED
PREPARE_COMMIT   CONCURRENT  FENCED  FENCED  UNMAPPED
PREPARE_ABORT    CONCURRENT  FENCED  FENCED  UNMAPPED
COMPLETE_COMMIT  ABORTABLE   FENCED  FENCED  UNMAPPED
COMPLETE_ABORT   ABORTABLE   FENCED  FENCED  UNMAPPED
"""


@pytest.mark.parametrize(("status", "match", "expectation"), rows(VERIFY))
def test_verify(status: str, match: str, expectation: str) -> None:
    coordinator, before = Coordinator(), in_status(TransactionStatus[status])
    coordinator.put(before)
    present = IDENTITIES[match]
    assert present is not None
    response = coordinator.ask(verify(present, FIRST))
    assert response.errors == {FIRST: ERRORS[expectation]}
    assert coordinator.state == before


def test_verify_answers_for_each_partition() -> None:
    coordinator = Coordinator()
    coordinator.put(in_status(TransactionStatus.ONGOING))
    response = coordinator.ask(verify(identity(100, 5), FIRST, SECOND))
    assert response.errors == {FIRST: ErrorCode.NONE, SECOND: ErrorCode.TRANSACTION_ABORTABLE}


END_TV1 = """
status           current, commit          current, abort          retry   stale   foreign
EMPTY            ILLEGAL                  ILLEGAL                 FENCED  FENCED  UNMAPPED
ONGOING          -> PREPARE_COMMIT 100:5  -> PREPARE_ABORT 100:5  FENCED  FENCED  UNMAPPED
PREPARE_COMMIT   -> as before             ILLEGAL                 FENCED  FENCED  UNMAPPED
PREPARE_ABORT    ILLEGAL                  -> as before            FENCED  FENCED  UNMAPPED
COMPLETE_COMMIT  -> as before             ILLEGAL                 FENCED  FENCED  UNMAPPED
COMPLETE_ABORT   ILLEGAL                  -> as before            FENCED  FENCED  UNMAPPED
"""
END_TV2 = """
status           current, commit          current, abort           retry, commit  retry, abort  stale   foreign
EMPTY            ILLEGAL                  -> COMPLETE_ABORT 100:6  FENCED         FENCED        FENCED  UNMAPPED
ONGOING          -> PREPARE_COMMIT 100:6  -> PREPARE_ABORT 100:6   FENCED         FENCED        FENCED  UNMAPPED
PREPARE_COMMIT   ILLEGAL                  held                     -> as before   ILLEGAL       FENCED  UNMAPPED
PREPARE_ABORT    ILLEGAL                  held                     ILLEGAL        -> as before  FENCED  UNMAPPED
COMPLETE_COMMIT  ILLEGAL                  -> COMPLETE_ABORT 100:6  -> as before   ILLEGAL       FENCED  UNMAPPED
COMPLETE_ABORT   ILLEGAL                  -> COMPLETE_ABORT 100:6  ILLEGAL        -> as before  FENCED  UNMAPPED
"""
END_TV2_AFTER_A_TIMEOUT = """
status          current, commit  current, abort           retry, commit  retry, abort  stale
PREPARE_ABORT   ILLEGAL          held                     ABORTABLE      -> as before  FENCED
COMPLETE_ABORT  ILLEGAL          -> COMPLETE_ABORT 100:6  ABORTABLE      -> as before  FENCED
"""
END_TV2_AFTER_A_FENCE = """
status          current, commit  current, abort           retry, commit  retry, abort  stale
PREPARE_ABORT   ILLEGAL          held                     FENCED         FENCED        FENCED
COMPLETE_ABORT  ILLEGAL          -> COMPLETE_ABORT 100:6  FENCED         FENCED        FENCED
"""


def check_end(
    before: Transaction, match_and_outcome: str, expectation: str, *, is_tv2: bool
) -> None:
    match, _, outcome = match_and_outcome.partition(", ")
    present = IDENTITIES[match]
    assert present is not None
    for is_commit in (True, False):
        if outcome in ("", "commit" if is_commit else "abort"):
            coordinator = Coordinator()
            coordinator.put(before)
            coordinator.orders.clear()
            response = coordinator.end(present, is_commit=is_commit, is_tv2=is_tv2)
            check(coordinator, before, response, expectation)
            has_decided = before.status is TransactionStatus.ONGOING and expectation[:2] == "->"
            assert len(coordinator.markers) == has_decided
            if response is not None and response.error is ErrorCode.NONE:
                state = coordinator.state
                assert response.next_identity == (state.next_identity if is_tv2 else None)
                if has_decided:
                    assert state.last_outcome == Outcome(identity(100, 5), is_commit)
                    assert coordinator.markers[0].is_bumped is is_tv2


@pytest.mark.parametrize(("status", "match", "expectation"), rows(END_TV1))
def test_end_of_tv1(status: str, match: str, expectation: str) -> None:
    before = in_status(TransactionStatus[status])
    check_end(before, match, expectation, is_tv2=False)


@pytest.mark.parametrize(("status", "match", "expectation"), rows(END_TV2))
def test_end_of_tv2(status: str, match: str, expectation: str) -> None:
    before = in_status(TransactionStatus[status])
    check_end(before, match, expectation, is_tv2=True)


@pytest.mark.parametrize("ended_by", [EndedBy.TIMEOUT, EndedBy.OPERATOR])
@pytest.mark.parametrize(("status", "match", "expectation"), rows(END_TV2_AFTER_A_TIMEOUT))
def test_end_of_tv2_after_a_timeout(
    status: str, match: str, expectation: str, ended_by: EndedBy
) -> None:
    before = in_status(TransactionStatus[status], ended_by)
    check_end(before, match, expectation, is_tv2=True)


@pytest.mark.parametrize(("status", "match", "expectation"), rows(END_TV2_AFTER_A_FENCE))
def test_end_of_tv2_after_a_fence(status: str, match: str, expectation: str) -> None:
    before = in_status(TransactionStatus[status], EndedBy.FENCE)
    check_end(before, match, expectation, is_tv2=True)


def test_an_unknown_id_has_no_transaction() -> None:
    coordinator, present = Coordinator(), identity(100, 5)
    unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.ask(add(present)).error is unknown
    assert coordinator.ask(verify(present)).errors == {FIRST: unknown}
    for is_tv2 in (False, True):
        assert coordinator.end(present, is_commit=True, is_tv2=is_tv2).error is unknown
    assert not coordinator.log


@pytest.mark.parametrize("name", ["", "a" * 32_768, "query\x1f3"])
def test_an_id_that_cannot_be_is_refused(name: str) -> None:
    coordinator = Coordinator()
    request = InitProducer(transactional_id=ORDERS, timeout_ms=1)
    response = coordinator.ask(replace(request, transactional_id=name))
    assert response.error is ErrorCode.INVALID_REQUEST
    if "\x1f" not in name:
        request_2 = replace(add(identity(100, 5)), transactional_id=name)
        assert coordinator.ask(request_2).error is ErrorCode.INVALID_REQUEST
        request_3 = replace(end(identity(100, 5), is_commit=True), transactional_id=name)
        assert coordinator.ask(request_3).error is ErrorCode.INVALID_REQUEST
    assert not coordinator.log


@pytest.mark.parametrize("timeout_ms", [0, -1, 15 * 60_000 + 1])
def test_a_timeout_out_of_range_is_refused_except_for_two_phase_commit(timeout_ms: int) -> None:
    coordinator = Coordinator()
    request = InitProducer(transactional_id=ORDERS, timeout_ms=timeout_ms)
    assert coordinator.ask(request).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert coordinator.ask(replace(request, is_two_phase=True)).error is ErrorCode.NONE
    assert not coordinator.state.has_timeout
