"""Opening the log of a stray that is claimed again: the half that waits for the disk."""

from __future__ import annotations

from odradek_broker.log.directory.loading import FoundPartition
from odradek_broker.log.directory.strays import Stray
from odradek_broker.log.log_values import LoadedLog
from odradek_broker.log.recovery import Recovery
from odradek_broker.log.storage import Storage
from odradek_protocol.identity import Offset


class StrayReturn:
    """Recovers a log as after a kill; what the stray did not sync and a power loss took is cut."""

    __slots__ = ("_storage", "damage", "error", "found", "loaded", "stray")

    def __init__(self, storage: Storage, found: FoundPartition, stray: Stray) -> None:
        self._storage = storage
        self.stray = stray
        self.found = found
        self.loaded: LoadedLog | None = None
        self.error: OSError | None = None
        self.damage = ""

    def run(self) -> None:
        """Do it, once (pool: may take long). An error is kept for `LogDirectory.finish_return`."""
        stray = self.stray
        recovery = Recovery(
            storage=self._storage,
            directory=self.found.path,
            recovery_point=Offset(stray.recovery_point if stray.is_synced else 0),
            high_watermark=Offset(stray.high_watermark),
            log_start_offset=Offset(stray.log_start_offset),
            is_clean=False,
            is_power_loss=not stray.is_synced,
        )
        try:
            self.loaded = recovery.run()
        except OSError as error:
            self.error = error
        self.damage = recovery.damage
