"""Periodic work on the logs of a broker: flushes, checkpoints, retention, compaction, removal of files."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from odradek_broker.log.log_directory import LogDirectory
from odradek_broker.log.storage import RESERVE, StorageFailed
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.partition_table import PartitionTable
from odradek_broker.settled_clock import SettledClock
from odradek_runtime.logs import event_log

T = TypeVar("T")
_FLUSH_INTERVAL_S: Final = 1.0
_SWEEP_INTERVAL_S: Final = 5.0
_COMPACT_INTERVAL_MS_MIN: Final = 100
_LAG_PROBE_S: Final = 0.1
_LOGS_PER_TURN: Final = 200
_log = event_log(__name__)


class Upkeep:
    """The periodic tasks of one data directory. Each public coroutine is one task, which runs until it is cancelled or
    the directory is offline.
    """

    def __init__(
        self,
        *,
        table: PartitionTable,
        directory: LogDirectory,
        checkpoint_interval_ms: int,
        retention_interval_ms: int,
        compact_interval_ms: int,
        stray_retention_ms: int = -1,
    ) -> None:
        self.loop_lag_s = 0.0
        self._unremovable: set[Path] = set()
        self._table = table
        self._clock = table.clock
        self._settled = SettledClock()
        self._settled_ms()
        self._directory = directory
        self._checkpoint_interval_s = checkpoint_interval_ms / 1000
        self._retention_interval_s = retention_interval_ms / 1000
        self._stray_retention_ms = stray_retention_ms
        self._compact_interval_s = max(compact_interval_ms, _COMPACT_INTERVAL_MS_MIN) / 1000

    async def flush(self) -> None:
        """Sync the logs that are due for a full sync, so that a restart has little to scan."""
        pause_s = _FLUSH_INTERVAL_S
        while True:
            RESERVE.fill()
            await asyncio.sleep(pause_s)
            pause_s = _FLUSH_INTERVAL_S
            if self._directory.failure is not None:
                return
            if not self._table.is_active:
                continue
            # The logs are synced one after the other, because reads need threads of the pool, too.
            due = await _in_turns(self._directory.due_flushes(now_ms=self._clock.boottime_ms()))
            for log in due:
                host = self._table.by_id.get((log.topic_id, log.partition))
                # Since the list was made, the log may have been deleted, or opened again as another object.
                if host is None or host.is_failed or host.log is not log:
                    continue
                job = None
                try:
                    with host.guard():
                        job = log.begin_sync(full=True)
                except StorageFailed as failure:
                    # Either the directory is offline, and the next iteration ends this task, or no file descriptor is
                    # free.
                    self._table.storage_failed(failure)
                    break
                if job is not None:
                    synced = asyncio.Event()
                    host.work.run_sync(job, synced.set)
                    await synced.wait()
                    if self._directory.is_crowded:
                        pause_s = 0.0

    async def checkpoint(self) -> None:
        """Write the offset checkpoints periodically, after all logs are open and their lost records were reported to
        the controller.

        Before that, only the old files have the offsets of logs that are not open yet, and the next start would need
        these offsets.
        """
        while True:
            await asyncio.sleep(self._checkpoint_interval_s)
            if self._directory.failure is not None:
                return
            is_due = self._directory.due.checkpoint and self._directory.full is None
            if not is_due or not self._table.is_active:
                continue
            job = self._directory.begin_checkpoint()
            await self._table.pool.call(job.run)
            try:
                self._directory.finish_checkpoint(job)
            except StorageFailed as failure:
                # The error must not end the task: if the disk is only full, it may have free space later.
                self._table.storage_failed(failure)

    async def retain(self) -> None:
        """Remove expired segments from the logs periodically. `sweep` deletes their files later."""
        while True:
            await asyncio.sleep(self._retention_interval_s)
            if self._directory.failure is not None:
                return
            for number, _ in enumerate(self.apply_retention(), 1):
                if number % _LOGS_PER_TURN == 0:
                    await asyncio.sleep(0)

    def apply_retention(self) -> Iterator[None]:
        """Remove expired segments from the logs. Yield after each log."""
        return self._table.apply_retention(wall_ms=self._settled_ms())

    def _settled_ms(self) -> int:
        """Return the wall-clock time for deletion by age.

        A jump of the clock forward counts only after a day, because followers also delete what their leader deletes
        too early.
        """
        return self._settled.read(now_ms=self._clock.boottime_ms(), wall_ms=self._clock.wall_ms())

    async def sweep(self) -> None:
        """Periodically delete the files of segments that were removed from the logs some time ago, and the directories
        of deleted partitions.
        """
        pool = self._table.pool
        while self._directory.failure is None:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            try:
                if self._table.is_active:
                    self._table.strays.remove_expired(
                        self._stray_retention_ms, wall_ms=self._settled_ms()
                    )
                for path in self._directory.take_removals():
                    await self._remove(path)
                now_ms = self._clock.boottime_ms()
                for number, host in enumerate(list(self._table.by_id.values()), 1):
                    for segment in host.log.take_retired(now_ms=now_ms):
                        await pool.call(segment.remove_files)
                    if number % _LOGS_PER_TURN == 0:
                        await asyncio.sleep(0)
            except StorageFailed as failure:
                self._table.storage_failed(failure)
            except OSError as error:
                # The failure does no harm, because no log uses the file any more.
                _log.warning(
                    "Failed to delete a log file that is no longer used", reason=str(error)
                )

    async def _remove(self, path: Path) -> None:
        try:
            await self._table.pool.call(partial(self._directory.remove_tree, path))
        except OSError as error:
            if path not in self._unremovable:
                _log.warning(
                    "Failed to delete the directory of a deleted partition; trying again",
                    path=str(path),
                    reason=str(error),
                )
            self._unremovable.add(path)
        else:
            self._unremovable.discard(path)

    async def compact(self) -> None:
        """Compact the logs that are dirty enough, one partition at a time, in slices that run on a disk thread."""
        while self._directory.failure is None:
            await asyncio.sleep(self._compact_interval_s)
            for host in list(self._table.by_id.values()):
                if host.log.config.cleanup_compact and not (host.is_removed or host.is_failed):
                    try:
                        with host.guard():
                            await self._compact(host)
                    except StorageFailed as failure:
                        host.read_failed(failure)

    async def _compact(self, host: PartitionHost) -> None:
        job = host.log.begin_compaction(now_ms=self._settled_ms())
        while job is not None and not host.is_removed:
            await self._table.pool.call(partial(job.run_slice, clock_s=self._clock_s))
            if host.is_removed or host.is_failed:
                return
            host.log.install_compacted(job)
            if job.is_done:
                _log.info(
                    "Compacted a log",
                    partition=str(host),
                    records_read=job.records_read,
                    records_kept=job.records_kept,
                )
                return

    def _clock_s(self) -> float:
        return self._clock.monotonic_ms() / 1000

    async def measure_loop_lag(self) -> None:
        """Update `loop_lag_s`, for the metrics: the number of seconds by which the event loop runs a timer too late."""
        before_ms = self._clock.monotonic_ms()
        while True:
            await asyncio.sleep(_LAG_PROBE_S)
            now_ms = self._clock.monotonic_ms()
            late_ms = now_ms - before_ms - int(_LAG_PROBE_S * 1000)
            before_ms = now_ms
            self.loop_lag_s = max(late_ms, 0) / 1000


async def _in_turns(steps: Generator[None, None, T]) -> T:
    """Run each step of a generator in its own iteration of the event loop. Return the result of the generator."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)
