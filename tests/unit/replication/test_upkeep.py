"""Periodic work on logs: what is done when it is due, and what must not be done yet."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Generator
from dataclasses import replace

import pytest

from odradek_broker.data_directory import close_data_directory
from odradek_broker.log.directory.checkpoints import CheckpointJob
from odradek_broker.log.directory.restart_markers import RestartClass
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.replication.disk import upkeep
from odradek_broker.replication.disk.disk_pool import DiskPool, disk_threads
from odradek_broker.replication.disk.upkeep import Upkeep
from odradek_broker.replication.partition_table import PartitionTable
from odradek_protocol.identity import BrokerEpoch, Offset
from odradek_protocol.metadata.image import MetadataDelta
from odradek_protocol.metadata.records import Config, ConfigResourceType
from odradek_runtime.clock import Clock, boottime_ms
from tests.unit.log.material import TOPIC, TOPIC_ID, Broker, batch, memory_broker
from tests.unit.replication.memory_table import CONFIG, OTHER, image_of, table_of

WAIT_S_MAX = 20.0
_POLL_S = 0.001
DAY_MS = 24 * 60 * 60 * 1000


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():  # noqa: ASYNC110  # of somebody who does not tell
            await asyncio.sleep(_POLL_S)


def upkeep_of(table: PartitionTable, broker: Broker) -> Upkeep:
    return Upkeep(
        table=table,
        directory=broker.directory,
        checkpoint_interval_ms=1,
        retention_interval_ms=1,
        compact_interval_ms=1,
    )


async def test_checkpoints_are_left_alone_until_all_logs_are_opened_and_losses_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Logs that are not open yet would be missing in the checkpoint files, so a kill would lose
    their log start offsets.
    """
    broker = memory_broker(CONFIG)
    begin = broker.directory.begin_checkpoint
    was_active: list[bool] = []
    async with table_of(broker, 1, is_active=False) as (table, _):

        def begin_checkpoint() -> CheckpointJob:
            was_active.append(table.is_active)
            return begin()

        monkeypatch.setattr(broker.directory, "begin_checkpoint", begin_checkpoint)
        task = asyncio.create_task(upkeep_of(table, broker).checkpoint())
        loop = asyncio.get_running_loop()
        many_intervals_s = loop.time() + 0.05
        await until(lambda: loop.time() > many_intervals_s)
        table.activate(image_of(1, leader=OTHER))
        await until(lambda: bool(was_active))
        written = len(was_active)
        many_intervals_s = loop.time() + 0.05
        await until(lambda: loop.time() > many_intervals_s)
        assert len(was_active) == written, "nothing changed"
        table.by_id[TOPIC_ID, 0].log.set_high_watermark(Offset(0))
        await until(lambda: len(was_active) > written)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert all(was_active)


async def test_a_flush_that_was_due_of_a_log_that_was_opened_anew_moves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the old log object has synced proves nothing about the new one."""
    broker = memory_broker(CONFIG)
    broker.append(3)
    async with table_of(broker, 1) as (table, _):
        host = table.by_id[TOPIC_ID, 0]
        looked = asyncio.Event()

        def due_flushes(*, now_ms: int) -> Generator[None, None, list[PartitionLog]]:
            yield
            looked.set()
            return [another]

        loaded = broker.directory.recover(host.log)
        assert loaded is not None
        another = broker.directory.replace(host.log, loaded)
        monkeypatch.setattr(broker.directory, "due_flushes", due_flushes)
        task = asyncio.create_task(upkeep_of(table, broker).flush())
        await asyncio.wait_for(looked.wait(), WAIT_S_MAX)
        await table.pool.idle()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (host.log.recovery_point, another.recovery_point) == (0, 0)


class SetForward(Clock):
    """A machine whose wall clock is set to the far future."""

    def wall_ms(self) -> int:
        return 1 << 60


async def test_flushes_and_removals_go_by_a_clock_that_does_not_jump(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wall clock that is set forward makes no work due."""
    broker = memory_broker(replace(CONFIG, segment_bytes=600, file_delete_delay_ms=60_000))
    while broker.log.segment_count < 2:
        broker.append(3, value_bytes=100)
    broker.checkpoint()
    log = broker.log
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start(log.log_end_offset)
    assert log.apply_retention(now_ms=0) == 1
    retired = broker.files(".log.deleted")
    log.append(batch(log.log_end_offset), now_ms=boottime_ms())
    before = log.recovery_point
    monkeypatch.setattr(upkeep, "_FLUSH_INTERVAL_S", 0.001)
    monkeypatch.setattr(upkeep, "_SWEEP_INTERVAL_S", 0.001)
    async with table_of(broker, 1, clock=SetForward()) as (table, _):
        timers = upkeep_of(table, broker)
        tasks = [asyncio.create_task(timer()) for timer in (timers.flush, timers.sweep)]
        loop = asyncio.get_running_loop()
        many_intervals_s = loop.time() + 0.05
        await until(lambda: loop.time() > many_intervals_s)
        await table.pool.idle()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert table.by_id[TOPIC_ID, 0].log.recovery_point == before
        assert retired
        assert broker.files(".log.deleted") == retired


class TwoClocks(Clock):
    """A machine whose wall clock and boot-time clock the test sets."""

    def __init__(self) -> None:
        self.wall = self.boottime = 1_000

    def wall_ms(self) -> int:
        return self.wall

    def boottime_ms(self) -> int:
        return self.boottime


async def test_a_wall_clock_that_is_set_forward_forgets_no_producer() -> None:
    """A repeated batch of a producer that was forgotten would be appended as a new batch."""
    broker, clock = memory_broker(CONFIG), TwoClocks()
    broker.append(1, producer_id=7, producer_epoch=0, base_sequence=0)
    async with table_of(broker, 1, clock=clock) as (table, _):
        log = table.by_id[TOPIC_ID, 0].log
        for _ in range(3):
            list(table.apply_retention(wall_ms=table.clock.wall_ms()))
        clock.wall += 10 * DAY_MS
        for _ in range(3):
            list(table.apply_retention(wall_ms=table.clock.wall_ms()))
        assert set(log.producers.entries()) == {7}
        clock.boottime += DAY_MS
        list(table.apply_retention(wall_ms=table.clock.wall_ms()))
        assert not log.producers.entries()


async def test_a_wall_clock_that_is_set_forward_deletes_no_records_for_a_day() -> None:
    """The mistake may be noticed and corrected within that day. Deleted records would be lost on all replicas."""
    broker, clock = memory_broker(CONFIG), TwoClocks()
    broker.append(1)
    async with table_of(broker, 1, clock=clock) as (table, _):
        log = table.by_id[TOPIC_ID, 0].log
        log.set_high_watermark(log.log_end_offset)
        log.config = replace(log.config, retention_ms=DAY_MS)
        timers = upkeep_of(table, broker)
        list(timers.apply_retention())
        clock.wall += 1000 * DAY_MS
        list(timers.apply_retention())
        assert log.log_start_offset == 0
        clock.wall -= 1000 * DAY_MS
        list(timers.apply_retention())
        clock.wall += 1000 * DAY_MS
        list(timers.apply_retention())
        clock.wall, clock.boottime = clock.wall + DAY_MS // 2, clock.boottime + DAY_MS // 2
        list(timers.apply_retention())
        assert log.log_start_offset == 0, "the first jump was undone"
        clock.wall, clock.boottime = clock.wall + DAY_MS // 2, clock.boottime + DAY_MS // 2
        list(timers.apply_retention())
        assert log.log_start_offset == 1


async def test_a_value_that_only_a_later_release_knows_leaves_the_other_configs_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While a cluster is upgraded, this broker leads topics that a newer one administers. Without
    their retention it would delete records that are to be kept.
    """
    image = image_of(1, leader=OTHER)
    values = {"retention.ms": "-1", "compression.type": "brotli", "cleanup.policy": "archive"}
    for name, value in values.items():
        record = Config(
            resource_type=ConfigResourceType.TOPIC, resource_name=TOPIC, name=name, value=value
        )
        image.replay(image.offset, image.epoch, record)
    async with table_of(memory_broker(CONFIG), 1) as (table, _):
        list(table.apply(image, MetadataDelta()))
        config = table.log_config(TOPIC)
    assert (config.retention_ms, config.compression) == (-1, None)
    assert not config.cleanup_delete, "an unknown policy deletes nothing"
    assert not config.cleanup_compact
    assert caplog.text.count("Ignored an invalid config of a topic") == len(("brotli", "archive"))


@pytest.mark.parametrize("has_failed", [True, False])
async def test_a_stop_is_called_clean_only_if_the_next_start_will_find_it_so(
    has_failed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = memory_broker(CONFIG)
    broker.append(3)
    if has_failed:
        broker.directory.health.fail("writing", OSError(errno.EIO, "I/O error"))
    pool = DiskPool(disk_threads(1))
    with caplog.at_level(logging.INFO):
        await close_data_directory(broker.directory, pool, broker_epoch=BrokerEpoch(7))
    pool.close()
    (record,) = [r for r in caplog.records if r.getMessage() == "Stopped"]
    assert record.odradek_fields["clean"] is not has_failed  # type: ignore[attr-defined]
    broker.start()
    assert (broker.restart_class is RestartClass.CLEAN) is not has_failed


async def test_files_of_a_log_are_removed_once_their_delay_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = memory_broker(replace(CONFIG, segment_bytes=600, file_delete_delay_ms=60_000))
    while broker.log.segment_count < 2:
        broker.append(3, value_bytes=100)
    broker.checkpoint()
    log = broker.log
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start(log.log_end_offset)
    assert log.apply_retention(now_ms=0) == 1
    assert broker.files(".log.deleted")
    monkeypatch.setattr(upkeep, "_SWEEP_INTERVAL_S", 0.001)
    clock = TwoClocks()
    async with table_of(broker, 1, clock=clock) as (table, _):
        sweeping = asyncio.create_task(upkeep_of(table, broker).sweep())

        def are_removed() -> bool:
            clock.boottime += 60_001  # the first sweep after the log let go of them sets the delay
            return not broker.files(".log.deleted")

        await until(are_removed)
        assert not sweeping.done(), "it goes on"
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
