"""Producing at a leader: repeated batches, sequence errors, the check before a response is sent,
and what readers see.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from odradek_broker.log.producer_state import ProducerStates, StoredBatch
from odradek_broker.partition import events
from odradek_broker.partition.effects import (
    Append,
    HighWatermarkMoved,
    RespondToProduce,
    Role,
    SendAttach,
    SendDetach,
)
from odradek_broker.partition.events import ProducerBatch
from odradek_broker.partition.log_positions import LogAtOpen
from odradek_broker.partition.replica import Replica
from odradek_broker.partition.settings import ReplicaSettings
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.partition.story import PARTITION, event_of, session


def leader(**log: int) -> tuple[Replica, ProducerStates]:
    producers = ProducerStates()
    replica = Replica(
        partition=PARTITION,
        broker_id=1,
        settings=ReplicaSettings(),
        log=LogAtOpen(
            log_start=0,
            log_end=log.get("end", 0),
            durable_end=log.get("end", 0),
            high_watermark=log.get("hw", 0),
            epochs=((1, 0),) if log.get("end") else (),
        ),
        producers=producers,
        attach_seqs=itertools.count(1),
    )
    tell(replica, "partition-changed leader=1 leader_epoch=5 partition_epoch=10 isr=1,2")
    return replica, producers


def tell(replica: Replica, text: str, now_ms: int = 0) -> list[Any]:
    name, *words = text.split()
    return list(replica.step(event_of(name, words), now_ms))


def produce(replica: Replica, request_id: int, **changes: Any) -> list[Any]:
    fields: dict[str, Any] = {
        "record_count": 1,
        "acks": -1,
        "deadline_ms": 1_000,
        "producer": ProducerBatch(
            producer_id=7, producer_epoch=0, base_sequence=0, last_sequence=0
        ),
    }
    event = events.ProduceRequested(request_id=request_id, **{**fields, **changes})
    return list(replica.step(event, 0))


def written(replica: Replica, producers: ProducerStates, sequence: int) -> list[Any]:
    """Produce a batch of one record, and complete the append."""
    base = replica.log_end
    batch = ProducerBatch(
        producer_id=7, producer_epoch=0, base_sequence=sequence, last_sequence=sequence
    )
    asked = produce(replica, 100 + sequence, producer=batch)
    assert [type(effect) for effect in asked] == [Append]
    producers.note_batch(
        7, 0, StoredBatch(sequence, sequence, base, base, 0), is_transactional=False
    )
    return list(replica.step(events.Appended(end_offset=base + 1), 0))


def replicate(replica: Replica, end: int) -> list[Any]:
    one = "session=2/102/1"
    tell(replica, f"attach-received {one} leader_epoch=5 log_end=0 last_epoch=-1")
    tell(replica, f"data-sent {one} end_offset={end} high_watermark=0")
    return tell(replica, f"ack-received {one} leader_epoch=5 ack_to={end}")


def test_a_repeat_waits_for_the_watermark_and_is_told_the_first_offset() -> None:
    replica, producers = leader()
    written(replica, producers, 0)
    written(replica, producers, 1)
    assert produce(replica, 1) == [], "answered before it was replicated"
    assert replica.log_end == 2, "appended again"
    effects = replicate(replica, 2)
    answers = {e.request_id: e.base_offset for e in effects if isinstance(e, RespondToProduce)}
    assert answers == {100: 0, 101: 1, 1: 0}


def test_a_repeat_below_the_watermark_is_answered_at_once() -> None:
    replica, producers = leader()
    written(replica, producers, 0)
    replicate(replica, 1)
    (answer,) = produce(replica, 1)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)


def test_a_repeat_with_acks_1_does_not_wait() -> None:
    replica, producers = leader()
    written(replica, producers, 0)
    (answer,) = produce(replica, 1, acks=1)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)


@pytest.mark.parametrize(
    ("epoch", "sequence", "expected"),
    [
        (0, 5, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (-1, 1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (1, 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
)
def test_a_batch_out_of_order_is_refused_and_not_written(
    epoch: int, sequence: int, expected: ErrorCode
) -> None:
    replica, producers = leader()
    written(replica, producers, 0)
    batch = ProducerBatch(
        producer_id=7, producer_epoch=epoch, base_sequence=sequence, last_sequence=sequence
    )
    (answer,) = produce(replica, 1, producer=batch)
    assert answer.error_code is expected
    assert replica.log_end == 1


def test_what_the_isr_confirmed_passes_the_gate_without_a_lease() -> None:
    replica, _ = leader()
    late = {"lease_until_ms": 100, "now_ms": 5_000}
    assert not replica.may_respond(5, **late)
    assert replica.may_respond(5, **late, is_replicated=True)
    assert not replica.may_respond(4, **late, is_replicated=True), "of an earlier epoch"
    ended = {"lease_until_ms": 0, "now_ms": 5_000}
    assert not replica.may_respond(5, **ended, is_replicated=True), "it knows that it is fenced"
    tell(replica, "partition-changed leader=1 leader_epoch=5 partition_epoch=11 isr=1")
    assert not replica.may_respond(5, **late, is_replicated=True), "nobody else confirms anything"
    tell(replica, "partition-changed leader=2 leader_epoch=6 partition_epoch=12")
    assert not replica.may_respond(6, **late, is_replicated=True), "a follower"


def test_the_gate_wants_the_lease_and_the_epoch() -> None:
    replica, _ = leader()
    assert replica.may_respond(5, lease_until_ms=100, now_ms=99)
    assert not replica.may_respond(5, lease_until_ms=100, now_ms=100)
    assert not replica.may_respond(4, lease_until_ms=100, now_ms=0)
    tell(replica, "partition-changed leader=2 leader_epoch=6 partition_epoch=11")
    assert not replica.may_respond(5, lease_until_ms=100, now_ms=0)


def test_readers_of_a_leader_see_up_to_the_watermark_or_the_last_stable_offset() -> None:
    replica, _ = leader(end=10, hw=6)
    every = replica.read_bound(last_stable_offset=4, is_committed_only=False)
    committed = replica.read_bound(last_stable_offset=4, is_committed_only=True)
    assert (every.start_offset, every.end_offset) == (0, 6)
    assert committed.end_offset == 4


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [
        (0, -1, ErrorCode.NONE),
        (8, 5, ErrorCode.NONE),  # above the watermark: empty
        (11, 5, ErrorCode.OFFSET_OUT_OF_RANGE),
        (0, 4, ErrorCode.FENCED_LEADER_EPOCH),
        (0, 6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_what_a_leader_refuses_to_read(offset: int, epoch: int, expected: ErrorCode) -> None:
    replica, _ = leader(end=10, hw=6)
    bound = replica.read_bound(
        last_stable_offset=6,
        is_committed_only=False,
        client_leader_epoch=epoch,
        fetch_offset=offset,
    )
    assert bound.error_code is expected


def test_the_latest_offset_is_not_told_before_the_epochs_start_is_committed() -> None:
    replica, _ = leader(end=10, hw=6)
    bound = replica.latest_offset(last_stable_offset=6, is_committed_only=False)
    assert bound.error_code is ErrorCode.OFFSET_NOT_AVAILABLE
    replica.step(event_of("attach-received", _attach(10)), 0)
    moved = tell(replica, "ack-received session=2/102/1 leader_epoch=5 ack_to=10")
    assert HighWatermarkMoved(high_watermark=10) in moved
    bound = replica.latest_offset(last_stable_offset=10, is_committed_only=False)
    assert (bound.error_code, bound.end_offset) == (ErrorCode.NONE, 10)


def _attach(end: int) -> list[str]:
    return ["session=2/102/1", "leader_epoch=5", f"log_end={end}", "last_epoch=1"]


def test_readers_of_a_follower_need_it_in_sync_and_streaming() -> None:
    replica, _ = leader(end=10, hw=6)
    tell(replica, "partition-changed leader=2 leader_epoch=6 partition_epoch=11 isr=1,2")

    def refused(offset: int) -> ErrorCode:
        return replica.read_bound(
            last_stable_offset=6, is_committed_only=False, fetch_offset=offset
        ).error_code

    assert refused(0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    tell(replica, "session-ready session_id=1 leader=2")
    tell(replica, "attached-received leader_epoch=6 high_watermark=6")
    assert refused(0) is ErrorCode.NONE
    assert refused(6) is ErrorCode.NONE
    assert refused(7) is ErrorCode.OFFSET_NOT_AVAILABLE
    tell(replica, "partition-changed leader=2 leader_epoch=6 partition_epoch=12 isr=2")
    assert refused(0) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_data_is_due_only_in_the_session_that_is_attached() -> None:
    replica, _ = leader(end=10, hw=6)
    replica.step(event_of("attach-received", _attach(4)), 0)
    due = replica.data_due(session("2/102/1"))
    assert due is not None
    assert (due.from_offset, due.log_end, due.high_watermark) == (4, 10, 6)
    assert replica.data_due(session("2/102/2")) is None
    tell(replica, "data-sent session=2/102/1 end_offset=10 high_watermark=6")
    assert replica.data_due(session("2/102/1")) is None


def test_a_leader_without_room_refuses_and_leads_on() -> None:
    replica, producers = leader()
    assert [type(effect) for effect in produce(replica, 1)] == [Append]
    (answer,) = replica.step(events.AppendRefused(), 0)
    assert answer.request_id == 1
    assert answer.error_code is ErrorCode.KAFKA_STORAGE_ERROR
    assert replica.role is Role.LEADER
    assert replica.log_end == 0
    written(replica, producers, 0)  # the same batch again, when there is room
    answers = replicate(replica, 1)
    assert [a.error_code for a in answers if isinstance(a, RespondToProduce)] == [ErrorCode.NONE]


def test_a_follower_without_room_asks_for_the_same_again_later() -> None:
    replica, _ = leader()
    tell(replica, "partition-changed leader=2 leader_epoch=6 partition_epoch=11 isr=1,2")
    tell(replica, "session-ready leader=2 session_id=7")
    tell(
        replica,
        "attached-received session_id=7 leader_epoch=6 attach_seq=1 high_watermark=0 log_start=0",
    )
    data = "data-received session_id=7 leader_epoch=6 base_offset=0 end_offset=1 high_watermark=0"
    (append,) = tell(replica, f"{data} log_start=0 epochs=6@0")
    assert isinstance(append, Append)
    (detach,) = replica.step(events.AppendRefused(), 0)
    assert isinstance(detach, SendDetach)
    assert replica.log_end == 0
    (attach,) = replica.step(events.Tick(), 1_000)
    assert isinstance(attach, SendAttach)
    assert attach.log_end == 0
