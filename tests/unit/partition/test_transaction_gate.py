"""Which transactional produces the leader holds until the coordinator responds, in which order it
releases them, and their responses if no coordinator can be reached.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.partition.events import ProducerBatch, RegistrationMode
from odradek_broker.partition.transaction_gate import HELD_MAX
from odradek_protocol.identity import LeaderEpoch, Offset, PartitionIndex
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.partition.transaction_world import HERE, TransactionWorld
from tests.worlds.transactions import PRODUCER, TRANSACTIONS

ADD, VERIFY = RegistrationMode.ADD, RegistrationMode.VERIFY


def refuse(world: TransactionWorld, code: ErrorCode) -> None:
    """Respond to the oldest registration with this error."""
    _, asked = world.registrations.pop(0)
    world._step(
        ev.TransactionVerified(
            guard=asked.guard,
            error_code=code,
            coordinator_partition=PartitionIndex(-1),
            coordinator_epoch=LeaderEpoch(-1),
        )
    )


def test_only_the_first_batch_of_a_transaction_asks_and_the_others_keep_their_order() -> None:
    world = TransactionWorld()
    sent = [world.send(0, sequence) for sequence in range(3)]
    assert len(world.registrations) == 1
    assert world.shown() == []
    world.register_all()
    assert world.shown() == ["b0.0", "b0.1", "b0.2"]
    assert [batch.code for batch in sent] == [ErrorCode.NONE] * 3
    world.send(0, 3)
    assert world.registrations == []
    assert world.shown()[-1] == "b0.3"


def test_a_repeat_is_answered_without_a_registration_also_after_the_end() -> None:
    world = TransactionWorld(mode=VERIFY)
    world.coordinator.add(0, HERE)
    world.send(0, 0, number=0)
    world.register_all()
    world.finish(is_commit=True)
    again = world.send(0, 0, number=0)
    assert (again.code, world.registrations) == (ErrorCode.NONE, [])
    assert world.shown() == ["b0.0", "c0"]


def test_a_batch_of_an_old_epoch_is_refused_without_a_registration() -> None:
    world = TransactionWorld()
    world.send(0, 0)
    world.register_all()
    world.finish(is_commit=True)
    late = world.send(0, 1)
    assert (late.code, world.registrations) == (ErrorCode.INVALID_PRODUCER_EPOCH, [])


def test_more_than_five_batches_are_not_held() -> None:
    world = TransactionWorld()
    sent = [world.send(0, sequence) for sequence in range(HELD_MAX + 1)]
    assert [batch.code for batch in sent] == [None] * HELD_MAX + [ErrorCode.NOT_ENOUGH_REPLICAS]


def test_other_producers_pass_a_batch_that_is_held() -> None:
    world = TransactionWorld()
    world.send(0, 0)
    other = ProducerBatch(8, 0, 0, 0)
    produce = ev.ProduceRequested(
        request_id=99, record_count=1, acks=-1, deadline_ms=1_000, producer=other
    )
    effects = world.replica.step(produce, 0)
    assert [type(effect) for effect in effects] == [fx.Append]


@pytest.mark.parametrize(
    ("mode", "code", "expected"),
    [
        (ADD, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (VERIFY, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ADD, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ADD, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
def test_a_final_error_refuses_all_batches_of_that_transaction(
    mode: RegistrationMode, code: ErrorCode, expected: ErrorCode
) -> None:
    world = TransactionWorld(mode=mode)
    sent = [world.send(0, sequence) for sequence in range(2)]
    refuse(world, code)
    assert [batch.code for batch in sent] == [expected] * 2
    assert world.shown() == []
    world.send(0, 0)
    assert len(world.registrations) == 1, "the next batch asks again"


@pytest.mark.parametrize(
    ("mode", "code"),
    [
        (ADD, ErrorCode.NOT_COORDINATOR),
        (ADD, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ADD, ErrorCode.UNKNOWN_SERVER_ERROR),
        (VERIFY, ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
def test_an_error_that_says_nothing_about_the_transaction_is_tried_again_until_the_deadline(
    mode: RegistrationMode, code: ErrorCode
) -> None:
    world = TransactionWorld(mode=mode)
    sent = world.send(0, 0)
    for _ in range(10):
        refuse(world, code)
        assert world.registrations == []
        world.tick()
        assert len(world.registrations) == 1
    assert sent.code is None
    world.tick(5_000)
    assert sent.code is ErrorCode.NOT_ENOUGH_REPLICAS
    world.register_all()
    assert world.shown() == [], "the response came too late"


def test_what_waits_behind_a_batch_that_is_late_is_refused_with_it() -> None:
    """A later batch without the earlier one would leave a gap in the sequence numbers."""
    world = TransactionWorld()
    first = world.send(0, 0)
    second = world.send(0, 1, timeout_ms=50)
    third = world.send(0, 2)
    world.tick(60)
    assert [first.code, second.code, third.code] == [
        None,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    ]
    world.register_all()
    assert world.shown() == ["b0.0"]


def test_a_zombies_batch_in_front_does_not_stop_its_successor() -> None:
    world = TransactionWorld()
    zombie = world.send(0, 0)
    world.coordinator.fence()
    successor = world.send(1, 0)
    world.register_all()
    assert (zombie.code, successor.code) == (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.NONE)
    assert world.shown() == ["b1.0"]


def test_a_yes_of_a_deposed_coordinator_counts_for_nothing() -> None:
    world = TransactionWorld()
    world.send(0, 0)
    world.respond()
    world.coordinator.fail_over()
    world._step(
        ev.TransactionVerified(
            guard=0,
            error_code=ErrorCode.NONE,
            coordinator_partition=TRANSACTIONS,
            coordinator_epoch=LeaderEpoch(2),
        )
    )
    world.hear()
    assert world.shown() == []
    world.tick()
    world.register_all()
    assert world.shown() == ["b0.0"]


def test_the_first_batch_of_an_unknown_producer_begins_at_sequence_0() -> None:
    world = TransactionWorld()
    sent = world.send(0, 4)
    world.register_all()
    assert sent.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    world = TransactionWorld(mode=VERIFY)
    world.coordinator.add(0, HERE)
    sent = world.send(0, 4, number=0)
    world.register_all()
    assert sent.code is ErrorCode.NONE, "its entry may have expired"


def test_a_batch_outside_of_its_producers_open_transaction_is_refused() -> None:
    world = TransactionWorld()
    world.send(0, 0)
    world.register_all()
    for epoch, expected in ((0, ErrorCode.INVALID_TXN_STATE), (1, ErrorCode.INVALID_TXN_STATE)):
        produce = ev.ProduceRequested(
            request_id=99,
            record_count=1,
            acks=-1,
            deadline_ms=1_000,
            producer=ProducerBatch(PRODUCER, epoch, 1, 1),
        )
        (answer,) = world.replica.step(produce, 0)
        assert isinstance(answer, fx.RespondToProduce)
        assert answer.error_code is expected


def test_the_end_of_the_leader_epoch_refuses_what_is_held() -> None:
    world = TransactionWorld()
    world.send(0, 0)
    effects = world.replica.step(ev.PartitionRemoved(), 0)
    answers = [effect for effect in effects if isinstance(effect, fx.RespondToProduce)]
    assert [answer.error_code for answer in answers] == [ErrorCode.UNKNOWN_TOPIC_ID]


def steps(world: TransactionWorld, event: ev.Event) -> list[Any]:
    return list(world.replica.step(event, world.now_ms))


def test_a_full_disk_fails_also_the_batches_that_were_to_follow() -> None:
    world = TransactionWorld(mode=VERIFY)
    world.coordinator.add(0, HERE)
    for sequence in range(2):
        world.send(0, sequence)
    world.respond()
    effects = steps(world, world.responses.pop().event)
    assert [type(effect) for effect in effects] == [fx.Append]
    effects = steps(world, ev.AppendRefused())
    assert [effect.error_code for effect in effects] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2


def test_a_batch_does_not_join_a_transaction_whose_marker_was_refused() -> None:
    """The disk refuses the marker of an orphaned transaction once, for want of a descriptor."""
    world = TransactionWorld()
    world.send(0, 0)
    world.register_all()
    world.finish(is_commit=True)
    world.move_leader(lost=1)
    world.send(1, 0)
    world.respond()
    effects = steps(world, world.responses.pop().event)
    assert [type(effect) for effect in effects] == [fx.OrphanEnded, fx.AppendMarkers]
    (failed,) = steps(world, ev.AppendRefused())
    assert failed.error_code is ErrorCode.KAFKA_STORAGE_ERROR
    assert world.shown() == ["b0.0"]


def test_a_failed_write_answers_also_the_batches_that_were_to_follow() -> None:
    world = TransactionWorld()
    for sequence in range(3):
        world.send(0, sequence)
    world.respond()
    steps(world, world.responses.pop().event)
    effects = steps(world, ev.StorageFailed(reason="EIO"))
    codes = [effect.error_code for effect in effects if isinstance(effect, fx.RespondToProduce)]
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR] * 3


def test_nothing_is_appended_with_too_few_replicas_in_sync_and_no_orphan_is_ended() -> None:
    world = TransactionWorld()
    world.send(0, 0)
    world.register_all()
    world.finish(is_commit=True)
    world.move_leader(lost=1)
    view = world.replica._view
    assert view is not None
    steps(world, replace(view, partition_epoch=9, replicas=(1, 2), min_insync_replicas=2))
    sent = world.send(1, 0)
    world.register_all()
    assert sent.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.shown() == ["b0.0"]


def test_a_synced_log_is_synced_once_for_all_batches_that_the_gate_lets_go() -> None:
    world = TransactionWorld(mode=VERIFY)
    world.coordinator.add(0, HERE)
    view = world.replica._view
    assert view is not None
    steps(world, replace(view, partition_epoch=9, is_fsync=True))
    for sequence in range(2):
        world.send(0, sequence)
    world.respond()
    steps(world, world.responses.pop().event)
    first = steps(world, ev.Appended(end_offset=Offset(1)))
    assert [type(effect) for effect in first] == [fx.Append]
    second = steps(world, ev.Appended(end_offset=Offset(2)))
    assert [type(effect) for effect in second] == [fx.Sync]
