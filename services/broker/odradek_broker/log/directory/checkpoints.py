"""The offset checkpoints of a data directory: one offset for each partition, in Kafka's format.

    recovery-point-offset-checkpoint    everything below this offset is durable and indexed, and not scanned at start
    replication-offset-checkpoint       high watermark
    log-start-offset-checkpoint         log start offset, unless it is 0
    cleaner-offset-checkpoint           the log is compacted below this offset

    0                                   version
    <count>
    <topic id> <partition> <offset>     a line for each partition

The files contain the topic's id where Kafka writes its name, so that a topic that is created again under an old name
never gets the offsets of the old topic. A timer replaces and syncs whole files, on a disk thread.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from odradek_broker.log.directory.partition_files import parse_uuid, uuid_text
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.storage import Storage, replace_file
from odradek_protocol.identity import Offset, PartitionIndex, TopicId, TopicIdPartition

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANED: Final = "cleaner-offset-checkpoint"

_VERSION: Final = "0"


def encode_offsets(offsets: dict[TopicIdPartition, Offset]) -> bytes:
    lines = [_VERSION, str(len(offsets))]
    lines += [f"{uuid_text(p.topic_id)} {p.partition} {o}" for p, o in offsets.items()]
    return ("\n".join(lines) + "\n").encode()


def decode_offsets(text: bytes) -> dict[TopicIdPartition, Offset]:
    """Decode a checkpoint file. Raises ValueError if it is torn, empty or of another format."""
    lines = text.decode("ascii").split("\n")
    if len(lines) < 3 or lines[0] != _VERSION or lines[-1] != "":
        raise ValueError("the file is not a complete offset checkpoint of version 0")
    if int(lines[1]) != len(lines) - 3:
        raise ValueError(f"the file has {len(lines) - 3} entries, but its count is {lines[1]}")
    offsets: dict[TopicIdPartition, Offset] = {}
    for line in lines[2:-1]:
        topic_id, partition, offset = line.split(" ")
        if int(offset) < 0:
            raise ValueError(f"the offset {offset} is negative")
        key = TopicIdPartition(TopicId(parse_uuid(topic_id)), PartitionIndex(int(partition)))
        offsets[key] = Offset(int(offset))
    return offsets


class OffsetCheckpoint:
    """One checkpoint file. Disk threads write it, one at a time.

    A `lower` that runs while a write is being prepared must not be undone by the write. So the writer gets a ticket
    before it collects the offsets. `lower` makes the ticket invalid, and the write is skipped; the next periodic write
    has new offsets.
    """

    __slots__ = ("_lock", "_offsets", "_path", "_storage", "_ticket", "was_lost")

    def __init__(self, storage: Storage, path: Path) -> None:
        self._storage = storage
        self._path = path
        self._lock = threading.Lock()
        self._offsets: dict[TopicIdPartition, Offset] = {}
        self._ticket = 0
        self.was_lost = False

    def read(self) -> dict[TopicIdPartition, Offset]:
        """Return the offsets in the file. If the file is missing or torn, return an empty dict and set `was_lost`."""
        try:
            self._offsets = decode_offsets(self._storage.read(self._path))
        except (FileNotFoundError, ValueError):
            self._offsets = {}
            self.was_lost = True
        return dict(self._offsets)

    def get(self, partition: TopicIdPartition) -> Offset | None:
        """Return the file's offset of one partition; None if the file has none. Does not wait for a running write,
        which may take long.
        """
        return self._offsets.get(partition)

    def ticket(self) -> int:
        """Return a ticket for `write`. The caller must get the ticket before it collects the offsets."""
        return self._ticket

    def write(self, offsets: dict[TopicIdPartition, Offset], ticket: int) -> bool:
        """Replace the file (blocks). Return False, and change nothing, if `lower` was called after `ticket` was made.
        Raises OSError.
        """
        with self._lock:
            if ticket != self._ticket:
                return False
            if offsets != self._offsets or self.was_lost:
                replace_file(self._storage, self._path, encode_offsets(offsets))
                self._offsets = dict(offsets)
                self.was_lost = False
            return True

    def lower(self, partition: TopicIdPartition, offset: Offset | None) -> None:
        """Lower the file's offset of a partition to at most `offset`; None removes it (blocks)."""
        with self._lock:
            self._ticket += 1
            before = self._offsets.get(partition)
            if before is None or (offset is not None and before <= offset):
                return
            offsets = dict(self._offsets)
            if offset is None:
                del offsets[partition]
            else:
                offsets[partition] = offset
            replace_file(self._storage, self._path, encode_offsets(offsets))
            self._offsets = offsets


class Checkpoints:
    """The four checkpoint files of a data directory."""

    __slots__ = ("_left", "cleaned", "high_watermarks", "log_starts", "recovery_points")

    def __init__(self, storage: Storage, path: Path) -> None:
        self.recovery_points = OffsetCheckpoint(storage, path / RECOVERY_POINTS)
        self.high_watermarks = OffsetCheckpoint(storage, path / HIGH_WATERMARKS)
        self.log_starts = OffsetCheckpoint(storage, path / LOG_STARTS)
        self.cleaned = OffsetCheckpoint(storage, path / CLEANED)
        # Logs that were removed since the last checkpoint. The checkpoint files, or a job that is writing the files,
        # may still contain these logs.
        self._left: set[TopicIdPartition] = set()

    def lower(
        self, partition: TopicIdPartition, offset: Offset, high_watermark_max: Offset | None = None
    ) -> None:
        """Lower a log's recovery point, log start and compacted offset to at most `offset`, and its high watermark to
        at most `high_watermark_max` (None: it stays unchanged), before the log is truncated (blocks).
        """
        if high_watermark_max is not None:
            self.high_watermarks.lower(partition, high_watermark_max)
        self.recovery_points.lower(partition, offset)
        self.log_starts.lower(partition, offset)
        self.cleaned.lower(partition, offset)

    def leave(self, partition: TopicIdPartition) -> None:
        """Record that a log was removed, so that the next checkpoint does not contain it."""
        self._left.add(partition)

    def enter(self, partition: TopicIdPartition) -> None:
        """Remove the offsets of an earlier log from the files (blocks), because the partition gets a new, empty log.

        There are such offsets if the replica was moved to another broker and back.
        """
        if partition in self._left or self.recovery_points.get(partition) is not None:
            for checkpoint in (
                self.recovery_points,
                self.high_watermarks,
                self.log_starts,
                self.cleaned,
            ):
                checkpoint.lower(partition, None)

    def begin(self, logs: list[PartitionLog]) -> CheckpointJob:
        """Return a job that writes all four files."""
        return CheckpointJob(logs, self, self._left)


class CheckpointJob:
    """A job that collects the offsets and writes the checkpoints, on a disk thread.

    The event loop may change offsets while the job reads them. Each offset was right at some moment after the tickets
    were made, and a truncation that begins later makes the tickets invalid. A truncation that was already running may
    have lowered the files before the tickets were made, so until that truncation is finished, the job writes no offset
    above the log's `cut_limits`, and no high watermark above the one in the file.
    """

    __slots__ = (
        "_checkpoints",
        "_left",
        "_left_before",
        "_logs",
        "_tickets",
        "error",
        "is_outdated",
    )

    def __init__(
        self, logs: list[PartitionLog], files: Checkpoints, left: set[TopicIdPartition]
    ) -> None:
        self._logs = logs
        self._left, self._left_before = left, frozenset(left)
        self._checkpoints = (
            files.recovery_points,
            files.high_watermarks,
            files.log_starts,
            files.cleaned,
        )
        self._tickets = [checkpoint.ticket() for checkpoint in self._checkpoints]
        self.error: OSError | None = None
        self.is_outdated = False  # whether a file was not written, because `lower` was called

    def run(self) -> None:
        """Run the job once. An error is stored in `error`; `LogDirectory.finish_checkpoint` raises it."""
        logs = [(log.id, log) for log in self._logs]
        offsets_by_file = (
            {key: _recovery_point(log) for key, log in logs},
            {
                key: high_watermark
                for key, log in logs
                if (high_watermark := _high_watermark(log, self._checkpoints[1])) is not None
            },
            {key: start for key, log in logs if (start := _log_start(log)) > 0},
            {key: cleaned for key, log in logs if (cleaned := _cleaned(log)) > 0},
        )
        try:
            for checkpoint, offsets, ticket in zip(
                self._checkpoints, offsets_by_file, self._tickets, strict=True
            ):
                self.is_outdated |= not checkpoint.write(offsets, ticket)
        except OSError as error:
            self.error = error
        else:
            if not self.is_outdated:
                self._left.difference_update(self._left_before)


def _recovery_point(log: PartitionLog) -> Offset:
    # The limits are read first. If a truncation ends between the two reads, it has already lowered the recovery point.
    limits = log.cut_limits
    point = log.recovery_point
    return point if limits is None else min(point, limits[0])


def _high_watermark(log: PartitionLog, checkpoint: OffsetCheckpoint) -> Offset | None:
    limits = log.cut_limits
    high_watermark = min(log.high_watermark, log.stored_end_offset)
    if limits is None:
        return high_watermark
    written = checkpoint.get(log.id)
    return None if written is None else min(high_watermark, written)


def _log_start(log: PartitionLog) -> Offset:
    limits = log.cut_limits
    start = log.log_start_offset
    return start if limits is None else min(start, limits[1])


def _cleaned(log: PartitionLog) -> Offset:
    limits = log.cut_limits
    cleaned = log.cleaned_offset
    return cleaned if limits is None else min(cleaned, limits[1])
