"""The offsets of a replica's log, without the log: log start <= high watermark <= log end.

They move when the replica's host reports that the disk has finished; no file is read here. Between a TruncateTo or
ResetLog and its response the log is *being cut*: nothing may be appended, and a change of role waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek_broker.leader_epochs import LeaderEpochs
from odradek_protocol.identity import LeaderEpoch, Offset

OFFSET_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAtOpen:
    """A log as recovery left it. `epochs` are rising pairs (leader epoch, its first offset)."""

    log_start: Offset
    log_end: Offset
    durable_end: Offset
    high_watermark: Offset
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]


@dataclass(slots=True)
class LogPositions:
    """One log's offsets and lineage; the Replica owns them and shares them with its present role."""

    log_start: Offset
    log_end: Offset
    durable_end: Offset
    high_watermark: Offset
    epochs: LeaderEpochs
    is_fsync: bool = False  # durability=fsync: `position` is the synced end
    unsynced_max: int = (
        OFFSET_MAX  # a sync starts at so many unsynced records; 1 with durability=fsync
    )
    is_syncing: bool = False
    cutting_to: Offset | None = None
    is_reset: bool = False  # whether the cut is a ResetLog rather than a TruncateTo

    @classmethod
    def at_open(cls, log: LogAtOpen) -> LogPositions:
        """Return the positions after recovery. A checkpointed watermark outside the log is moved into it."""
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
        """The end of what this replica has stored: the log end, or with durability=fsync the end of what is synced
        (rule R6).
        """
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
        """Set the log end to `cutting_to`, because the truncation or reset of the log finished."""
        end = self.cutting_to
        assert end is not None, "a truncation that was not asked for"
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
        """Move an empty log's start down to the base offset of the batch that contains its start.

        The leader's log start may be within a batch (DeleteRecords), and batches stay whole.
        """
        assert self.log_start == self.log_end, f"{self} is not empty"
        self.log_start = self.log_end = self.durable_end = self.high_watermark = first_offset

    def advance_start(self, log_start: Offset) -> bool:
        """Raise the log start offset, up to the high watermark at most; return whether it rose."""
        log_start = min(log_start, self.high_watermark)
        if log_start <= self.log_start:
            return False
        self.log_start = log_start
        self.epochs.truncate_from_start(log_start)
        return True
