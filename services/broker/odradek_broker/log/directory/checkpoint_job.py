"""The offset checkpoints of a data directory, and the job that writes them all."""

from __future__ import annotations

from pathlib import Path

from odradek_broker.log.directory.checkpoints import (
    CLEANED,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    OffsetCheckpoint,
)
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.storage import Storage
from odradek_protocol.identity import Offset, TopicIdPartition


class Checkpoints:
    """What the next start is told of every log: a file each."""

    __slots__ = ("cleaned", "high_watermarks", "log_starts", "recovery_points")

    def __init__(self, storage: Storage, path: Path) -> None:
        self.recovery_points = OffsetCheckpoint(storage, path / RECOVERY_POINTS)
        self.high_watermarks = OffsetCheckpoint(storage, path / HIGH_WATERMARKS)
        self.log_starts = OffsetCheckpoint(storage, path / LOG_STARTS)
        self.cleaned = OffsetCheckpoint(storage, path / CLEANED)

    def lower(self, partition: TopicIdPartition, offset: Offset) -> None:
        """Before a log is cut: let the files vouch for nothing past `offset`, and let no log begin
        there (waits)."""
        self.recovery_points.lower(partition, offset)
        self.log_starts.lower(partition, offset)

    def begin(self, logs: list[PartitionLog]) -> CheckpointJob:
        """A job that writes them all."""
        return CheckpointJob(logs, self)


class CheckpointJob:
    """Gathers and writes the checkpoints in a pool thread.

    Offsets are read while the loop may move them: each is right at some moment after the tickets
    were taken, and a cut that begins later makes the tickets void. A cut that was under way when they
    were taken may have lowered the file already: until the log hears of that, its limit counts.
    """

    __slots__ = ("_checkpoints", "_logs", "_tickets", "error")

    def __init__(self, logs: list[PartitionLog], files: Checkpoints) -> None:
        self._logs = logs
        self._checkpoints = (
            files.recovery_points,
            files.high_watermarks,
            files.log_starts,
            files.cleaned,
        )
        self._tickets = [checkpoint.ticket() for checkpoint in self._checkpoints]
        self.error: OSError | None = None

    def run(self) -> None:
        """Do it, once. An error is kept for `LogDirectory.finish_checkpoint`."""
        logs = [(log.id, log) for log in self._logs]
        gathered = (
            {key: _recovery_point(log) for key, log in logs},
            {key: min(log.high_watermark, log.stored_end_offset) for key, log in logs},
            {key: start for key, log in logs if (start := _log_start(log)) > 0},
            {key: log.cleaned_offset for key, log in logs if log.cleaned_offset > 0},
        )
        try:
            for checkpoint, offsets, ticket in zip(
                self._checkpoints, gathered, self._tickets, strict=True
            ):
                checkpoint.write(offsets, ticket)
        except OSError as error:
            self.error = error


def _recovery_point(log: PartitionLog) -> Offset:
    limits = log.cut_limits  # read first: a cut that ends in between has moved the recovery point
    point = log.recovery_point
    return point if limits is None else min(point, limits[0])


def _log_start(log: PartitionLog) -> Offset:
    limits = log.cut_limits
    start = log.log_start_offset
    return start if limits is None else min(start, limits[1])
