"""What a broker does while its disk is full: it reads, gives its leaderships away, and waits for room.

    room ends     producers are told KAFKA_STORAGE_ERROR and followers stop to follow, each when it meets it; the
                  controller hears `cannot_write`: others lead what they can, and what nobody else has in sync
                  stays readable here
    room again    logs that were left half-way through a cut are opened anew, replicas that could not be made
                  are made, followers attach again, and the controller hears that too

A write that is refused for another reason than the disk (no descriptor is left: log/storage.py) concerns
its replica alone, and the controller does not hear of it. What such a write broke, or did not let begin, is
tried again after a pause that doubles while refusals go on.

Nothing that was acknowledged is in doubt meanwhile (log/storage.py), so that the broker keeps its epoch and its
places in ISRs as far as it can keep up. A disk that fills again soon after is left alone for twice as long each
time, so that leaderships do not go back and forth every second.
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
    """Watches one directory for the end of its room, and for room again."""

    def __init__(
        self,
        *,
        table: PartitionTable,
        directory: LogDirectory,
        on_change: Callable[[bool], None],
    ) -> None:
        """`on_change` is told whether the disk is full, on the loop."""
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
        """Until cancelled."""
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
        is_over = not self._is_wanted.is_set()
        self._pause_s = _PAUSE_S_MIN if is_over else min(2 * self._pause_s, _PAUSE_S_MAX)
        if is_over:
            _log.info("Writes are no longer refused")

    async def _wait_for_room(self) -> None:
        began_ms = self._monotonic_ms()
        is_soon = began_ms - self._healed_at_ms < _SOON_MS
        self._hold_ms = min(max(2 * self._hold_ms, 1_000), _HOLD_MS_MAX) if is_soon else 0
        self._on_change(True)
        await self._room(began_ms)
        if self._directory.failure is not None:
            return
        self._is_wanted.clear()
        self._directory.health.has_room_again()
        await self._remake_broken()
        if self._directory.full is None:
            self._healed_at_ms = self._monotonic_ms()
            _log.info("The data directory has room again", full_ms=self._monotonic_ms() - began_ms)
            self._on_change(False)

    async def _remake_broken(self) -> None:
        try:
            await self._table.remake_broken()
        except StorageFailed as failure:
            self._table.storage_failed(failure)

    async def _room(self, began_ms: int) -> None:
        while self._directory.failure is None:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            if self._monotonic_ms() - began_ms < self._hold_ms:
                continue
            if await self._table.pool.call(self._directory.look_for_room):
                return

    def _noticed(self, full: StorageFull) -> None:
        """In whatever thread met it."""
        _log.error(
            "The data directory is full: nothing is written until there is room", reason=str(full)
        )
        self._wake()

    def _refused(self, refused: StorageRefused) -> None:
        """In whatever thread met it."""
        if not self._is_wanted.is_set() and self._pause_s == _PAUSE_S_MIN:
            _log.error(
                "A write was refused, and not by the disk: it is tried again", reason=str(refused)
            )
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(self._is_wanted.set)
