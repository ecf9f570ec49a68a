"""Marker files from which a process learns what survived the end of the previous process.

    clean      {"broker_epoch", "boot_id"}    written last by a controlled stop: everything is synced
    running    {"boot_id", "incarnation",     written at start, removed by a controlled stop
                "lock", "untold": "power"}
    failed     the running marker, renamed when a write or a sync failed

    marker found at start            restart class
    clean                            CLEAN      nothing to scan, the replicas stay in their ISRs
    running, untold                  POWER      the last process died before it reported a loss
    running, same boot and lock      PROCESS    the page cache survived: scan past recovery points
    running, another boot id         POWER      unsynced bytes may be lost
    running, another lock file       POWER      the directory is a copy, perhaps an old one: a restored backup
    failed, or none                  POWER

After a failed write the running marker is renamed, because a full disk may have no space for a new file. If even the
rename fails, the running marker is deleted, which has the same meaning.

`lock` is the inode number of the directory's lock file. The lock file is created once, and has another number in a copy
of the directory. (Markers of the first release lack `lock`.) With the boot id alone, a restored backup would be treated
like the directory that the last process left, although the backup lacks all records acknowledged since it was made.

`untold` means that the controller does not know of the loss yet. It stays in the marker until the controller has
committed a registration with POWER. A process that dies before that commit (it is killed during its start, or runs out
of memory in recovery) leaves a running marker with the current boot id. Without `untold` the next start would be of
class PROCESS, and the replica would stay in ISRs and ELRs although it has lost bytes.
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
    """What survived the end of the last process. CLEAN: everything, because it was stopped cleanly. PROCESS: everything
    that was written. POWER: only what was synced.
    """

    CLEAN = "clean"
    PROCESS = "process"
    POWER = "power"


class RestartMarkers:
    """The marker files of one data directory. All methods wait for the disk."""

    __slots__ = ("_directory", "_running", "_storage")

    def __init__(self, storage: Storage, directory: Path) -> None:
        self._storage = storage
        self._directory = directory
        self._running: dict[str, object] = {}

    def begin(
        self, *, boot_id: str, lock_inode: int, incarnation: IncarnationId
    ) -> tuple[RestartClass, BrokerEpoch]:
        """Return how the last process ended, and the broker epoch in the clean marker (NO_BROKER_EPOCH without one).
        Write the running marker, and then delete the clean one.

        If the process dies between these steps, the next start is still clean, which is correct: no log was changed.
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
            and running.get("lock", lock_inode) == lock_inode
            and "untold" not in running
            and not self._storage.exists(self._directory / FAILED)
        ):
            restart_class = RestartClass.PROCESS
        else:
            restart_class = RestartClass.POWER
        self._running = {
            "boot_id": boot_id,
            "incarnation": incarnation.hex(),
            "lock": lock_inode,
        }
        if restart_class is RestartClass.POWER:
            self._running["untold"] = "power"
        self._write(RUNNING, self._running)
        self._storage.remove(self._directory / CLEAN)
        self._storage.remove(self._directory / FAILED)
        self._storage.sync_directory(self._directory)
        return restart_class, broker_epoch

    def loss_reported(self) -> None:
        """Record that the controller has committed a registration with the current restart class. If the process is
        killed from now on, the next restart is of class PROCESS.
        """
        if "untold" in self._running:
            reported = {name: value for name, value in self._running.items() if name != "untold"}
            self._write(RUNNING, reported)
            self._storage.sync_directory(self._directory)
            self._running = reported

    def end_clean(self, *, boot_id: str, broker_epoch: BrokerEpoch) -> None:
        """Write the clean marker. The caller must have synced everything: the next start trusts the logs without a
        check.
        """
        self._write(CLEAN, {"broker_epoch": broker_epoch, "boot_id": boot_id})
        self._storage.remove(self._directory / RUNNING)
        self._storage.sync_directory(self._directory)

    def fail(self) -> None:
        """Replace the running marker by the failed one after a failed write or sync: unsynced bytes may be lost."""
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
