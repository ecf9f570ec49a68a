"""The disk fills up while a log is truncated or created: the replicas start again when there is
space.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.recovery import LoadedLog
from odradek_broker.log.storage import StorageFull
from odradek_broker.partition import effects as fx
from odradek_broker.partition.effects import Role
from odradek_broker.replication.outcomes import ReadOutcome
from odradek_broker.replication.partition_table import PartitionTable
from odradek_protocol.identity import MetadataOffset, Offset, PartitionIndex
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataDelta
from odradek_protocol.metadata.records import PartitionChange, RemoveTopic
from tests.unit.log.material import TOPIC_ID, Broker, memory_broker
from tests.unit.replication.memory_table import CONFIG, OTHER, OWN, partition_of, table_of
from tests.worlds.memory_storage import MemoryStorage

WAIT_S_MAX = 20.0
_POLL_S = 0.01


def fill(broker: Broker) -> Callable[[], None]:
    """Make all writes fail for lack of space; return the function that frees space."""
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    room_bytes_min = broker.directory.room_bytes_min

    def fault(operation: str, path: Path) -> None:
        if operation in ("write", "create"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def heal() -> None:
        storage.fault = None
        broker.directory.room_bytes_min = room_bytes_min

    storage.fault = fault
    broker.directory.room_bytes_min = 1 << 60
    return heal


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():  # noqa: ASYNC110  # of somebody who does not tell
            await asyncio.sleep(_POLL_S)


def log_of(table: PartitionTable, index: int = 0) -> PartitionLog:
    return table.by_id[TOPIC_ID, index].log


async def test_a_cut_that_had_no_room_fails_its_replica_until_there_is_some() -> None:
    broker = memory_broker(CONFIG)
    first, second = broker.append(3), broker.append(2)
    broker.checkpoint()
    async with table_of(broker, 1) as (table, told):
        host = table.by_id[TOPIC_ID, 0]
        heal = fill(broker)
        host._truncate_to(fx.TruncateTo(end_offset=Offset(3)))
        await until(lambda: told == [True])
        assert host.replica.role is Role.FAILED
        assert table.offline_reason == "", "the directory is full, no more"
        assert "No space left" in table.storage_problem
        heal()
        await until(lambda: told == [True, False])
        again = table.by_id[TOPIC_ID, 0]
        assert again is not host
        assert again.replica.role is Role.FOLLOWER
        assert table.storage_problem == ""
        assert broker.read_all() in (first, first + second), "cut, or not cut"
        assert log_of(table).is_intact
        broker.append(1)


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_the_image_may_move_while_a_broken_log_is_read_anew(is_deleted: bool) -> None:
    broker = memory_broker(CONFIG)
    broker.append(3)
    broker.append(2)
    broker.checkpoint()
    async with table_of(broker, 1) as (table, told):
        host = table.by_id[TOPIC_ID, 0]
        heal = fill(broker)
        host._truncate_to(fx.TruncateTo(end_offset=Offset(3)))
        await until(lambda: told == [True])
        broken = host.log
        recover = broker.directory.recover

        def recovered_late(log: PartitionLog) -> LoadedLog | None:
            asyncio.run_coroutine_threadsafe(move(), loop).result(WAIT_S_MAX)
            return recover(log)

        async def move() -> None:
            image, delta = table.image, MetadataDelta()
            if is_deleted:
                image.replay(MetadataOffset(2), 1, RemoveTopic(topic_id=TOPIC_ID), delta)
            else:
                change = PartitionChange(
                    topic_id=TOPIC_ID, partition=PartitionIndex(0), isr=(OTHER,)
                )
                image.replay(MetadataOffset(2), 1, change, delta)
            for _ in table.apply(image, delta):
                pass

        loop = asyncio.get_running_loop()
        broker.directory.recover = recovered_late  # type: ignore[method-assign]
        heal()
        await until(lambda: told == [True, False])
        assert table.offline_reason == ""
        if is_deleted:
            assert not table.by_id
            assert not list(broker.directory.logs())
        else:
            again = table.by_id[TOPIC_ID, 0]
            assert again.log is not broken
            assert again.replica.role is Role.FOLLOWER
            broker.append(1)


async def test_a_replica_that_could_not_be_made_is_made_when_there_is_room() -> None:
    broker = memory_broker(CONFIG)
    heal = fill(broker)
    async with table_of(broker, 2) as (table, told):
        await until(lambda: told == [True])
        assert (TOPIC_ID, 1) not in table.by_id
        heal()
        await until(lambda: told == [True, False])
        assert table.by_id[TOPIC_ID, 1].replica.role is Role.FOLLOWER
        assert log_of(table, 1).log_end_offset == 0


async def test_a_follower_whose_disk_is_full_serves_readers_when_it_is_elected() -> None:
    broker = memory_broker(CONFIG)
    written = broker.append(3)
    broker.checkpoint()
    async with table_of(broker, 1) as (table, told):
        heal = fill(broker)
        with pytest.raises(StorageFull, match="No space left"):
            broker.append(1)
        await until(lambda: told == [True])
        host = table.by_id[TOPIC_ID, 0]
        elected = PartitionChange(
            topic_id=TOPIC_ID, partition=PartitionIndex(0), leader=OWN, isr=(OWN,)
        )
        image, delta = table.image, MetadataDelta()
        image.replay(MetadataOffset(2), 1, elected, delta)
        for _ in table.apply(image, delta):
            pass
        await until(lambda: host.is_leader and host.replica.high_watermark == 3)
        outcome = partition_of(table).read(Offset(0), bytes_max=1 << 20, read_committed=False)
        assert isinstance(outcome, ReadOutcome)
        assert outcome.error is ErrorCode.NONE
        assert b"".join(map(bytes, outcome.records)) == written
        assert table.offline_reason == ""
        heal()
        await until(lambda: told == [True, False])


async def test_a_disk_that_fills_again_soon_is_left_alone_for_longer_each_time() -> None:
    broker = memory_broker(CONFIG)
    broker.append(1)
    async with table_of(broker, 1) as (_, told):
        full_disk_s: list[float] = []
        loop = asyncio.get_running_loop()
        for number in range(1, 3):
            heal = fill(broker)
            began_s = loop.time()
            with pytest.raises(StorageFull, match="No space left"):
                broker.append(1)
            heal()
            await until(lambda wanted=2 * number: len(told) == wanted)  # type: ignore[misc]
            full_disk_s.append(loop.time() - began_s)
    assert full_disk_s[1] >= 1.0
