"""A flipped bit in a log ends one replica, never the directory; the next start restores the replica
from the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from odradek_broker.coordination.shard_loading import load_partition
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.storage import LogDamaged
from odradek_broker.partition.effects import Role
from odradek_broker.replication.outcomes import ReadOutcome
from odradek_broker.replication.partition_table import PartitionTable
from odradek_protocol.identity import MetadataOffset, Offset, PartitionIndex, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import PartitionChange
from odradek_protocol.records.batch_header import BATCH_LENGTH_AT
from tests.unit.log.material import PARTITION, TOPIC_ID, Broker, memory_broker
from tests.unit.replication.memory_table import OTHER, OWN, image_of, partition_of, table_of
from tests.worlds.memory_storage import MemoryStorage

CONFIG = LogConfig(segment_bytes=1 << 20, index_interval_bytes=100)
US = TopicIdPartition(TOPIC_ID, PARTITION)
BATCHES = 6
WAIT_S_MAX = 20.0
pytestmark = pytest.mark.asyncio


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():  # noqa: ASYNC110  # of somebody who does not tell
            await asyncio.sleep(0.001)


def damaged(*, batch: int = 2, in_header: bool = False) -> tuple[Broker, list[bytes]]:
    """Return a broker after a controlled restart, in whose log one bit of a durable batch of two
    records is flipped.
    """
    broker = memory_broker(CONFIG)
    batches = [broker.append(2, value_bytes=60) for _ in range(BATCHES)]
    broker.log.set_high_watermark(Offset(2 * BATCHES))
    broker.checkpoint()
    (path,) = broker.files(".log")
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    at = sum(map(len, batches[:batch])) + (
        BATCH_LENGTH_AT if in_header else len(batches[batch]) - 5
    )
    storage.inode(path).data[at] ^= 0x40
    storage.inode(path).sync()
    storage.is_hot = False
    broker.stop_and_start()
    assert broker.report is not None
    assert not broker.report.power_loss, "nothing below the recovery point is scanned"
    return broker, batches


def verified_read(broker: Broker, offset: int = 0) -> LogDamaged:
    """Read the log as a leader does for a follower, and return the error."""
    end = broker.log.log_end_offset
    with pytest.raises(LogDamaged) as raised:
        broker.log.plan_read(Offset(offset), bytes_max=1 << 20, end_offset=end, verify=True).run()
    return raised.value


async def consumed(table: PartitionTable, offset: int) -> ReadOutcome:
    outcome = partition_of(table).read(Offset(offset), bytes_max=1 << 20, read_committed=False)
    return outcome if isinstance(outcome, ReadOutcome) else await outcome


def mark_of(broker: Broker) -> bool:
    return broker.storage.exists(broker.log.directory / "damaged")


async def test_a_marked_log_is_verified_cut_and_told_as_lost_until_that_is_registered() -> None:
    broker, batches = damaged()
    failure = verified_read(broker)
    assert failure.offsets == (4, 6)
    assert "00000000000000000000.log" in str(failure)
    assert broker.directory.failure is None
    broker.log.mark_damaged(str(failure))
    for _ in range(2):  # the process dies before it is registered
        broker.kill_and_start()
        assert broker.report is not None
        assert broker.report.power_loss == (US,)
        assert broker.read_all() == b"".join(batches[:2])
        assert mark_of(broker)
    broker.directory.loss_reported()
    assert not mark_of(broker)
    again = broker.append(2)
    broker.checkpoint()
    broker.stop_and_start()
    assert broker.report is not None
    assert not broker.report.power_loss
    assert broker.read_all() == b"".join(batches[:2]) + again


async def test_a_mark_on_a_whole_log_costs_a_scan_and_nothing_else() -> None:
    broker = memory_broker(CONFIG)
    written = broker.append(2)
    broker.checkpoint()
    broker.log.mark_damaged("memory, not the disk, was wrong")
    broker.stop_and_start()
    assert broker.report is not None
    assert (broker.report.power_loss, broker.report.scanned_bytes) == ((), len(written))
    assert broker.read_all() == written
    assert not mark_of(broker)


@pytest.mark.parametrize("in_header", [False, True])
async def test_damage_ends_one_replica_and_marks_it_where_others_are_in_sync(
    in_header: bool,
) -> None:
    broker, _ = damaged(in_header=in_header)
    broken: list[Any] = []
    async with table_of(broker, 2, leader=OWN, on_broken=broken.append) as (table, _):
        host, neighbour = table.by_id[TOPIC_ID, 0], table.by_id[TOPIC_ID, 1]
        if in_header:
            outcome = await consumed(table, 4)  # consumers' reads check no CRC, but headers
            assert outcome.error is ErrorCode.KAFKA_STORAGE_ERROR
        else:
            host.read_failed(verified_read(broker))
        await until(lambda: mark_of(broker))
        assert host.replica.role is Role.FAILED
        assert broken == [(US,)]
        assert neighbour.replica.role is Role.LEADER
        assert table.offline_reason == ""
        assert broker.directory.failure is None
        outcome = await consumed(table, 4)
        assert outcome.error is not ErrorCode.NONE, "it is served to nobody"


async def test_the_only_replica_in_sync_serves_all_but_the_damaged_batch() -> None:
    broker, batches = damaged()
    async with table_of(broker, 0, is_active=False) as (table, _):
        image = image_of(1, leader=OTHER)
        alone = PartitionChange(
            topic_id=TOPIC_ID, partition=PartitionIndex(0), leader=OWN, isr=(OWN,)
        )
        image.replay(MetadataOffset(2), 1, alone)
        table.activate(image)
        host = table.by_id[TOPIC_ID, 0]
        await until(lambda: host.replica.high_watermark == 2 * BATCHES)
        host.read_failed(verified_read(broker))
        assert host.is_leader
        assert not mark_of(broker), "a cut would take what nobody else has"
        before = await consumed(table, 0)
        assert b"".join(map(bytes, before.records)) == b"".join(batches[:2])
        for offset in (4, 5):
            outcome = await consumed(table, offset)
            assert outcome.error is ErrorCode.KAFKA_STORAGE_ERROR
        after = await consumed(table, 6)
        assert b"".join(map(bytes, after.records)) == b"".join(batches[3:])
        assert table.offline_reason == ""


async def test_a_coordinator_that_meets_damage_while_it_loads_leaves_the_log_to_another_broker() -> (
    None
):
    broker, _ = damaged()
    async with table_of(broker, 2, leader=OWN, on_broken=lambda _: None) as (table, _):
        replayed: list[Any] = []
        is_loaded = await load_partition(
            partition_of(table), replay=replayed.append, is_wanted=lambda: True
        )
        assert not is_loaded
        assert replayed == []
        await until(lambda: mark_of(broker))
        assert table.by_id[TOPIC_ID, 0].replica.role is Role.FAILED
