"""What a broker does by the clock: flush, checkpoint, retention, removal of deleted files."""

from __future__ import annotations

import asyncio
from typing import Final

from odradek_broker.log.log_directory import LogDirectory
from odradek_broker.log.storage import StorageFailed
from odradek_broker.replication.partition_table import PartitionTable
from odradek_runtime.clock import monotonic_ms, wall_ms
from odradek_runtime.logs import event_log

_FLUSH_INTERVAL_S: Final = 1.0
STALL_MS: Final = 500
_LAG_PROBE_S: Final = 0.1
_log = event_log(__name__)


class Upkeep:
    """The timers of one data directory; each method is a task that runs until cancelled."""

    def __init__(
        self,
        *,
        table: PartitionTable,
        directory: LogDirectory,
        checkpoint_interval_ms: int,
        retention_interval_ms: int,
    ) -> None:
        self.loop_lag_s = 0.0
        self._table = table
        self._directory = directory
        self._checkpoint_interval_s = checkpoint_interval_ms / 1000
        self._retention_interval_s = retention_interval_ms / 1000

    async def flush(self) -> None:
        """Sync what is due, so that a restart has little to scan."""
        while True:
            await asyncio.sleep(_FLUSH_INTERVAL_S)
            if self._directory.failure is not None:
                return
            try:
                due = self._directory.begin_flushes(now_ms=wall_ms())
            except StorageFailed as failure:
                self._table.storage_failed(str(failure))
                return
            for log, job in due:
                host = self._table.by_id.get((log.topic_id, log.partition))
                await self._table.pool.call(job.run)
                if host is not None and not host.is_removed:
                    host.finish_sync(job)

    async def checkpoint(self) -> None:
        """Write the offset checkpoints."""
        while True:
            await asyncio.sleep(self._checkpoint_interval_s)
            if self._directory.failure is not None:
                return
            job = self._directory.begin_checkpoint()
            await self._table.pool.call(job.run)
            try:
                self._directory.finish_checkpoint(job)
            except StorageFailed as failure:
                self._table.storage_failed(str(failure))
                return

    async def retain(self) -> None:
        """Take out segments that may leave, and remove the files of those that left."""
        while True:
            await asyncio.sleep(self._retention_interval_s)
            if self._directory.failure is not None:
                return
            self._table.apply_retention()

    async def watch_stalls(self) -> None:
        """Notice when the loop stood still, before anybody's lag is judged by it (R10)."""
        before_ms = monotonic_ms()
        while True:
            await asyncio.sleep(_LAG_PROBE_S)
            now_ms = monotonic_ms()
            late_ms = now_ms - before_ms - int(_LAG_PROBE_S * 1000)
            before_ms = now_ms
            self.loop_lag_s = max(late_ms, 0) / 1000
            if late_ms > STALL_MS:
                _log.warning("The event loop stood still", stall_ms=late_ms)
                self._table.stalled(late_ms)
