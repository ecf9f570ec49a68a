"""The offsets of a replica's log, without the log itself: log start <= high watermark <= log end.

The offsets move when the replica's host reports that the disk has finished; this module does no I/O. Between a
TruncateTo or ResetLog and the event that reports its end, the log is *being cut*: nothing may be appended, and a change
of role waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek_broker.compiled import Value
from odradek_broker.leader_epochs import LeaderEpochs
from odradek_protocol.identity import LeaderEpoch, Offset
from odradek_protocol.kafka.error_codes import ErrorCode

OFFSET_MAX: Final = (1 << 63) - 1


class LogAtOpen(Value, frozen=True, kw_only=True):
    """The offsets of a log after recovery. `epochs` has pairs of a leader epoch and its first offset, rising."""

    log_start: Offset
    log_end: Offset
    durable_end: Offset
    high_watermark: Offset
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]


@dataclass
class LogPositions:
    """The offsets and leader epochs of one log. The Replica owns this object, and its Leader or Follower uses it."""

    log_start: Offset
    log_end: Offset
    durable_end: Offset
    high_watermark: Offset
    epochs: LeaderEpochs
    is_fsync: bool = False  # durability=fsync: `position` is the synced end
    # A sync starts at this many unsynced records; 1 with durability=fsync.
    unsynced_max: int = OFFSET_MAX
    # flush.ms: the longest time that a record may stay unsynced.
    flush_ms: int = OFFSET_MAX
    # The time at which `is_flush_due` first saw unsynced records; None: it has seen none since the last sync.
    unsynced_since_ms: int | None = None
    is_syncing: bool = False
    cutting_to: Offset | None = None
    is_reset: bool = False  # whether `cutting_to` belongs to a ResetLog instead of a TruncateTo

    @classmethod
    def at_open(cls, log: LogAtOpen) -> LogPositions:
        """Return the positions after recovery. A checkpointed high watermark outside of the log becomes the nearest log
        offset.
        """
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
        """The end of the records that this replica may acknowledge: the log end, or, with durability=fsync, the end of
        the synced records (rule R6).
        """
        return self.durable_end if self.is_fsync else self.log_end

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The leader epoch of the last record; NO_LEADER_EPOCH if the log is empty."""
        return self.epochs.at(self.log_end - 1)

    def appended(self, end_offset: Offset) -> None:
        assert self.cutting_to is None, "an append while the log is being cut"
        assert end_offset > self.log_end, f"append ends at {end_offset}, log at {self.log_end}"
        self.log_end = end_offset

    def synced(self, durable_end: Offset) -> None:
        self.is_syncing = False
        self.durable_end = min(durable_end, self.log_end)

    @property
    def waits_for_flush(self) -> bool:
        """Whether flush.ms will require a sync even if no other event comes."""
        return self.flush_ms < OFFSET_MAX and self.durable_end < self.log_end

    def is_flush_due(self, now_ms: int) -> bool:
        """Return whether a sync has to start now because of flush.ms. The replica calls this at every Tick.

        The time counts from the first Tick after an append. When flush.ms starts a sync, the time counts again from the
        start of that sync, because records that the sync does not cover were appended later.
        """
        if not self.waits_for_flush:
            self.unsynced_since_ms = None
            return False
        if self.unsynced_since_ms is None:
            self.unsynced_since_ms = now_ms
        if self.is_syncing or self.cutting_to is not None:
            return False
        if now_ms - self.unsynced_since_ms < self.flush_ms:
            return False
        self.unsynced_since_ms = now_ms
        return True

    def finish_cut(self) -> None:
        """Set the log end to `cutting_to`, because the truncation or reset of the log has finished."""
        end = self.cutting_to
        assert end is not None, "Truncated or LogReset without a preceding effect"
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
        """Lower the start of an empty log to the base offset of a batch that contains the present start.

        The leader's log start may be inside a batch (DeleteRecords), but a batch is always appended whole.
        """
        assert self.log_start == self.log_end, f"{self} is not empty"
        self.log_start = self.log_end = self.durable_end = self.high_watermark = first_offset

    def advance_start(self, log_start: Offset) -> bool:
        """Raise the log start offset, but not above the high watermark. Return whether the offset rose."""
        log_start = min(log_start, self.high_watermark)
        if log_start <= self.log_start:
            return False
        self.log_start = log_start
        self.epochs.truncate_from_start(log_start)
        return True

    def refusal_of_read(self, fetch_offset: Offset, *, is_leader: bool) -> ErrorCode:
        """Return NONE if a read may begin at this offset, or else the error.

        A leader knows where the log ends, so for an offset above its high watermark it returns no records. A follower
        does not know whether the log has records above its own high watermark, so it returns an error.
        """
        if fetch_offset < self.log_start:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if is_leader:
            is_inside = fetch_offset <= self.log_end
            return ErrorCode.NONE if is_inside else ErrorCode.OFFSET_OUT_OF_RANGE
        is_shown = fetch_offset <= self.high_watermark
        return ErrorCode.NONE if is_shown else ErrorCode.OFFSET_NOT_AVAILABLE
