"""Fetches of read_committed consumers: where they end, and which events wake a waiting one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.partition import events as ev
from odradek_broker.replication.local_partitions import FetchWaiter, FetchWant, LocalPartitions
from odradek_broker.replication.outcomes import ProduceOutcome, ReadOutcome
from odradek_protocol.identity import BrokerEpoch, LeaderEpoch, Offset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.builder import BatchBuilder
from odradek_protocol.records.control import ControlType, encode_marker
from tests.unit.log.material import memory_broker
from tests.unit.replication.memory_table import CONFIG, OTHER, served
from tests.unit.replication.test_local_partitions import leader


def append(partitions: LocalPartitions, data: bytes) -> None:
    """Append a batch or marker through the coordinator's interface, which needs no registration."""
    outcomes: list[ProduceOutcome] = []
    served(partitions).produce(
        data, acks=1, timeout_ms=1_000, on_done=outcomes.append, is_internal=True
    )
    assert [outcome.error for outcome in outcomes] == [ErrorCode.NONE]
    confirm(partitions)


def confirm(partitions: LocalPartitions) -> None:
    """Let the other replica acknowledge the whole log."""
    host = served(partitions).host
    session = ev.FollowerSession(broker_id=OTHER, broker_epoch=BrokerEpoch(0), session_id=1)
    epoch, end = LeaderEpoch(0), host.replica.log_end
    if host.replica.data_due(session) is None:
        host.step(
            ev.AttachReceived(
                session=session,
                attach_seq=1,
                leader_epoch=epoch,
                log_end=Offset(3),
                last_epoch=epoch,
                log_start=Offset(0),
            )
        )
    host.step(
        ev.DataSent(session=session, end_offset=end, high_watermark=host.replica.high_watermark)
    )
    host.step(
        ev.AckReceived(
            session=session,
            leader_epoch=epoch,
            ack_to=end,
            is_synced=False,
            log_start=Offset(0),
        )
    )
    assert host.replica.high_watermark == end


def batch(size_bytes: int) -> bytes:
    builder = BatchBuilder()
    builder.append(b"key", b"v" * size_bytes, None, 0)
    return builder.build(producer_id=7, producer_epoch=0, transactional=True)


def marker() -> bytes:
    return encode_marker(
        ControlType.COMMIT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
    )


async def settle() -> None:
    """Let the fetch read the records that woke it, which are all in memory."""
    for _ in range(10):
        await asyncio.sleep(0)


async def fetch(
    partitions: LocalPartitions, *, bytes_min: int, wait_ms_max: int, read_committed: bool = True
) -> ReadOutcome:
    want = FetchWant(partition=served(partitions), offset=Offset(3), bytes_max=1 << 20)
    (outcome,) = await partitions.fetch(
        [want],
        bytes_min=bytes_min,
        bytes_max=1 << 20,
        wait_ms_max=wait_ms_max,
        read_committed=read_committed,
    )
    return outcome


async def test_a_fetch_of_committed_records_ends_before_an_open_transaction() -> None:
    async with leader(memory_broker(CONFIG)) as (partitions, _):
        append(partitions, batch(100))
        committed = await fetch(partitions, bytes_min=1, wait_ms_max=0)
        assert (committed.size_bytes, committed.last_stable_offset) == (0, 3)
        all_of_it = await fetch(partitions, bytes_min=1, wait_ms_max=0, read_committed=False)
        assert all_of_it.size_bytes > 100


async def test_a_small_marker_wakes_a_fetch_that_waits_for_the_transaction_before_it() -> None:
    async with leader(memory_broker(CONFIG)) as (partitions, _):
        waiting = asyncio.create_task(fetch(partitions, bytes_min=2_000, wait_ms_max=600_000))
        await asyncio.sleep(0)
        for _ in range(4):
            append(partitions, batch(1_000))
            await settle()
            assert not waiting.done(), "nothing of it is committed"
        append(partitions, marker())
        await settle()
        assert waiting.done()
        outcome = await waiting
        assert outcome.size_bytes > 4_000
        assert outcome.next_offset == outcome.last_stable_offset == 8


def bytes_below_the_watermark_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FetchWaiter, "_visible_bytes", lambda waiter, host: host.visible_bytes)


def last_stable_offset_is_the_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark))


NAMED: list[tuple[Any, Any]] = [
    (
        last_stable_offset_is_the_watermark,
        test_a_fetch_of_committed_records_ends_before_an_open_transaction,
    ),
    (
        bytes_below_the_watermark_counted,
        test_a_small_marker_wakes_a_fetch_that_waits_for_the_transaction_before_it,
    ),
]


@pytest.mark.parametrize(("bug", "test"), NAMED, ids=[bug.__name__ for bug, _ in NAMED])
def test_the_named_test_catches_the_bug(
    monkeypatch: pytest.MonkeyPatch, bug: Any, test: Any
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        asyncio.run(test())
