"""What a process leaves in its data directory so that the next one knows what survived.

    clean      {"broker_epoch", "boot_id"}    written last by a controlled stop: all is synced
    running    {"boot_id", "incarnation",     written at start, removed by a controlled stop
                "untold": "power"}
    failed     the running marker, renamed when a write or a sync failed

    left behind                      restart class
    clean                            CLEAN      nothing to scan, ISR places kept
    running, untold                  POWER      the last life died before it could tell of a loss
    running, same boot id            PROCESS    the page cache is whole: scan past recovery points
    running, another boot id         POWER      what was not synced may be gone
    failed, or nothing at all        POWER

The failed marker is a rename because a full disk has no room for a new file; if even that fails,
the running marker is removed, which says the same.

A loss is untold until the controller has committed the registration that says POWER. A process that
dies before that (killed while it starts, out of memory in recovery) leaves a running marker of this
boot; without `untold` the next life would pass for a PROCESS restart, and the replica would keep
places in ISRs and ELRs for bytes that it no longer has.
"""

from __future__ import annotations

import contextlib
import json
from enum import Enum
from pathlib import Path
from typing import Final

from odradek_broker.log.storage import Storage, replace_file
from odradek_protocol.identity import NO_BROKER_EPOCH, BrokerEpoch, IncarnationId

CLEAN: Final = "clean"
RUNNING: Final = "running"
FAILED: Final = "failed"


class RestartClass(Enum):
    """What survived the last life."""

    CLEAN = "clean"
    PROCESS = "process"
    POWER = "power"


class RestartMarkers:
    """The markers of one directory. All methods wait for the disk."""

    __slots__ = ("_directory", "_running", "_storage")

    def __init__(self, storage: Storage, directory: Path) -> None:
        self._storage = storage
        self._directory = directory
        self._running: dict[str, object] = {}

    def begin(
        self, *, boot_id: str, incarnation: IncarnationId
    ) -> tuple[RestartClass, BrokerEpoch]:
        """Judge the last life and begin this one; the epoch is that of the clean marker.

        The running marker is there before the clean one goes: a crash in between, when no log was
        touched yet, is still a clean restart.
        """
        clean = self._read(CLEAN)
        running = self._read(RUNNING)
        broker_epoch = NO_BROKER_EPOCH
        if clean is not None and isinstance(clean.get("broker_epoch"), int):
            restart_class = RestartClass.CLEAN
            broker_epoch = BrokerEpoch(int(str(clean["broker_epoch"])))
        elif (
            running is not None
            and running.get("boot_id") == boot_id
            and "untold" not in running
            and not self._storage.exists(self._directory / FAILED)
        ):
            restart_class = RestartClass.PROCESS
        else:
            restart_class = RestartClass.POWER
        self._running = {"boot_id": boot_id, "incarnation": incarnation.hex()}
        if restart_class is RestartClass.POWER:
            self._running["untold"] = "power"
        self._write(RUNNING, self._running)
        self._storage.remove(self._directory / CLEAN)
        self._storage.remove(self._directory / FAILED)
        self._storage.sync_directory(self._directory)
        return restart_class, broker_epoch

    def told(self) -> None:
        """The controller has committed what `begin` found: a kill from now on is a PROCESS restart."""
        if self._running.pop("untold", None) is not None:
            self._write(RUNNING, self._running)
            self._storage.sync_directory(self._directory)

    def end_clean(self, *, boot_id: str, broker_epoch: BrokerEpoch) -> None:
        """Everything is synced; the next start may trust it."""
        self._write(CLEAN, {"broker_epoch": broker_epoch, "boot_id": boot_id})
        self._storage.remove(self._directory / RUNNING)
        self._storage.sync_directory(self._directory)

    def fail(self) -> None:
        """A write or a sync failed: nothing that is not synced may be trusted ever."""
        running = self._directory / RUNNING
        try:
            self._storage.rename(running, self._directory / FAILED)
        except OSError:
            with contextlib.suppress(OSError):
                self._storage.remove(running)
        with contextlib.suppress(OSError):
            self._storage.sync_directory(self._directory)

    def _read(self, name: str) -> dict[str, object] | None:
        try:
            content = json.loads(self._storage.read(self._directory / name))
        except (FileNotFoundError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def _write(self, name: str, content: dict[str, object]) -> None:
        replace_file(self._storage, self._directory / name, json.dumps(content).encode())
