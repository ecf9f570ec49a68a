"""Produces to one partition that arrive in one turn of the event loop share an append; each has its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock, patch

from odradek_broker.log.partition_log import AppendInfo, PartitionLog
from odradek_broker.partition.events import ProduceRequested
from odradek_broker.replication.client_requests import QUEUED_MAX, ProduceQueue, ProduceTurns
from odradek_broker.replication.outcomes import ProduceOutcome
from odradek_broker.replication.partition_host import PartitionHost
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
            patch.object(ProduceTurns, "AT_ONCE", 0),
        ):
            table.produce_turns.at_once = 0
            yield led


async def turn() -> None:
    await asyncio.sleep(0)


def sequence(number: int, *, producer_id: int = 7) -> bytes:
    return batch(0, producer_id=producer_id, producer_epoch=0, base_sequence=number)


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
    alone = ProduceRequested(request_id=1, record_count=1, acks=1, deadline_ms=0, producer=None)
    assert not any(queue.takes(alone, 100) for _ in range(ProduceTurns.AT_ONCE))
    assert queue.takes(alone, 100)

    first, second = ProduceQueue(turns, replica), queue
    for waiting in (first, second):
        turns.added_to(waiting)
    (end,) = ends
    end()
    assert queue.takes(alone, 100), "two were for one partition"
    turns.added_to(first)
    ends[1]()
    assert not queue.takes(alone, 100)
