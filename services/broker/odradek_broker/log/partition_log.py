"""One partition's log: segments on disk, and what is known of them in memory.

INTERFACE. Ownership and threads: one owner (the partition's host, on the event loop) calls
everything. What may wait for the disk comes in two halves: `begin_*` decides on the loop and
returns a job; `job.run()` does the waiting in a pool thread and never raises; `finish(job)`
applies the result on the loop, and raises StorageFailed if the disk failed. `plan_read` likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.producers.producer_state import ProducerStates
from odradek_protocol.identity import (
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerId,
    TopicId,
    TopicName,
)
from odradek_protocol.records.batch_header import ByteBuffer


class OffsetOutOfRange(LookupError):
    """The offset lies below the log start offset or above the log end offset."""


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """What one append did. `end_offset` is the log end offset after it (exclusive)."""

    base_offset: Offset
    end_offset: Offset
    max_timestamp_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Whole batches, in order; empty `slices` when the range holds nothing.

    `slices` are read-only and may be kept; together they are the bytes of [the batch with
    `start_offset`, `end_offset`). The first batch may begin below the offset asked for.
    """

    slices: Sequence[bytes | memoryview]
    start_offset: Offset
    end_offset: Offset
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """A transaction that read_committed readers skip: its offsets, last one inclusive."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset


class StorageJob(Protocol):
    """The half of an operation that waits for the disk."""

    def run(self) -> None:
        """Do it, in any thread, once. Errors are kept for `finish`."""


class ReadPlan(Protocol):
    """A read decided upon. `run` may be called once, here if `is_hot`, else in a pool thread."""

    is_hot: bool

    def run(self) -> ReadResult: ...

    def discard(self) -> None:
        """Give up the file handle of a plan that will not run."""


class PartitionLog:
    """The log of one partition of one broker."""

    topic: TopicName
    topic_id: TopicId
    partition: PartitionIndex
    config: LogConfig  # set it to change the settings at run time
    producers: ProducerStates
    log_start_offset: Offset
    log_end_offset: Offset
    durable_end_offset: Offset
    high_watermark: Offset

    # --- writing -------------------------------------------------------------------------------

    def append(self, batches: ByteBuffer, *, now_ms: int, retain: bool = True) -> AppendInfo:
        """Write whole, stamped, validated batches at the end; synchronous write(2), no sync.

        For leader (batches stamped with log_end_offset and its epoch) and follower alike: the
        first base offset is >= log_end_offset (compaction leaves gaps), epochs never fall. The
        buffer belongs to the log afterwards: kept for readers of the tail unless `retain` is
        false, so nobody may change it. Rolls segments, enters new leader epochs, notes producers
        and transactions. Raises StorageFailed; then nothing of it counts as written.
        """
        raise NotImplementedError

    def begin_sync(self, *, full: bool = False) -> StorageJob | None:
        """A job that makes all bytes up to the present log end durable; None if nothing is unsynced
        or a sync is under way (its `finish` is the moment to begin the next: group commit).

        `full` also writes indexes, epochs and producer snapshots and moves the recovery point.
        """
        raise NotImplementedError

    def finish(self, job: StorageJob) -> None:
        """Apply a job that ran; raises StorageFailed if it failed, nothing is applied then."""
        raise NotImplementedError

    def begin_truncate(self, offset: Offset) -> StorageJob:
        """Cut everything at and above `offset`, epochs and producer state too, synced (R4).

        No append until `finish`. Also used with offset == log_end_offset: forgets epochs without
        data. `truncate_to` does begin, run and finish in one call.
        """
        raise NotImplementedError

    def truncate_to(self, offset: Offset) -> None:
        """Truncate and wait for the disk."""
        raise NotImplementedError

    def begin_reset(self, start_offset: Offset) -> StorageJob:
        """Drop the whole log and start again, empty, at `start_offset` (Snapshotless)."""
        raise NotImplementedError

    def reset_to(self, start_offset: Offset) -> None:
        """Reset and wait for the disk."""
        raise NotImplementedError

    def assign_epoch(self, epoch: LeaderEpoch) -> None:
        """Enter (epoch, log end offset) in the epoch cache: this replica begins to lead (R1)."""
        raise NotImplementedError

    # --- offsets -------------------------------------------------------------------------------

    def set_high_watermark(self, offset: Offset) -> None:
        """Told by the replica whenever it moves; bounds retention and the last stable offset."""
        raise NotImplementedError

    @property
    def last_stable_offset(self) -> Offset:
        """The first offset of the oldest transaction still open below the high watermark, or it."""
        raise NotImplementedError

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The latest entry of the epoch cache; NO_LEADER_EPOCH if there is none."""
        raise NotImplementedError

    def epoch_end(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest known epoch <= `epoch` and its end offset (R3).

        Without any entry: (NO_LEADER_EPOCH, NO_OFFSET). Below the first entry: (epoch, the first
        entry's start), as Kafka answers OffsetsForLeaderEpoch.
        """
        raise NotImplementedError

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The leader epoch under which `offset` was written; NO_LEADER_EPOCH if unknown."""
        raise NotImplementedError

    def advance_log_start(self, offset: Offset) -> None:
        """DeleteRecords, or what a leader told: never falls, may not pass the high watermark."""
        raise NotImplementedError

    @property
    def size_bytes(self) -> int:
        raise NotImplementedError

    # --- reading -------------------------------------------------------------------------------

    def plan_read(self, start_offset: Offset, *, bytes_max: int, end_offset: Offset) -> ReadPlan:
        """Plan to read whole batches from the one that holds `start_offset`, at least one.

        No batch that reaches past `end_offset` (exclusive) is included. Raises OffsetOutOfRange.
        """
        raise NotImplementedError

    def read(self, start_offset: Offset, *, bytes_max: int, end_offset: Offset) -> ReadResult:
        """Plan and run here, cold or not."""
        raise NotImplementedError

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, Offset] | None:
        """(timestamp, offset) of the first record at or after `timestamp_ms`; may wait for the
        disk: pool."""
        raise NotImplementedError

    def max_timestamp_offset(self) -> tuple[int, Offset] | None:
        """(timestamp, offset) of the record with the greatest timestamp; may wait: pool."""
        raise NotImplementedError

    def aborted_transactions(
        self, start_offset: Offset, end_offset: Offset
    ) -> list[AbortedTransaction]:
        """Aborted transactions that overlap [start_offset, end_offset)."""
        raise NotImplementedError

    # --- space ---------------------------------------------------------------------------------

    def apply_retention(self, *, now_ms: int) -> int:
        """Take segments out by age, size and log start offset; returns how many. No waiting."""
        raise NotImplementedError
