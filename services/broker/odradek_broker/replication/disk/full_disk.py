"""The behaviour of a broker while its disk is full: it serves reads, hands its leaderships over, and waits for free
space.

    disk full     producers get KAFKA_STORAGE_ERROR, and each follower replica on this broker stops following at its
                  next write. Heartbeats report `cannot_write`, and the controller elects other leaders where it can.
                  Partitions without another in-sync replica can still be read from this broker.
    space again   logs that were left half truncated are opened again, replicas that could not be created are
                  created, followers attach again, and the controller learns that the broker can write.

A write that was refused for another reason than a full disk (no free file descriptor: log/storage.py) concerns only its
replica, and is not reported to the controller. The replica is opened or created again after a pause, which doubles
while writes are refused.

Acknowledged records are safe while the disk is full (log/storage.py), so the broker keeps its broker epoch, and stays
in ISRs as long as it keeps up. If the disk is full again within a minute, the broker waits twice as long as the last
time before it writes again, so that leaderships do not move back and forth every second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from odradek_broker.log.log_directory import LogDirectory
from odradek_broker.log.storage import StorageFailed, StorageFull, StorageRefused
from odradek_broker.replication.partition_table import PartitionTable
from odradek_runtime.logs import event_log

_LOOK_INTERVAL_S: Final = 0.5
_HOLD_MS_MAX: Final = 60_000
_SOON_MS: Final = 60_000
_PAUSE_S_MIN: Final = 0.1
_PAUSE_S_MAX: Final = 5.0
_log = event_log(__name__)


class FullDisk:
    """Watches whether the disk of one data directory is full. It handles the change to full and the change back."""

    def __init__(
        self,
        *,
        table: PartitionTable,
        directory: LogDirectory,
        on_change: Callable[[bool], None],
    ) -> None:
        """`on_change` is called on the event loop with True when the disk is full, and with False when it has free
        space again.
        """
        self._table = table
        self._directory = directory
        self._on_change = on_change
        self._monotonic_ms = table.clock.monotonic_ms
        self._loop = asyncio.get_running_loop()
        self._is_wanted = asyncio.Event()
        self._pause_s = _PAUSE_S_MIN
        self._hold_ms = 0
        self._healed_at_ms = -_SOON_MS
        directory.health.on_full = self._noticed
        directory.health.on_refused = self._refused

    async def run(self) -> None:
        """Handle full disks and refused writes until cancelled, or until the data directory fails."""
        while self._directory.failure is None:
            await self._is_wanted.wait()
            if self._directory.full is None:
                await self._try_again()
            else:
                await self._wait_for_room()

    async def _try_again(self) -> None:
        await asyncio.sleep(self._pause_s)
        if self._directory.full is not None:
            return
        self._is_wanted.clear()
        await self._remake_broken()
        has_recovered = not self._is_wanted.is_set()
        self._pause_s = _PAUSE_S_MIN if has_recovered else min(2 * self._pause_s, _PAUSE_S_MAX)
        if has_recovered:
            _log.info("Writes to the data directory succeed again")

    async def _wait_for_room(self) -> None:
        full_since_ms = self._monotonic_ms()
        is_soon = full_since_ms - self._healed_at_ms < _SOON_MS
        self._hold_ms = min(max(2 * self._hold_ms, 1_000), _HOLD_MS_MAX) if is_soon else 0
        self._on_change(True)
        await self._room(full_since_ms)
        if self._directory.failure is not None:
            return
        self._is_wanted.clear()
        self._directory.health.has_room_again()
        await self._remake_broken()
        if self._directory.full is None:
            self._healed_at_ms = self._monotonic_ms()
            _log.info(
                "Data directory has free space again",
                full_ms=self._monotonic_ms() - full_since_ms,
            )
            self._on_change(False)

    async def _remake_broken(self) -> None:
        try:
            await self._table.remake_broken()
        except StorageFailed as failure:
            self._table.storage_failed(failure)

    async def _room(self, full_since_ms: int) -> None:
        while self._directory.failure is None:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            if self._monotonic_ms() - full_since_ms < self._hold_ms:
                continue
            if await self._table.pool.call(self._directory.look_for_room):
                return

    def _noticed(self, full: StorageFull) -> None:
        """Log that the disk is full, and wake `run`. The storage calls this in the thread whose write failed."""
        _log.error(
            "Data directory is full; no records are written until space is freed", reason=str(full)
        )
        self._wake()

    def _refused(self, refused: StorageRefused) -> None:
        """Log that the system refused a write, and wake `run`. The storage calls this in the thread whose
        write failed.
        """
        if not self._is_wanted.is_set() and self._pause_s == _PAUSE_S_MIN:
            _log.error(
                "Operating system refused a write, but the disk has not failed; trying the write again",
                reason=str(refused),
            )
        self._wake()

    def _wake(self) -> None:
        # `call_soon_threadsafe` raises RuntimeError if the event loop was closed, because the process is ending.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._is_wanted.set)
