"""The host of one replica: how it runs syncs and truncations of its log."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odradek_broker.log.log_config import Durability
from odradek_broker.partition import events as ev
from odradek_broker.partition.effects import Role
from odradek_broker.replication.outcomes import ProduceOutcome
from odradek_broker.replication.partition_host import PartitionHost
from odradek_protocol.identity import LeaderEpoch, Offset, PartitionEpoch
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.log.material import TOPIC_ID, batch, memory_broker
from tests.unit.replication.memory_table import CONFIG, OTHER, OWN, table_of
from tests.worlds.memory_storage import MemoryStorage


def lead_alone(host: PartitionHost, durability: Durability) -> None:
    """Set metadata in which this broker is the whole ISR and the topic has this durability."""
    host.log.config = replace(host.log.config, durability=durability)
    host.step(
        ev.PartitionChanged(
            leader=OWN,
            leader_epoch=LeaderEpoch(0),
            partition_epoch=PartitionEpoch(1),
            replicas=(OTHER, OWN),
            isr=(OWN,),
            elr=(),
            min_insync_replicas=1,
            is_recovering=False,
            brokers=(),
            is_fsync=durability is Durability.FSYNC,
        )
    )


async def test_durability_may_change_while_a_sync_is_under_way() -> None:
    broker = memory_broker(CONFIG)
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    is_released = threading.Event()
    outcomes: list[ErrorCode] = []

    def slow_sync(operation: str, path: Path) -> int | None:
        assert operation != "sync" or is_released.wait(10), path
        return None

    def produce(host: PartitionHost) -> None:
        def done(outcome: ProduceOutcome) -> None:
            outcomes.append(outcome.error)

        host.produce(batch(0), acks=-1, timeout_ms=60_000, on_done=done)

    async with table_of(broker, 1, leader=OWN) as (table, _):
        host = table.by_id[TOPIC_ID, 0]
        lead_alone(host, Durability.FSYNC)
        storage.fault = slow_sync
        produce(host)
        assert outcomes == [], "it waits for the disk"
        lead_alone(host, Durability.REPLICATED)
        assert outcomes == [ErrorCode.NONE], "nothing waits for the disk any more"
        is_released.set()
        await table.pool.idle()
        lead_alone(host, Durability.FSYNC)
        produce(host)
        await table.pool.idle()
        assert outcomes == [ErrorCode.NONE] * 2
        assert host.log.durable_end_offset == 2


@pytest.mark.parametrize(("end_offset", "is_possible"), [(3, True), (4, False), (5, True)])
async def test_a_log_that_was_not_cut_where_its_replica_asked_is_not_used(
    end_offset: int, is_possible: bool
) -> None:
    broker = memory_broker(CONFIG)
    broker.append(3)
    broker.append(2)  # offset 4 is in the middle of it
    told: list[Any] = []
    async with table_of(broker, 1, on_broken=told.append) as (table, _):
        host = table.by_id[TOPIC_ID, 0]
        host.step(ev.SessionReady(session_id=1, leader=OTHER))
        host.step(
            ev.DivergedReceived(
                session_id=1,
                attach_seq=1,
                leader_epoch=LeaderEpoch(0),
                for_log_end=Offset(5),
                for_last_epoch=LeaderEpoch(0),
                epoch=LeaderEpoch(0),
                end_offset=Offset(end_offset),
            )
        )
        await table.pool.idle()
        if is_possible:
            assert (told, host.replica.log_end) == ([], end_offset)
        else:
            assert told == [(host.partition,)]
            assert host.replica.role is Role.FAILED


@pytest.mark.parametrize(
    ("cleanup_compact", "key", "error"),
    [
        (True, None, ErrorCode.INVALID_RECORD),
        (True, b"k", ErrorCode.NONE),
        (False, None, ErrorCode.NONE),
    ],
)
async def test_a_compacted_topic_takes_no_record_that_compaction_could_not_keep(
    cleanup_compact: bool, key: bytes | None, error: ErrorCode
) -> None:
    outcomes: list[ErrorCode] = []
    async with table_of(memory_broker(CONFIG), 1, leader=OWN) as (table, _):
        host = table.by_id[TOPIC_ID, 0]
        host.log.config = replace(host.log.config, cleanup_compact=cleanup_compact)
        host.produce(
            batch(0, keys=[key]),
            acks=1,
            timeout_ms=60_000,
            on_done=lambda o: outcomes.append(o.error),
        )
        await table.pool.idle()
        assert outcomes == [error]
        assert host.log.log_end_offset == (0 if error else 1)
