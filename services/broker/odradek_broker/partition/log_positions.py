"""Where a replica's log stands, as its core knows it: log start <= high watermark <= log end.

The core moves these when the shell reports that the disk has done what was asked; it never looks
at a file. Between a TruncateTo or ResetLog and its answer the log is *being cut*: nothing may be
appended, and a change of role waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from odradek_broker.leader_epochs import LeaderEpochs
from odradek_protocol.identity import LeaderEpoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAtOpen:
    """The log as recovery left it. `epochs`: (leader epoch, first offset under it), rising."""

    log_start: Offset
    log_end: Offset
    durable_end: Offset
    high_watermark: Offset
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]


@dataclass(slots=True)
class LogPositions:
    """One log's offsets and lineage; owned by the Replica, shared with its present role."""

    log_start: Offset
    log_end: Offset
    durable_end: Offset
    high_watermark: Offset
    epochs: LeaderEpochs
    is_fsync: bool = False  # positions that others count on are synced ends
    is_syncing: bool = False
    cutting_to: Offset | None = None
    is_reset: bool = False  # the cut is a ResetLog

    @classmethod
    def at_open(cls, log: LogAtOpen) -> LogPositions:
        """As recovery left it; the watermark is within the log, whatever the checkpoint said."""
        assert log.log_start <= log.log_end >= log.durable_end, f"{log}"
        return cls(
            log_start=log.log_start,
            log_end=log.log_end,
            durable_end=log.durable_end,
            high_watermark=max(log.log_start, min(log.high_watermark, log.log_end)),
            epochs=LeaderEpochs(log.epochs),
        )

    @property
    def position(self) -> Offset:
        """What this replica may claim to hold: appended, or synced with durability=fsync (R6)."""
        return self.durable_end if self.is_fsync else self.log_end

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The epoch of the last record; NO_LEADER_EPOCH when the log holds none."""
        return self.epochs.at(self.log_end - 1)

    def appended(self, end_offset: Offset) -> None:
        assert self.cutting_to is None, "an append while the log is being cut"
        assert end_offset > self.log_end, f"append ends at {end_offset}, log at {self.log_end}"
        self.log_end = end_offset

    def synced(self, durable_end: Offset) -> None:
        self.is_syncing = False
        self.durable_end = min(durable_end, self.log_end)

    def finish_cut(self) -> None:
        """The log was cut at, or reset to, `cutting_to`."""
        end = self.cutting_to
        assert end is not None, "a cut that nobody asked for"
        if self.is_reset:
            self.log_start = self.log_end = self.durable_end = self.high_watermark = end
            self.epochs.clear()
        else:
            assert self.log_start <= end <= self.log_end, f"cut at {end} of {self}"
            self.log_end = end
            self.durable_end = min(self.durable_end, end)
            self.high_watermark = min(self.high_watermark, end)
            self.epochs.truncate_from_end(end)
        self.cutting_to, self.is_reset = None, False

    def begin_at(self, first_offset: Offset) -> None:
        """An empty log begins lower: the batch that holds its start is about to be appended.

        The leader's log start may lie within a batch (DeleteRecords), and batches stay whole.
        """
        assert self.log_start == self.log_end, f"{self} is not empty"
        self.log_start = self.log_end = self.durable_end = self.high_watermark = first_offset

    def advance_start(self, log_start: Offset) -> bool:
        """Follow a log start offset, never back and never past the high watermark; did it move?"""
        log_start = min(log_start, self.high_watermark)
        if log_start <= self.log_start:
            return False
        self.log_start = log_start
        self.epochs.truncate_from_start(log_start)
        return True
