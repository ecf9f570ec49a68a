"""Other tasks of the broker continue to run while it loads a partition of an internal topic."""

from __future__ import annotations

import asyncio

import pytest

from odradek_broker.coordination import shard_loading
from odradek_broker.coordinator_step import LoadedMarker, LoadedRecord
from odradek_broker.log.log_config import LogConfig
from odradek_protocol.identity import MetadataOffset, PartitionIndex
from odradek_protocol.metadata.records import PartitionChange
from tests.unit.log.material import TOPIC_ID, batch, memory_broker
from tests.unit.replication.memory_table import OWN, image_of, partition_of, table_of

RECORDS = 400
CHECKS = RECORDS // 50


@pytest.mark.parametrize(("turn_s", "turns"), [(0.0, CHECKS), (3_600.0, 1)])
async def test_other_tasks_run_between_records_that_take_long(
    monkeypatch: pytest.MonkeyPatch, turn_s: float, turns: int
) -> None:
    monkeypatch.setattr(shard_loading, "_TURN_S", turn_s)
    broker = memory_broker(LogConfig(segment_bytes=1 << 20))
    broker.log.append(batch(0, count=RECORDS, keys=[b"key"] * RECORDS), now_ms=0)
    turn, turns_of_records = 0, list[int]()

    async def other() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def replay(record: LoadedRecord | LoadedMarker) -> None:
        turns_of_records.append(turn)

    async with table_of(broker, 1, is_active=False) as (table, _):
        image = image_of(1, leader=OWN)
        alone = PartitionChange(
            topic_id=TOPIC_ID, partition=PartitionIndex(0), leader=OWN, isr=(OWN,)
        )
        image.replay(MetadataOffset(2), 1, alone)
        table.activate(image)
        async with asyncio.timeout(20):
            while table.by_id[TOPIC_ID, 0].replica.high_watermark < RECORDS:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        running = asyncio.create_task(other())
        assert await shard_loading.load_partition(
            partition_of(table), replay=replay, is_wanted=lambda: True
        )
        running.cancel()
    assert len(turns_of_records) == RECORDS
    assert len(set(turns_of_records)) == turns
