"""Periodic work that meets an error or a replica that ends: the work on the other logs is still
done.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odradek_broker.log.compaction import CompactJob
from odradek_broker.log.directory.checkpoints import RECOVERY_POINTS, OffsetCheckpoint
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.replication.disk import upkeep
from odradek_protocol.identity import PartitionIndex
from odradek_runtime.clock import Clock
from tests.unit.log.compacted_logs import CONFIG as COMPACTED
from tests.unit.log.compacted_logs import fill, put, shown
from tests.unit.log.material import TOPIC_ID, Broker, memory_broker
from tests.unit.replication.memory_table import CONFIG, table_of
from tests.unit.replication.test_upkeep import TwoClocks, until, upkeep_of
from tests.worlds.memory_storage import MemoryStorage


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def failing(broker: Broker, operation: str, ending: str, error: int) -> Callable[[], None]:
    """Make an operation fail on paths with this ending.

    Return a function that ends the failures.
    """
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)

    def fault(asked: str, path: Path) -> None:
        if asked == operation and str(path).endswith(ending):
            raise OSError(error, "failed by the test", str(path))

    def heal() -> None:
        storage.fault = None

    storage.fault = fault
    return heal


def told_by_upkeep(caplog: pytest.LogCaptureFixture, level: int) -> list[logging.LogRecord]:
    return [r for r in caplog.records if r.name == upkeep.__name__ and r.levelno == level]


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_FLUSH_INTERVAL_S", 0.001)
    monkeypatch.setattr(upkeep, "_SWEEP_INTERVAL_S", 0.001)
    monkeypatch.setattr(upkeep, "_COMPACT_INTERVAL_MS_MIN", 1)


async def test_a_directory_that_cannot_be_removed_is_tried_again_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = memory_broker(CONFIG)
    async with table_of(broker, 2) as (table, _):
        heal = failing(broker, "remove", "-delete", errno.EACCES)
        broker.directory.delete(TOPIC_ID, PartitionIndex(1))
        tries: list[Path] = []
        remove_tree = broker.directory.remove_tree

        def remove(path: Path) -> None:
            tries.append(path)
            remove_tree(path)

        broker.directory.remove_tree = remove  # type: ignore[method-assign]
        async with running(upkeep_of(table, broker).sweep()) as sweeping:
            await until(lambda: len(tries) >= 3)
            assert len(set(tries)) == 1
            heal()
            await until(lambda: not broker.storage.exists(tries[0]))
            assert not sweeping.done()
    assert len(told_by_upkeep(caplog, logging.WARNING)) == 1
    assert table.offline_reason == ""


async def test_a_file_that_cannot_be_removed_ends_no_sweep(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = memory_broker(replace(CONFIG, segment_bytes=600, file_delete_delay_ms=0))
    while broker.log.segment_count < 2:
        broker.append(3, value_bytes=100)
    log = broker.log
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start(log.log_end_offset)
    assert log.apply_retention(now_ms=0) == 1
    clock, reasons = TwoClocks(), list[str]()
    async with table_of(broker, 1, clock=clock, on_offline=reasons.append) as (table, _):
        failing(broker, "remove", ".log.deleted", errno.EACCES)

        def is_told() -> bool:
            clock.boottime += 1
            return bool(told_by_upkeep(caplog, logging.WARNING))

        async with running(upkeep_of(table, broker).sweep()) as sweeping:
            await until(is_told)
            assert not sweeping.done()
            broker.directory.health.fail("writing", OSError(errno.EIO, "I/O error"))
            await until(sweeping.done)


async def test_a_flush_that_is_refused_is_tried_again_and_one_that_fails_ends_the_flushes() -> None:
    broker, reasons = memory_broker(CONFIG), list[str]()
    broker.append(3)
    clock = TwoClocks()
    async with table_of(broker, 1, clock=clock, on_offline=reasons.append) as (table, _):
        log = table.by_id[TOPIC_ID, 0].log
        heal = failing(broker, "open", ".log", errno.EMFILE)
        refused: list[Any] = []
        broker.directory.health.on_refused = refused.append
        clock.boottime += 1 << 40
        async with running(upkeep_of(table, broker).flush()) as flushing:
            await until(lambda: len(refused) >= 2)
            assert (log.recovery_point, reasons) == (0, [])
            heal()
            await until(lambda: log.recovery_point == 3)
            broker.append(1)
            failing(broker, "sync", ".log", errno.EIO)
            clock.boottime += 1 << 40
            await until(flushing.done)
        assert len(reasons) == 1
        assert log.recovery_point == 3


async def test_checkpoints_are_written_again_once_the_disk_has_room() -> None:
    broker = memory_broker(CONFIG)
    broker.append(3)
    broker.sync(full=True)
    async with table_of(broker, 1, on_offline=lambda _: None) as (table, told):
        heal = failing(broker, "write", ".tmp", errno.ENOSPC)
        room_bytes_min = broker.directory.room_bytes_min
        broker.directory.room_bytes_min = 1 << 60
        async with running(upkeep_of(table, broker).checkpoint()) as task:
            await until(lambda: told == [True])
            assert not task.done()
            heal()
            broker.directory.room_bytes_min = room_bytes_min
            path = broker.path / RECOVERY_POINTS
            await until(lambda: OffsetCheckpoint(broker.storage, path).read() == {broker.log.id: 3})
            broker.directory.health.fail("writing", OSError(errno.EIO, "I/O error"))
            await until(task.done)


async def test_retention_runs_until_the_directory_fails() -> None:
    broker = memory_broker(replace(CONFIG, segment_bytes=600, retention_bytes=0))
    async with table_of(broker, 1, on_offline=lambda _: None) as (table, _):
        log = table.by_id[TOPIC_ID, 0].log
        log.config = broker.config
        async with running(upkeep_of(table, broker).retain()) as retaining:
            for _ in range(2):
                while log.segment_count < 2:
                    broker.append(3, value_bytes=100)
                log.set_high_watermark(log.log_end_offset)
                await until(lambda: log.segment_count == 1)
            assert log.log_start_offset > 0
            broker.directory.health.fail("writing", OSError(errno.EIO, "I/O error"))
            await until(retaining.done)


def dirty() -> Broker:
    """Return a broker whose compacted log has much to compact."""
    broker = memory_broker(COMPACTED)
    for number in range(8):
        put(broker, (b"k", b"v%d" % number + b"x" * 100))
    fill(broker)
    broker.log.set_high_watermark(broker.log.log_end_offset)
    broker.sync(full=True)
    return broker


async def test_a_log_is_compacted_and_its_pass_is_logged_with_what_it_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = dirty()
    async with table_of(broker, 1, on_offline=lambda _: None) as (table, _):
        broker.log.config = COMPACTED
        with caplog.at_level(logging.INFO):
            async with running(upkeep_of(table, broker).compact()) as task:
                await until(lambda: broker.log.cleaned_offset > 0)
                await until(lambda: bool(told_by_upkeep(caplog, logging.INFO)))
                assert not task.done()
                broker.directory.health.fail("writing", OSError(errno.EIO, "I/O error"))
                await until(task.done)
        assert [value[:2] for _, _, value in shown(broker) if value] == [b"v7"]


async def test_a_log_that_is_not_compacted_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    begin = PartitionLog.begin_compaction

    def begin_compaction(log: PartitionLog, *, now_ms: int) -> Any:
        asked.append(str(log))
        return begin(log, now_ms=now_ms)

    monkeypatch.setattr(PartitionLog, "begin_compaction", begin_compaction)
    broker = dirty()
    async with table_of(broker, 3, on_broken=lambda _: None) as (table, _):
        second, third = table.by_id[TOPIC_ID, 1], table.by_id[TOPIC_ID, 2]
        second.log.config = replace(COMPACTED, cleanup_compact=False)
        third.log.config = COMPACTED
        third.found_bug(AssertionError("a bug"))
        table.by_id[TOPIC_ID, 0].log.config = COMPACTED
        async with running(upkeep_of(table, broker).compact()):
            await until(lambda: len(asked) > 5)
        assert set(asked) == {"flights-0"}


@pytest.mark.parametrize("end", ["removed", "bug"])
async def test_a_pass_over_a_replica_that_ends_installs_nothing(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    broker = dirty()
    async with table_of(broker, 1, on_broken=lambda _: None) as (table, _):
        host = table.by_id[TOPIC_ID, 0]
        host.log.config = COMPACTED
        run_slice = CompactJob.run_slice
        installed: list[CompactJob] = []
        ran: list[CompactJob] = []

        def run_and_end(job: CompactJob, *arguments: Any, **clock: Any) -> None:
            run_slice(job, *arguments, **clock)
            ran.append(job)
            if end == "removed":
                host.is_removed = True
            else:
                host.is_failed = True

        monkeypatch.setattr(CompactJob, "run_slice", run_and_end)
        monkeypatch.setattr(
            PartitionLog, "install_compacted", lambda log, job: installed.append(job)
        )
        async with running(upkeep_of(table, broker).compact()) as task:
            await until(lambda: bool(ran))
            await table.pool.idle()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not task.done()
        assert (len(ran), installed) == (1, [])


async def test_a_pass_that_meets_a_broken_disk_takes_the_directory_offline() -> None:
    broker, reasons = dirty(), list[str]()
    async with table_of(broker, 1, on_offline=reasons.append) as (table, _):
        table.by_id[TOPIC_ID, 0].log.config = COMPACTED
        failing(broker, "read", ".log", errno.EIO)
        async with running(upkeep_of(table, broker).compact()) as task:
            await until(lambda: bool(reasons))
            await until(task.done)
        assert "compacting" in reasons[0]


class LateLoop(Clock):
    """A clock on which each probe of the event loop is late."""

    def __init__(self, *late_ms: int) -> None:
        self._now_ms = 1_000
        self._late_ms = list(late_ms)
        self._is_first = True

    def monotonic_ms(self) -> int:
        if self._is_first:
            self._is_first = False
        else:
            self._now_ms += 1 + (self._late_ms.pop(0) if self._late_ms else 0)
        return self._now_ms


async def test_the_lag_of_the_loop_is_how_late_the_last_timer_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "_LAG_PROBE_S", 0.001)
    broker = memory_broker(CONFIG)
    async with table_of(broker, 1) as (table, _):
        seen: list[float] = []
        probe = upkeep_of(table, broker)
        probe._clock = LateLoop(250, 0, 1_500)
        async with running(probe.measure_loop_lag()):

            def look() -> bool:
                if not seen or seen[-1] != probe.loop_lag_s:
                    seen.append(probe.loop_lag_s)
                return len(seen) >= 5

            while not look():  # noqa: ASYNC110  # each value that is ever shown
                await asyncio.sleep(0)
        assert seen == [0.0, 0.25, 0.0, 1.5, 0.0]


async def test_retention_lets_the_loop_do_other_work_between_a_few_logs_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "_LOGS_PER_TURN", 2)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    broker = memory_broker(CONFIG)
    async with table_of(broker, 1) as (table, _):
        seen: list[int] = []

        def apply_retention(*, wall_ms: int) -> Iterator[None]:
            for _ in range(6):
                seen.append(turns)
                yield

        monkeypatch.setattr(table, "apply_retention", apply_retention)
        async with running(count_turns()), running(upkeep_of(table, broker).retain()):
            await until(lambda: len(seen) >= 6)
    groups = [seen.count(turn) for turn in dict.fromkeys(seen[:6])]
    assert len(groups) >= 3, "no more than two logs in a turn"
    assert max(groups) <= 2
