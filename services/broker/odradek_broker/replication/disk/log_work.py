"""Syncs and truncations of one replica's log, which run on disk threads, and the handling of damage found on the disk.

A sync that is requested while another sync runs starts when the running sync ends, and covers everything that was
appended until then (group commit). Results reach the replica as events, after the step that requested the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, Final

from odradek_broker.log.log_jobs import StorageJob
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.storage import LogDamaged, StorageFailed, StorageRefused
from odradek_broker.partition import events as ev
from odradek_broker.replication.host_ports import LogOwner, Surroundings
from odradek_protocol.identity import Offset
from odradek_runtime.logs import event_log

_AGAIN_S: Final = 0.1  # pause before a refused sync is tried again
_log = event_log(__name__)


class LogWork:
    """Runs the syncs and truncations of one log. Only the event loop uses this object."""

    __slots__ = ("_host", "_is_sync_wanted", "_log", "_shared")

    def __init__(self, host: LogOwner, log: PartitionLog, shared: Surroundings[Any]) -> None:
        self._host = host
        self._log = log
        self._shared = shared
        self._is_sync_wanted = False

    def sync(self) -> None:
        """Make all records in the log durable. The replica then gets a Synced event."""
        self._is_sync_wanted = True
        self._begin_sync()

    def run_sync(self, job: StorageJob, on_done: Callable[[], None] = lambda: None) -> None:
        """Run a sync on a disk thread. The result is applied to the log even if the caller is cancelled."""
        start_s = perf_counter()

        def done() -> None:
            with self._host.guard():
                self._finish_sync(job, perf_counter() - start_s)
            on_done()

        self._shared.pool.run(job.run, done)

    def cut(self, begin: Callable[[], StorageJob], done: ev.Event, *, end_offset: Offset) -> None:
        """Truncate or reset the log on a disk thread, so that it ends at `end_offset`. Then pass the event `done` to
        the replica.
        """
        try:
            job = begin()
        except StorageFailed as failure:
            self._shared.storage_failed(failure)
            return

        def finish() -> None:
            with self._host.guard():
                self._finish_cut(job, done, end_offset)

        self._shared.pool.run(job.run, finish)

    def _finish_cut(self, job: StorageJob, done: ev.Event, end_offset: Offset) -> None:
        try:
            self._log.finish(job)
        except StorageFailed as failure:
            self._host.read_failed(failure)
            self._host.failed(str(failure))
            return
        if self._host.is_removed:
            return
        log_end = self._log.log_end_offset
        # If the truncation offset were inside a batch, the log would end before that batch.
        assert log_end == end_offset, (
            f"the log ends at {log_end} after a truncation to {end_offset}"
        )
        self._host.step(done)

    def _begin_sync(self) -> None:
        log = self._log
        try:
            job = log.begin_sync()
        except StorageFailed as failure:
            self._sync_failed(failure)
            return
        if job is not None:
            self._is_sync_wanted = False
            self.run_sync(job)
        elif log.durable_end_offset >= log.log_end_offset:
            self._is_sync_wanted = False
            self._host.step(ev.Synced(durable_end=log.durable_end_offset))

    def _finish_sync(self, job: StorageJob, seconds: float) -> None:
        self._shared.counters.sync_latencies.observe(seconds)
        try:
            self._log.finish(job)
        except StorageFailed as failure:
            self._sync_failed(failure)
            return
        if self._host.is_removed or self._host.is_failed:
            return
        self._host.step(ev.Synced(durable_end=self._log.durable_end_offset))
        if self._is_sync_wanted:
            self._begin_sync()

    def _sync_failed(self, failure: StorageFailed) -> None:
        """Take the directory offline. If the write was only refused, try the sync again later instead."""
        self._shared.storage_failed(failure)
        if isinstance(failure, StorageRefused):
            self._is_sync_wanted = True
            asyncio.get_running_loop().call_later(_AGAIN_S, self._sync_again)

    def _sync_again(self) -> None:
        if self._is_sync_wanted and not (self._host.is_removed or self._host.is_failed):
            with self._host.guard():
                self._begin_sync()

    def damage_found(self, failure: LogDamaged) -> bool:
        """Handle damage of the log: bytes that have changed on the disk. Return whether the replica must go offline.

        The replica goes offline if another replica is in sync: the next start verifies the log, truncates it at the
        damage and fetches the records above the damage again. If no other replica is in sync, this replica stays
        online, because no other has the undamaged records.
        """
        if not self._shared.has_others_in_sync(self._log.id):
            if self._log.damage is None:
                self._log.damage = failure.offsets
                _log.error(
                    "Log is damaged on disk, and no other in-sync replica has the lost records",
                    partition=str(self._log),
                    reason=str(failure),
                    remedy="consumers can seek past the damage; produce the records again from their source",
                )
            return False
        _log.error(
            "Log is damaged on disk; the replica stays offline until this broker restarts"
            " and copies the log from another replica",
            partition=str(self._log),
            reason=str(failure),
            remedy="restart the broker; if it happens again, replace the disk",
        )
        self._shared.pool.run(partial(self._mark_damaged, str(failure)), lambda: None)
        return True

    def _mark_damaged(self, reason: str) -> None:
        try:
            self._log.mark_damaged(reason)
        except OSError as error:
            # Without the mark, the next start might not verify the whole log. A read of the damaged batch after that
            # start finds the damage again.
            _log.error(
                "Failed to mark a log as damaged; the next start might not verify it",
                partition=str(self._log),
                reason=str(error),
            )
