"""A partition's log as its readers see it: where it begins and ends, its lineage, and its batches.

The writing half is `PartitionLog`, which alone changes anything here.
"""

from __future__ import annotations

from pathlib import Path

from odradek_broker.log.index.transaction_index import AbortedTransaction
from odradek_broker.log.log_reads import OffsetOutOfRange, ReadPlan, ReadResult, read_tail
from odradek_broker.log.log_times import TimestampOffset, find_greatest, find_timestamp
from odradek_broker.log.log_values import LoadedLog
from odradek_broker.log.segments.recent_appends import RecentAppends, Tail
from odradek_broker.log.segments.segment import Segment
from odradek_broker.log.segments.segment_list import SegmentList
from odradek_broker.log.storage import DirectoryHealth, LogDamaged, Storage
from odradek_broker.log.sync_progress import SyncProgress
from odradek_protocol.identity import (
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
    TopicName,
)


class ReadableLog:
    """What may be asked of one partition's log."""

    __slots__ = (
        "_health",
        "_progress",
        "_recent",
        "_segments",
        "_storage",
        "_tail",
        "damage",
        "directory",
        "epochs",
        "high_watermark",
        "id",
        "log_end_offset",
        "log_start_offset",
        "partition",
        "producers",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        *,
        storage: Storage,
        health: DirectoryHealth,
        recent: RecentAppends,
        directory: Path,
        topic: TopicName,
        topic_id: TopicId,
        partition: PartitionIndex,
        loaded: LoadedLog,
        is_new: bool,
    ) -> None:
        self._storage = storage
        self._health = health
        self._recent = recent
        self._tail: Tail = {}
        self.damage: tuple[int, int] | None = None  # offsets of a batch that nobody may be given
        self._segments = SegmentList(loaded.segments)
        self._progress = SyncProgress(
            self._segments,
            loaded.epochs,
            recovery_point=loaded.recovery_point,
            recovery_position=loaded.recovery_position,
            snapshot_offsets=loaded.snapshot_offsets,
            is_new=is_new,
        )
        self.directory = directory
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.id = TopicIdPartition(topic_id, partition)
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = Offset(self._segments.active.end_offset)
        self.high_watermark = loaded.high_watermark

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    # --- offsets --------------------------------------------------------------------------------

    @property
    def durable_end_offset(self) -> Offset:
        """All below it is durable."""
        return self._progress.durable_end

    @property
    def recovery_point(self) -> Offset:
        """A restart scans nothing below it."""
        return self._progress.recovery_point

    @property
    def unsynced_bytes(self) -> int:
        """At most so many bytes would be scanned if the process died now."""
        return self._progress.unsynced_bytes

    @property
    def unsynced_since_ms(self) -> int | None:
        """When the oldest append was made that no full sync has taken; None: none is left."""
        return self._progress.since_ms

    @property
    def last_stable_offset(self) -> Offset:
        """The first offset of the oldest transaction that is open, or was closed by a marker not
        below the high watermark yet; without one, the high watermark. Never below the log start."""
        first = self.producers.first_unstable_offset(self.high_watermark)
        if first is None or first >= self.high_watermark:
            return self.high_watermark
        return max(first, self.log_start_offset)

    @property
    def stored_end_offset(self) -> Offset:
        """Where the last batch ends, as a restart sees it; a cut inside a gap that compaction had
        left puts the log end offset past it."""
        return Offset(self._segments.active.end_offset)

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The latest entry of the epoch cache; NO_LEADER_EPOCH if there is none."""
        return self.epochs.latest

    def epoch_end(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest known epoch <= `epoch` and its end offset (R3).

        Answers the edge cases as Kafka does (`LeaderEpochs.end_of`).
        """
        return self.epochs.end_of(epoch, self.log_end_offset)

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The leader epoch under which `offset` was written; NO_LEADER_EPOCH if unknown."""
        return self.epochs.at(offset)

    @property
    def size_bytes(self) -> int:
        """Of all segments, without indexes."""
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments.all)

    # --- reading --------------------------------------------------------------------------------

    def plan_read(
        self, start_offset: Offset, *, bytes_max: int, end_offset: Offset, verify: bool = False
    ) -> ReadPlan:
        """Plan to read whole batches from the one that holds `start_offset`, at least one.

        No batch that reaches past `end_offset` (exclusive) is included. A plan that `is_hot` must
        run at once. With `verify` what a file gives is read in the pool and its CRCs are checked: a
        wrong one takes the directory offline (R11). Raises OffsetOutOfRange.
        """
        if not self.log_start_offset <= start_offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"offset {start_offset} of {self} is not in"
                f" [{self.log_start_offset}, {self.log_end_offset}]"
            )
        end_offset = min(end_offset, self.log_end_offset)
        if self.damage is not None:
            end_offset = self._before_damage(start_offset, end_offset)
        result = read_tail(self._tail, start_offset, bytes_max, end_offset)
        segments: list[Segment] = []
        if result is None:
            if start_offset >= end_offset:
                result = ReadResult((), start_offset, start_offset, 0)
            else:
                segments = self._segments.since(start_offset)
                self._segments.use(segments[0], may_drop=self._progress.may_drop)
        plan = (segments, start_offset, bytes_max, end_offset, verify, result)
        return ReadPlan(self._storage, self._health, *plan)

    def _before_damage(self, start_offset: Offset, end_offset: Offset) -> Offset:
        assert self.damage is not None, self.id
        first, after = self.damage
        if first <= start_offset < after:
            raise LogDamaged(
                f"{self.directory}: the batch with the offsets {first} to {after - 1} is damaged, and no"
                f" other replica in sync has it; records from offset {after} on can be read",
                self.damage,
            )
        return min(end_offset, Offset(first)) if start_offset < first else end_offset

    def read(self, start_offset: Offset, *, bytes_max: int, end_offset: Offset) -> ReadResult:
        """Plan and run here, cold or not."""
        return self.plan_read(start_offset, bytes_max=bytes_max, end_offset=end_offset).run()

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after it, with its own time (pool: waits). Raises StorageFailed."""
        return find_timestamp(
            self._storage, self._health, self._segments, timestamp_ms, self.log_start_offset
        )

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The record with the greatest timestamp (pool: may wait). Raises StorageFailed."""
        return find_greatest(self._storage, self._health, self._segments, self.log_start_offset)

    def aborted_transactions(
        self, start_offset: Offset, end_offset: Offset
    ) -> list[AbortedTransaction]:
        """Aborted transactions that overlap [start_offset, end_offset), in the order of markers."""
        return self._segments.aborted_transactions(start_offset, end_offset)
