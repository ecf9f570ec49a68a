"""The ledger of a query's staged writes, where the query has the name of a producer's transactional id."""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek_broker.transactions.messages import ForgetSteps, InitProducer
from odradek_broker.transactions.transaction import Ledger
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.transactions.coordinator import Coordinator, add, end, identity
from tests.unit.transactions.test_staged_steps import QUERY, complete


def test_a_query_id_may_be_a_producers_too() -> None:
    coordinator = Coordinator()
    complete(coordinator, step=4)
    response = coordinator.ask(InitProducer(transactional_id=QUERY, timeout_ms=1_000))
    assert response.identity == identity(1_000, 0)
    assert coordinator.shard.staged.ledger_of(QUERY) == Ledger(last_step=4, members=0)
    assert complete(coordinator, step=5).error is ErrorCode.NONE
    state = coordinator.shard.table.get(QUERY)
    assert state is not None
    assert state.next_identity == identity(1_000, 0)


@pytest.mark.parametrize("is_marked", [False, True])
@pytest.mark.parametrize("is_commit", [False, True])
def test_a_step_completes_whatever_the_producer_of_that_name_has_just_done(
    is_commit: bool, is_marked: bool
) -> None:
    coordinator = Coordinator()
    producer = coordinator.ask(InitProducer(transactional_id=QUERY, timeout_ms=1_000)).identity
    coordinator.ask(replace(add(producer), transactional_id=QUERY))
    coordinator.ask(replace(end(producer, is_commit=is_commit), transactional_id=QUERY))
    if is_marked:
        coordinator.mark()
    before = coordinator.shard.table.get(QUERY)
    assert before is not None
    assert complete(coordinator, step=4).error is ErrorCode.NONE
    assert coordinator.shard.staged.ledger_of(QUERY) == Ledger(last_step=4, members=0)
    assert coordinator.ask(ForgetSteps(query=QUERY)).error is ErrorCode.NONE
    assert coordinator.shard.table.get(QUERY) == before


def test_nobody_is_the_producer_of_a_ledger() -> None:
    coordinator = Coordinator()
    complete(coordinator, step=4)
    nobody = identity(-1, -1)
    request = replace(add(nobody), transactional_id=QUERY)
    assert coordinator.ask(request).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_ledger_is_forgotten_and_the_producer_of_that_name_stays() -> None:
    coordinator = Coordinator()
    complete(coordinator)
    producer = coordinator.ask(InitProducer(transactional_id=QUERY, timeout_ms=1_000)).identity
    assert coordinator.ask(ForgetSteps(query=QUERY)).error is ErrorCode.NONE
    state = coordinator.shard.table.get(QUERY)
    assert state is not None
    assert state.next_identity == producer
    assert state.ledger is None
