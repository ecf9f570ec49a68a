"""Produce requests to one partition that arrive in one iteration of the event loop share an append. Each has its own
outcome. A single request is appended at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock, patch

import pytest

from odradek_broker.log.partition_log import AppendInfo, PartitionLog
from odradek_broker.partition import events as ev
from odradek_broker.partition.effects import Role
from odradek_broker.replication.client_requests import (
    AT_ONCE_MAX,
    FLUSHED_MAX,
    QUEUED_MAX,
    ClientRequests,
    ProduceQueue,
    ProduceTurns,
)
from odradek_broker.replication.outcomes import ProduceOutcome
from odradek_broker.replication.partition_host import PartitionHost
from odradek_protocol.identity import NO_LEADER_EPOCH
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records import decode_batch, iter_headers
from tests.unit.log.material import TOPIC_ID, Broker, batch, memory_broker
from tests.unit.replication.led_partition import change, leading, led_by
from tests.unit.replication.memory_table import OTHER, served
from tests.worlds.memory_storage import MemoryStorage


class Led:
    """A replica that leads, with its appends and the outcomes of its produces by their number."""

    def __init__(self, broker: Broker, host: PartitionHost, table: Any) -> None:
        self.broker = broker
        self.host = host
        self.table = table
        self.outcomes: dict[int, ProduceOutcome] = {}
        self.appends: list[int] = []  # the records in each

    def produce(self, number: int, data: bytes | None = None, *, acks: int = 1) -> None:
        def done(outcome: ProduceOutcome) -> None:
            assert number not in self.outcomes
            self.outcomes[number] = outcome

        self.host.produce(
            data if data is not None else batch(0), acks=acks, timeout_ms=1000, on_done=done
        )

    def errors(self) -> list[ErrorCode]:
        return [self.outcomes[number].error for number in sorted(self.outcomes)]

    def offsets(self) -> list[int]:
        return [self.outcomes[number].base_offset for number in sorted(self.outcomes)]


@asynccontextmanager
async def leader() -> AsyncIterator[Led]:
    broker = memory_broker()
    async with leading(broker) as (partitions, table):
        led = Led(broker, served(partitions).host, table)
        append = PartitionLog.append

        def counted(log: PartitionLog, *args: Any, **kwargs: Any) -> AppendInfo:
            info = append(log, *args, **kwargs)
            led.appends.append(info.end_offset - info.base_offset)
            return info

        with (
            patch.object(PartitionLog, "append", counted),
        ):
            table.produce_turns.at_once = table.produce_turns.at_once_max = 0
            yield led


async def turn() -> None:
    await asyncio.sleep(0)


def sequence(number: int, *, producer_id: int = 7) -> bytes:
    return batch(0, producer_id=producer_id, producer_epoch=0, base_sequence=number)


@pytest.mark.interpreted
async def test_produces_of_one_turn_are_one_append_with_an_outcome_each() -> None:
    async with leader() as led:
        end = led.host.log.log_end_offset
        led.produce(0)
        led.produce(1, batch(0, count=3))
        led.produce(2, acks=-1)
        assert led.outcomes == {}
        await turn()
        assert led.appends == [5]
        assert led.errors() == [ErrorCode.NONE] * 3
        assert led.offsets() == [end, end + 1, end + 4]
        read = led.host.log.read(end, bytes_max=1 << 20, end_offset=led.host.log.log_end_offset)
        data = b"".join(map(bytes, read.slices))
        offsets = [r.offset for at, _ in iter_headers(data) for r in decode_batch(data, at)]
        assert offsets == list(range(end, end + 5))


async def test_each_duplicate_and_each_refusal_in_a_turn_is_its_own() -> None:
    async with leader() as led:
        end = led.host.log.log_end_offset
        led.produce(0, sequence(0))
        led.produce(1, sequence(0))  # a duplicate of the one before it
        led.produce(2, sequence(1))
        led.produce(3, sequence(9))  # a gap
        led.produce(4, sequence(0, producer_id=8))
        await turn()
        assert led.offsets() == [end, end, end + 1, -1, end + 2]
        assert led.errors() == [
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.NONE,
        ]
        assert led.host.log.log_end_offset == end + 3


async def test_a_full_disk_refuses_all_of_a_turn_and_keeps_nothing_of_them() -> None:
    async with leader() as led:
        end = led.host.log.log_end_offset
        storage = led.broker.storage
        assert isinstance(storage, MemoryStorage)

        def full(operation: str, path: object) -> int | None:
            if operation == "write":
                raise OSError(28, "No space left on device")
            return None

        storage.fault = full
        for number in range(3):
            led.produce(number)
        await turn()
        assert led.errors() == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
        assert led.host.log.log_end_offset == end


@pytest.mark.interpreted
async def test_with_acks_0_and_more_than_may_wait_nothing_waits() -> None:
    async with leader() as led:
        led.produce(0)
        led.produce(1, acks=0)
        assert led.appends == [1, 1], "an earlier produce stays the earlier one"
        for number in range(2, QUEUED_MAX + 3):
            led.produce(number)
        assert led.appends == [1, 1, QUEUED_MAX]
        await turn()
        assert led.appends == [1, 1, QUEUED_MAX, 1]


async def test_a_replica_that_stops_leading_or_fails_answers_what_waits() -> None:
    async with leader() as led:
        led.produce(0)
        change(led.table, led_by(OTHER))
        assert led.errors() == [ErrorCode.NONE], "it led when the produce arrived"
        led.produce(1)
        led.table._on_offline = lambda reason: None
        led.host.failed("the disk is gone")
        assert led.errors() == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]
        await turn()
        assert len(led.outcomes) == 2


async def test_a_removed_replica_refuses_what_waits() -> None:
    async with leader() as led:
        led.produce(0)
        led.host.removed()
        assert led.errors() == [ErrorCode.UNKNOWN_TOPIC_ID]
        assert led.host.partition.topic_id == TOPIC_ID


async def test_a_lone_produce_waits_for_no_turn() -> None:
    ends: list[Any] = []
    turns = ProduceTurns(ends.append)
    replica = Mock()
    queue = ProduceQueue(turns, replica)

    def waits() -> bool:
        return queue.is_for(1, bytes(100), NO_LEADER_EPOCH)

    assert not any(waits() for _ in range(AT_ONCE_MAX))
    assert waits()

    first, second = ProduceQueue(turns, replica), queue
    for waiting in (first, second):
        turns.added_to(waiting)
    turns.added_to(second)
    (end,) = ends
    end()
    assert waits(), "two were for one partition"
    turns.added_to(first)
    ends[1]()
    assert not waits()


async def test_produces_to_very_many_partitions_are_appended_in_several_iterations() -> None:
    iterations: list[Any] = []
    turns = ProduceTurns(iterations.append, at_once_max=0)
    replica = Mock(**{"step.return_value": None})
    queues = [ProduceQueue(turns, replica) for _ in range(2 * FLUSHED_MAX + 1)]
    request = ev.ProduceRequested(request_id=1, record_count=1, acks=1, deadline_ms=0)
    for queue in queues:
        queue.add(request)
    left: list[int] = []
    for end in iterations:  # `end` may append the next one
        end()
        left.append(sum(len(queue.requests) for queue in queues))
    assert left == [FLUSHED_MAX + 1, 1, 0]
    queues[0].add(request)
    assert len(iterations) == 4, "a later produce is flushed in an iteration of its own"


@asynccontextmanager
async def unshared() -> AsyncIterator[Led]:
    """Yield a leader at which a produce request that becomes an event, instead of a direct call, is an error."""
    async with leader() as led:
        led.table.produce_turns.at_once = 9
        with patch.object(ClientRequests, "add_produce", side_effect=AssertionError("an event")):
            yield led


async def test_a_lone_produce_is_appended_and_answered_at_once_without_an_event() -> None:
    async with unshared() as led:
        end = led.host.log.log_end_offset
        led.produce(0)
        led.produce(1, sequence(0))
        led.produce(2, batch(0, count=3), acks=-1)  # no other replica has to confirm it
        led.produce(3, acks=0)
        assert led.errors() == [ErrorCode.NONE] * 4
        assert led.offsets() == [end, end + 1, end + 2, end + 5]
        assert led.host.replica.high_watermark == led.host.log.high_watermark == end + 6
        assert {outcome.leader_epoch for outcome in led.outcomes.values()} == {2}


async def test_a_lone_duplicate_or_gap_is_judged_as_an_event() -> None:
    async with leader() as led:
        led.table.produce_turns.at_once = 9
        end = led.host.log.log_end_offset
        for number, base_sequence in enumerate((0, 0, 9, 1)):
            led.produce(number, sequence(base_sequence))
        assert led.offsets() == [end, end, -1, end + 1]
        assert led.errors()[2] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert led.host.log.log_end_offset == end + 2


async def test_acks_all_waits_for_a_sync_that_the_topic_wants() -> None:
    async with leader() as led:
        led.table.produce_turns.at_once = 9
        led.host.replica._log.is_fsync = True
        led.produce(0, acks=-1)
        assert led.outcomes == {}, "nothing is synced yet"
        led.produce(1, acks=1)
        assert led.errors() == [ErrorCode.NONE]


async def test_a_full_disk_refuses_a_lone_produce_and_the_next_one_is_appended() -> None:
    async with unshared() as led:
        end = led.host.log.log_end_offset
        storage = led.broker.storage
        assert isinstance(storage, MemoryStorage)
        is_full = True

        def full(operation: str, path: object) -> int | None:
            if is_full and operation == "write":
                raise OSError(28, "No space left on device")
            return None

        storage.fault = full
        led.produce(0)
        assert led.errors() == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert led.host.log.log_end_offset == end
        is_full = False
        led.broker.directory.health.full = None
        led.produce(1)
        assert (led.errors()[1], led.outcomes[1].base_offset) == (ErrorCode.NONE, end)


@pytest.mark.interpreted
async def test_a_bug_in_a_lone_append_answers_it_and_ends_only_this_replica() -> None:
    async with unshared() as led:
        led.table._on_broken = lambda broken: None
        with patch.object(PartitionLog, "append", side_effect=AssertionError("a bug")):
            led.produce(0)
        assert led.errors() == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert led.host.is_failed
        assert led.host.replica.role is Role.FAILED


async def test_a_callback_that_produces_again_comes_after_the_first_append() -> None:
    async with leader() as led:
        led.table.produce_turns.at_once = 9
        end = led.host.log.log_end_offset

        def again(outcome: ProduceOutcome) -> None:
            led.outcomes[0] = outcome
            led.produce(1)
            assert 1 not in led.outcomes, "a step is under way"

        led.host.produce(batch(0), acks=1, timeout_ms=1000, on_done=again)
        assert led.offsets() == [end, end + 1]
