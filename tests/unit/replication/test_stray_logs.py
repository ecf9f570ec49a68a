"""Only a metadata record deletes a log. If the metadata merely does not contain its topic, the log is put aside, and
can be used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek_broker.log.directory.strays import Stray
from odradek_broker.partition.effects import Role
from odradek_broker.replication.partition_table import PartitionTable
from odradek_protocol.identity import MetadataOffset, Offset, PartitionIndex, TopicIdPartition
from odradek_protocol.metadata.image import MetadataDelta, MetadataImage, differences
from odradek_protocol.metadata.records import PartitionChange, RemoveTopic
from tests.unit.log.material import PARTITION, TOPIC, TOPIC_ID, Broker, memory_broker
from tests.unit.replication.memory_table import CONFIG, OTHER, OWN, image_of, table_of
from tests.worlds.memory_storage import MemoryStorage

US = TopicIdPartition(TOPIC_ID, PARTITION)
LIVE = f"{TOPIC}-{PARTITION}"
WAIT_S_MAX = 20.0
_POLL_S = 0.001
pytestmark = pytest.mark.asyncio


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():  # noqa: ASYNC110  # of somebody who does not tell
            await asyncio.sleep(_POLL_S)


def filled() -> tuple[Broker, bytes]:
    """Return a broker whose partition has five records, three of them below the high watermark."""
    broker = memory_broker(CONFIG)
    written = broker.append(3) + broker.append(2)
    broker.log.set_high_watermark(Offset(3))
    broker.checkpoint()
    return broker, written


def names(broker: Broker, ending: str) -> list[str]:
    return [name for name in broker.storage.names(broker.path) if name.endswith(ending)]


def strays(broker: Broker) -> list[Stray]:
    return list(broker.directory.strays)


def become(table: PartitionTable, image: MetadataImage) -> None:
    """Apply a metadata snapshot, as for a broker that is too far behind."""
    before = table.image
    for delta in differences(before, image):
        for _ in table.apply(image, delta):
            pass


def record(table: PartitionTable, change: Any) -> None:
    """Commit a metadata record, and pass it to the broker."""
    image, delta = table.image, MetadataDelta()
    image.replay(MetadataOffset(image.offset + 1), 1, change, delta)
    for _ in table.apply(image, delta):
        pass


def moved_away() -> PartitionChange:
    return PartitionChange(
        topic_id=TOPIC_ID, partition=PARTITION, replicas=(OTHER,), isr=(OTHER,), leader=OTHER
    )


async def test_an_image_without_the_topic_erases_nothing_and_one_with_it_brings_the_log_back() -> (
    None
):
    """The controllers first return without metadata, and then with their previous metadata."""
    broker, written = filled()
    async with table_of(broker, 0, is_active=False) as (table, _):
        table.activate(MetadataImage())
        (stray,) = strays(broker)
        assert not names(broker, "-delete")
        assert stray.id == US
        assert (stray.topic, stray.high_watermark, stray.log_end_offset) == (TOPIC, 3, 5)
        assert stray.size_bytes == len(written)
        assert names(broker, "-stray") == [stray.name]
        await until(lambda: strays(broker)[0].is_synced)
        become(table, image_of(1, leader=OTHER))
        await until(lambda: (TOPIC_ID, PARTITION) in table.by_id)
        host = table.by_id[TOPIC_ID, PARTITION]
        assert host.replica.role is Role.FOLLOWER
        assert (host.log.log_end_offset, host.log.high_watermark) == (5, 3)
        assert broker.read_all() == written
        assert not strays(broker)
    broker.kill_and_start()
    assert broker.read_all() == written
    assert broker.report is not None
    assert not broker.report.power_loss


async def test_a_snapshot_that_lacks_topic_or_replica_puts_the_log_aside() -> None:
    for is_moved in (False, True):
        broker, written = filled()
        async with table_of(broker, 1) as (table, _):
            image = MetadataImage()
            if is_moved:
                image = image_of(1, leader=OTHER)
                image.replay(MetadataOffset(2), 1, moved_away())
            become(table, image)
            (stray,) = strays(broker)
            assert "no replica" in stray.reason if is_moved else "no topic" in stray.reason
            assert not table.by_id
            assert broker.directory.get(TOPIC_ID, PARTITION) is None
            become(table, image_of(1, leader=OTHER))
            await until(lambda: bool(table.by_id))
            assert broker.read_all() == written


async def test_records_that_delete_a_topic_or_move_a_replica_delete_the_log() -> None:
    for change in (RemoveTopic(topic_id=TOPIC_ID), moved_away()):
        broker, _ = filled()
        async with table_of(broker, 1) as (table, _):
            record(table, change)
            assert not strays(broker)
            assert len(names(broker, "-delete")) == 1


async def test_a_record_that_deleted_the_topic_is_heeded_when_it_came_before_the_activation() -> (
    None
):
    broker, _ = filled()
    async with table_of(broker, 1, is_active=False) as (table, _):
        table.image = image_of(1, leader=OTHER)
        record(table, RemoveTopic(topic_id=TOPIC_ID))
        table.activate(table.image)
        assert not strays(broker)
        assert len(names(broker, "-delete")) == 1


async def test_a_replica_that_records_moved_while_the_broker_was_down_is_put_aside() -> None:
    """The records that are replayed at a start may come from an old backup, written before the
    replica moved back here.
    """
    broker, _ = filled()
    async with table_of(broker, 1, is_active=False) as (table, _):
        table.image = image_of(1, leader=OTHER)
        record(table, moved_away())
        table.activate(table.image)
        assert len(strays(broker)) == 1


async def test_a_stray_goes_when_a_record_deletes_its_topic() -> None:
    broker, _ = filled()
    async with table_of(broker, 1) as (table, _):
        image = image_of(1, leader=OTHER)
        image.replay(MetadataOffset(2), 1, moved_away())
        become(table, image)
        assert strays(broker)
        record(table, RemoveTopic(topic_id=TOPIC_ID))
        assert not strays(broker)
        assert not names(broker, "-stray")
        (gone,) = broker.directory.take_removals()
        broker.directory.remove_tree(gone)


@pytest.mark.parametrize("after", ["kill", "power", "stop"])
async def test_a_stray_outlives_restarts_and_comes_back_whole(after: str) -> None:
    broker, written = filled()
    async with table_of(broker, 0, is_active=False) as (table, _):
        table.activate(MetadataImage())
        await until(lambda: strays(broker)[0].is_synced)
    for _ in range(2):
        if after == "kill":
            broker.kill_and_start()
        elif after == "power":
            broker.lose_power_and_start()
        else:
            broker.stop_and_start()
        (stray,) = strays(broker)
        assert (stray.id, stray.high_watermark, stray.is_synced) == (US, 3, True)
        assert broker.report is not None
        assert not broker.report.power_loss, "it was synced: nothing is lost"
    async with table_of(broker, 1) as (table, _):
        await until(lambda: bool(table.by_id))
        assert broker.read_all() == written
        assert broker.log.high_watermark == 3


async def test_a_stray_that_was_not_synced_vouches_for_nothing_after_a_power_loss() -> None:
    broker, _ = filled()
    broker.append(4)
    broker.log.set_high_watermark(Offset(9))
    broker.directory.put_aside(TOPIC_ID, PARTITION, reason="nobody claims it", now_ms=1)
    broker.storage.sync_directory(broker.path)
    broker.lose_power_and_start()
    assert broker.report is not None
    assert broker.report.power_loss == (US,), "the controller must not count on it"
    async with table_of(broker, 1) as (table, _):
        await until(lambda: bool(table.by_id))
        assert broker.log.log_end_offset == 5


async def test_a_kill_at_any_step_of_leaving_and_returning_keeps_every_record() -> None:
    for is_power_loss in (False, True):
        step = 0
        while True:
            step += 1
            broker, written = filled()
            storage = broker.storage
            assert isinstance(storage, MemoryStorage)
            storage.sync_directory(broker.path)
            is_over = leave_and_return(broker, storage.operations + step)
            if is_power_loss:
                broker.lose_power_and_start()
            else:
                broker.kill_and_start()
            assert broker.report is not None
            is_live = broker.directory.get(TOPIC_ID, PARTITION) is not None
            assert is_live != bool(strays(broker)), (step, "one or the other")
            async with table_of(broker, 1) as (table, _):
                await until(lambda: bool(table.by_id))
                assert broker.read_all() == written, step
                if not broker.report.power_loss:
                    assert broker.log.high_watermark == 3, step
            if is_over:
                break
        assert step > 6


class Killed(BaseException):
    """The process was killed at this point."""


def leave_and_return(broker: Broker, last_operation: int) -> bool:
    """Set the log aside and bring it back; return False if the process is killed at that
    operation.
    """
    storage, directory = broker.storage, broker.directory
    assert isinstance(storage, MemoryStorage)

    def kill(_operation: str, _path: Path) -> None:
        if storage.operations == last_operation:
            raise Killed

    storage.fault = kill
    try:
        stray = directory.put_aside(TOPIC_ID, PARTITION, reason="nobody claims it", now_ms=1)
        assert stray is not None
        directory.strays.sync(stray)
        (stray,) = directory.strays
        job = directory.begin_return(stray, TOPIC)
        job.run()
        directory.finish_return(job, CONFIG)
        checkpoint = directory.begin_checkpoint()
        checkpoint.run()
        directory.finish_checkpoint(checkpoint)
    except Killed:
        return False
    finally:
        storage.fault = None
    return True


async def test_a_stray_is_removed_by_itself_only_after_its_retention() -> None:
    broker, _ = filled()
    directory = broker.directory
    directory.put_aside(TOPIC_ID, PARTITION, reason="nobody claims it", now_ms=1_000)
    assert not directory.strays.expired(now_ms=1 << 60, retention_ms=-1)
    assert not directory.strays.expired(now_ms=1_499, retention_ms=500)
    (stray,) = directory.strays.expired(now_ms=1_500, retention_ms=500)
    directory.remove_stray(stray)
    assert not names(broker, "-stray")
    (path,) = directory.take_removals()
    directory.remove_tree(path)
    assert not names(broker, "-delete")


async def test_what_an_earlier_version_put_aside_is_listed_and_never_expires() -> None:
    broker, _ = filled()
    storage = broker.storage
    old = f"{'x' * 200}-7.{'a' * 32}-stray"
    storage.rename(broker.log.directory, broker.path / old)
    storage.remove(broker.path / old / "partition.metadata")
    broker.kill_and_start()
    (stray,) = strays(broker)
    assert (stray.name, stray.id, stray.partition) == (old, None, 7)
    assert stray.size_bytes > 0
    assert not broker.directory.strays.expired(now_ms=1 << 60, retention_ms=0)
    broker.directory.remove_stray(stray)
    (path,) = broker.directory.take_removals()
    broker.directory.remove_tree(path)
    assert not names(broker, "-stray")


async def test_of_two_strays_of_a_partition_the_longer_comes_back() -> None:
    broker, written = filled()
    directory = broker.directory
    directory.put_aside(TOPIC_ID, PARTITION, reason="first", now_ms=1)
    directory.create(TOPIC, TOPIC_ID, PARTITION, CONFIG)
    directory.put_aside(TOPIC_ID, PARTITION, reason="second", now_ms=2)
    async with table_of(broker, 1) as (table, _):
        await until(lambda: bool(table.by_id))
        assert broker.read_all() == written
    assert [stray.reason for stray in strays(broker)] == ["second"]


async def test_a_namesake_is_made_beside_a_stray() -> None:
    broker, _ = filled()
    async with table_of(broker, 0, is_active=False) as (table, _):
        table.activate(MetadataImage())
        other = broker.directory.create(TOPIC, US.topic_id[::-1], PartitionIndex(0), CONFIG)  # type: ignore[arg-type]
        assert other.directory.name == LIVE
    broker.kill_and_start()
    assert len(strays(broker)) == 1
    assert broker.directory.get(US.topic_id[::-1], PARTITION) is not None  # type: ignore[arg-type]


async def test_a_replica_elected_on_a_log_that_came_back_leads_with_all_of_it() -> None:
    broker, written = filled()
    async with table_of(broker, 0, is_active=False) as (table, _):
        table.activate(MetadataImage())
        image = image_of(1, leader=OTHER)
        alone = PartitionChange(topic_id=TOPIC_ID, partition=PARTITION, leader=OWN, isr=(OWN,))
        image.replay(MetadataOffset(2), 1, alone)
        become(table, image)
        await until(lambda: bool(table.by_id))
        host = table.by_id[TOPIC_ID, PARTITION]
        await until(lambda: host.is_leader and host.replica.high_watermark == 5)
        assert broker.read_all() == written
