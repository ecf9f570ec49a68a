"""One partition's log: segments on disk, and what is known of them in memory.

    log start offset <= last stable offset <= high watermark <= log end offset
                                              durable end    <= log end offset
                                              recovery point <= durable end

The owner (the partition's host, on the event loop) calls everything; nothing here takes a lock.
Appends are one write(2) into the page cache. What may wait for the disk comes in two halves:
`begin_*` decides on the loop and returns a job, `job.run()` does the waiting in a pool thread, and
`finish(job)` applies the result on the loop. `plan_read` likewise.

Invariants: a batch is noted in memory only after its bytes were written. Each segment begins where
the one before ends, also where compaction left gaps between batches, so that a hole left by a power
cut is seen. The durable end moves only when a sync that began after those bytes were written has
ended without an error; the recovery point moves only when indexes, epochs and a producer snapshot
up to it were written as well. After a failed write or sync every mutation raises StorageFailed.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from odradek_broker.log.index.transaction_index import AbortedTransaction
from odradek_broker.log.leader_epochs import LeaderEpochs
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_jobs import ResetJob, Snapshot, StorageJob, SyncJob, TruncateJob
from odradek_broker.log.log_reads import OffsetOutOfRange, ReadPlan, ReadResult, read_tail
from odradek_broker.log.log_times import TimestampOffset, find_greatest, find_timestamp
from odradek_broker.log.producers.producer_state import ProducerStates
from odradek_broker.log.producers.replay import fold_batch
from odradek_broker.log.retention import expired_segments
from odradek_broker.log.segments.batch_walk import Header, header_at
from odradek_broker.log.segments.recent_appends import RecentAppends, Tail
from odradek_broker.log.segments.segment import Segment
from odradek_broker.log.storage import DirectoryHealth, Storage
from odradek_protocol.identity import (
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from odradek_protocol.records.batch_header import ByteBuffer

__all__ = ["AppendInfo", "OffsetOutOfRange", "PartitionLog", "ReadPlan", "ReadResult", "StorageJob"]

CLOSED_SEGMENTS_OPEN_MAX = 3  # with the active one's: at most 4 descriptors a partition
SNAPSHOTS_BETWEEN_ROLLS_MAX = 2


class AppendInfo(NamedTuple):
    """What one append did; `end_offset` is the log end offset after it."""

    base_offset: Offset
    end_offset: Offset
    max_timestamp_ms: int
    size_bytes: int


class LoadedLog(NamedTuple):
    """What opening a partition's directory found: how a `PartitionLog` begins."""

    segments: list[Segment]
    epochs: LeaderEpochs
    producers: ProducerStates
    snapshot_offsets: list[Offset]
    log_start_offset: Offset
    high_watermark: Offset
    recovery_point: Offset
    recovery_position: int  # in the last segment


class PartitionLog:
    """The log of one partition of one broker."""

    __slots__ = (
        "_active",
        "_bases",
        "_closed_dirty",
        "_cut_under_way",
        "_deleted",
        "_directory_dirty",
        "_epochs_written",
        "_full_wanted",
        "_generation",
        "_health",
        "_is_new",
        "_jobs_lock",
        "_lower_recovery_point",
        "_open_closed",
        "_recent",
        "_recovery_mark",
        "_roll_snapshots",
        "_segments",
        "_snapshot_offsets",
        "_storage",
        "_sync_under_way",
        "_tail",
        "_unsynced_closed",
        "config",
        "directory",
        "durable_end_offset",
        "epochs",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "on_sync_finished",
        "partition",
        "producers",
        "recovery_point",
        "topic",
        "topic_id",
        "unsynced_since_ms",
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
        config: LogConfig,
        loaded: LoadedLog,
        lower_recovery_point: Callable[[TopicIdPartition, Offset], None],
        is_new: bool,
    ) -> None:
        self._storage = storage
        self._health = health
        self._recent = recent
        self._lower_recovery_point = lower_recovery_point
        self.directory = directory
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.config = config  # set it to change the settings at run time
        self._segments = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        self._active = loaded.segments[-1]
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self._snapshot_offsets = loaded.snapshot_offsets
        end = Offset(self._active.end_offset)
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = end
        self.durable_end_offset = min(loaded.recovery_point, end)
        self.recovery_point = self.durable_end_offset
        self.high_watermark = loaded.high_watermark
        self._tail: Tail = {}
        self._open_closed: list[Segment] = []
        self._deleted: list[tuple[int, Segment]] = []
        self._unsynced_closed = [
            s for s in loaded.segments[:-1] if s.end_offset > self.recovery_point
        ]
        self._closed_dirty = list(self._unsynced_closed)
        self._roll_snapshots: list[Snapshot] = []
        self._epochs_written = -1 if self.epochs.changes else 0
        self._is_new = is_new
        self._directory_dirty = True
        self._generation = 0
        self.on_sync_finished: Callable[[PartitionLog], None] | None = None
        self._jobs_lock = threading.Lock()
        self._sync_under_way = False
        self._full_wanted = False
        self._cut_under_way = False
        self._recovery_mark = (self._active, loaded.recovery_position)
        self.unsynced_since_ms: int | None = 0 if end > self.durable_end_offset else None

    @property
    def id(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)

    # --- writing --------------------------------------------------------------------------------

    def append(self, batches: ByteBuffer, *, now_ms: int, retain: bool = True) -> AppendInfo:
        """Write whole, stamped, validated batches at the end; synchronous write(2), no sync.

        For leader (batches stamped with `log_end_offset` and its epoch) and follower alike: offsets
        rise from `log_end_offset` on (compaction leaves gaps), epochs never fall. The buffer
        belongs to the log afterwards: it is kept for readers of the tail unless `retain` is false,
        so nobody may change it. Rolls segments, enters new leader epochs, notes producers and
        transactions. Raises StorageFailed; then nothing of it counts as written. CorruptBatch, and
        nothing is written, if the bytes are no whole batches.
        """
        self._health.check()
        assert not self._cut_under_way, self.id
        size = len(batches)
        headers: list[Header] = []
        position = 0
        next_offset: int = self.log_end_offset
        while position < size:
            header = header_at(batches, position)
            assert header.base_offset >= next_offset, (header, next_offset)
            headers.append(header)
            position += header.size_bytes
            next_offset = header.base_offset + header.last_offset_delta + 1
        assert headers, size
        assert position == size, (position, size)
        base_offset = Offset(headers[0].base_offset)
        view: ByteBuffer = batches if len(headers) == 1 else memoryview(batches)
        try:
            self._append_runs(view, headers, now_ms)
        except OSError as error:
            raise self._health.fail(f"writing {self.directory}", error) from error
        if self.unsynced_since_ms is None:
            self.unsynced_since_ms = now_ms
        if retain:
            kept = batches if isinstance(batches, bytes) else memoryview(batches).toreadonly()
            self._recent.keep(self._tail, base_offset, self.log_end_offset, kept)
        elif self._tail:
            self._recent.forget(self._tail)
        newest_ms = headers[0].max_timestamp_ms
        if len(headers) > 1:
            newest_ms = max(header.max_timestamp_ms for header in headers)
        return AppendInfo(base_offset, self.log_end_offset, newest_ms, size)

    def _append_runs(self, data: ByteBuffer, headers: list[Header], now_ms: int) -> None:
        """Write the batches in runs that each go into one segment."""
        config = self.config
        run: list[Header] = []
        run_start = run_bytes = 0
        for header in headers:
            active = self._active
            more_bytes = run_bytes + header.size_bytes
            fits = active.has_room(
                pending_bytes=more_bytes,
                last_offset=header.base_offset + header.last_offset_delta,
                segment_bytes=config.segment_bytes,
                index_bytes=config.segment_index_bytes,
            )
            first_ms = active.first_timestamp_ms
            if run and not active.size_bytes:
                first_ms = run[0].max_timestamp_ms
            is_old = 0 <= first_ms < header.max_timestamp_ms - config.segment_ms
            if (not fits or is_old) and (active.size_bytes or run):
                self._write_run(data, run, run_start, run_bytes)
                self.roll()
                run_start += run_bytes
                run, run_bytes = [], 0
            run.append(header)
            run_bytes += header.size_bytes
        self._write_run(data, run, run_start, run_bytes)

    def _write_run(self, data: ByteBuffer, run: list[Header], start: int, size_bytes: int) -> None:
        if not run:
            return
        whole = size_bytes == len(data)
        active = self._active
        active.write(data if whole else data[start : start + size_bytes])
        interval_bytes = self.config.index_interval_bytes
        for header in run:
            active.note(header, interval_bytes)
            if header.leader_epoch > self.epochs.last:
                self.epochs.enter(LeaderEpoch(header.leader_epoch), Offset(header.base_offset))
            if header.producer_id >= 0:
                batch = partial(_slice, data, start, start + header.size_bytes)
                aborted = fold_batch(self.producers, header, batch)
                if aborted is not None:
                    active.note_aborted(aborted)
            start += header.size_bytes
            self.log_end_offset = Offset(header.base_offset + header.last_offset_delta + 1)

    def roll(self) -> None:
        """Close the active segment, which has batches, and begin the next. Raises OSError."""
        old = self._active
        old.seal()
        base_offset = Offset(old.end_offset)
        segment = Segment(self._storage, self.directory, base_offset)
        segment.create()
        self._directory_dirty = True
        self._unsynced_closed.append(old)
        self._closed_dirty.append(old)
        self._roll_snapshots.append((base_offset, self.producers.entries()))
        self._segments = [*self._segments, segment]  # readers in threads keep the old list
        self._bases.append(base_offset)
        self._active = segment
        self._use(old)

    def assign_epoch(self, epoch: LeaderEpoch) -> None:
        """Enter (epoch, log end offset) in the epoch cache: this replica begins to lead (R1)."""
        if epoch > self.epochs.last:
            self.epochs.enter(epoch, self.log_end_offset)

    # --- durability -----------------------------------------------------------------------------

    def begin_sync(self, *, full: bool = False) -> SyncJob | None:
        """A job that makes all bytes up to the present log end durable.

        None if nothing is unsynced, or if a sync is under way: its `finish` is the moment to begin
        the next (group commit without a timer; `on_sync_finished` tells of it, whoever had begun
        the sync). `full` also writes indexes, epochs and producer
        snapshot and moves the recovery point; wished for during a sync, it is granted to the next.
        """
        self._health.check()
        end = self.log_end_offset
        if self._sync_under_way or self._cut_under_way:
            self._full_wanted |= full
            return None
        full |= self._full_wanted
        has_new = end > self.durable_end_offset or bool(self._unsynced_closed)
        if not has_new and not (full and self._has_companions_to_write()):
            return None
        unsynced = [*self._unsynced_closed, *([self._active] if self._active.size_bytes else [])]
        try:
            files = [segment.file().duplicate() for segment in unsynced]
        except OSError as error:
            raise self._health.fail(f"opening segments of {self.directory}", error) from error
        job = SyncJob(
            storage=self._storage,
            directory=self.directory,
            lock=self._jobs_lock,
            is_current=self._currency(),
            end_offset=end,
            size_bytes=self._active.size_bytes,
            files=files,
            sync_directory=self._directory_dirty or full,
            is_new=self._is_new,
            full=full,
            closed=list(self._closed_dirty) if full else [],
        )
        if full:
            self._add_companions(job)
        self._sync_under_way = True
        self._full_wanted = False
        self._directory_dirty = False
        return job

    def _currency(self) -> Callable[[], bool]:
        """Whether the log was not cut since now."""
        generation = self._generation
        return lambda: self._generation == generation

    def _has_companions_to_write(self) -> bool:
        return (
            self.recovery_point < self.stored_end_offset
            or self._snapshot_offsets[-1:] != [self.stored_end_offset]
            or self.epochs.changes != self._epochs_written
            or bool(self._closed_dirty)
        )

    def _add_companions(self, job: SyncJob) -> None:
        """Everything that a restart needs to begin where the last batch ends now."""
        job.active = self._active
        job.recovery_point = self.stored_end_offset
        job.epochs_changes = self.epochs.changes
        if self.epochs.changes != self._epochs_written:
            job.epochs_text = self.epochs.to_text()
        job.snapshots = [*self._roll_snapshots, (job.recovery_point, self.producers.entries())]
        at_rolls = set(self._bases)
        between = [o for o in self._snapshot_offsets if o not in at_rolls and o != job.recovery_point]
        job.stale_snapshots = between[: -SNAPSHOTS_BETWEEN_ROLLS_MAX + 1]

    def finish(self, job: StorageJob) -> None:
        """Apply a job that ran. Raises StorageFailed if it failed, and nothing is applied then."""
        if isinstance(job, SyncJob):
            self._sync_under_way = False
        else:
            self._cut_under_way = False
        if job.error is not None:
            raise self._health.fail(f"syncing {self.directory}", job.error) from job.error
        if isinstance(job, SyncJob):
            if job.is_current():
                self._synced(job)
            if self.on_sync_finished is not None:
                self.on_sync_finished(self)
        elif isinstance(job, TruncateJob):
            self._truncated(job)
        elif isinstance(job, ResetJob):
            self._was_reset(job)

    def _synced(self, job: SyncJob) -> None:
        self._is_new = False
        self.durable_end_offset = max(self.durable_end_offset, job.end_offset)
        self._unsynced_closed = [s for s in self._unsynced_closed if s.end_offset > job.end_offset]
        if self.durable_end_offset == self.log_end_offset:
            self.unsynced_since_ms = None
        if not job.full:
            return
        self.recovery_point = max(self.recovery_point, job.recovery_point)
        assert job.active is not None
        self._recovery_mark = (job.active, job.size_bytes)
        self._closed_dirty = [s for s in self._closed_dirty if s not in job.closed]
        self._epochs_written = job.epochs_changes
        written = {offset for offset, _ in job.snapshots}
        self._roll_snapshots = [s for s in self._roll_snapshots if s[0] not in written]
        left = set(self._snapshot_offsets) - set(job.stale_snapshots)
        self._snapshot_offsets = sorted(left | written)

    # --- cutting --------------------------------------------------------------------------------

    def begin_truncate(self, offset: Offset) -> StorageJob:
        """Cut everything at and above `offset`, epochs and producer state too, synced (R4).

        No append until `finish`. A batch that `offset` would divide goes as a whole. Cutting at
        the log end offset forgets epochs without data. Below the first segment: a reset to it.
        """
        self._health.check()
        assert not self._cut_under_way, self.id
        if offset < self._bases[0]:
            return self.begin_reset(offset)
        self._cut_under_way = True
        self._generation += 1
        return TruncateJob(
            storage=self._storage,
            directory=self.directory,
            lock=self._jobs_lock,
            is_current=self._currency(),
            offset=min(offset, self.log_end_offset),
            segments=list(self._segments),
            epochs=LeaderEpochs.from_entries(self.epochs.entries()),
            lower_recovery_point=lambda offset: self._lower_recovery_point(self.id, offset),
        )

    def truncate_to(self, offset: Offset) -> None:
        """Truncate and wait for the disk here."""
        job = self.begin_truncate(offset)
        job.run()
        self.finish(job)

    def _truncated(self, job: TruncateJob) -> None:
        active = job.active
        assert active is not None
        old = self._segments
        self._segments = [s for s in old if s.base_offset < active.base_offset] + [active]
        self._release([s for s in old if s not in self._segments])
        self._install(job.end_offset, job.epochs, job.producers, job.snapshots)
        self.log_start_offset = min(self.log_start_offset, job.end_offset)

    def begin_reset(self, start_offset: Offset) -> StorageJob:
        """Drop the whole log and start again, empty, at `start_offset` (Snapshotless)."""
        self._health.check()
        assert not self._cut_under_way, self.id
        self._cut_under_way = True
        self._generation += 1
        return ResetJob(
            storage=self._storage,
            directory=self.directory,
            lock=self._jobs_lock,
            is_current=self._currency(),
            start_offset=start_offset,
            segments=list(self._segments),
            lower_recovery_point=lambda offset: self._lower_recovery_point(self.id, offset),
        )

    def reset_to(self, start_offset: Offset) -> None:
        """Reset and wait for the disk here."""
        job = self.begin_reset(start_offset)
        job.run()
        self.finish(job)

    def _was_reset(self, job: ResetJob) -> None:
        assert job.active is not None
        old, self._segments = self._segments, [job.active]
        self._release(old)
        self._install(job.start_offset, LeaderEpochs(), ProducerStates(), [])
        self.log_start_offset = job.start_offset
        self.high_watermark = job.start_offset
        self.recovery_point = self.durable_end_offset = job.start_offset

    def _install(
        self,
        end_offset: Offset,
        epochs: LeaderEpochs,
        producers: ProducerStates,
        snapshot_offsets: list[Offset],
    ) -> None:
        """The log ends at `end_offset` now; all below that was written before is as it was."""
        self._active = self._segments[-1]
        self._bases = [segment.base_offset for segment in self._segments]
        alive = set(self._bases)
        self._unsynced_closed = [s for s in self._unsynced_closed if s in self._segments]
        self._closed_dirty = [s for s in self._closed_dirty if s in self._segments]
        self._roll_snapshots = [s for s in self._roll_snapshots if s[0] in alive]
        self._recent.forget(self._tail)
        self.epochs = epochs
        self._epochs_written = epochs.changes
        self.producers = producers
        self._snapshot_offsets = snapshot_offsets
        self.log_end_offset = end_offset
        self.high_watermark = min(self.high_watermark, end_offset)
        self.durable_end_offset = min(self.durable_end_offset, end_offset)
        self.recovery_point = min(self.recovery_point, self.stored_end_offset)
        self._recovery_mark = (self._active, 0)
        if not self._unsynced_closed and self.durable_end_offset == end_offset:
            self.unsynced_since_ms = None

    def _release(self, segments: list[Segment]) -> None:
        for segment in segments:
            segment.is_retired = True
            segment.close()
            if segment in self._open_closed:
                self._open_closed.remove(segment)

    # --- offsets --------------------------------------------------------------------------------

    def set_high_watermark(self, offset: Offset) -> None:
        """Told by the replica whenever it moves; bounds retention and the last stable offset."""
        assert offset <= self.log_end_offset, (offset, self.log_end_offset)
        self.high_watermark = offset

    @property
    def last_stable_offset(self) -> Offset:
        """The first offset of the oldest transaction that is open, or was closed by a marker not
        below the high watermark yet; without one, the high watermark."""
        first = self.producers.first_unstable_offset(self.high_watermark)
        return self.high_watermark if first is None else min(first, self.high_watermark)

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The latest entry of the epoch cache; NO_LEADER_EPOCH if there is none."""
        return self.epochs.last

    def epoch_end(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest known epoch <= `epoch` and its end offset (R3).

        Without any entry: (NO_LEADER_EPOCH, NO_OFFSET). Below the first entry: (epoch, the first
        entry's start), as Kafka answers OffsetsForLeaderEpoch.
        """
        return self.epochs.end_of(epoch, self.log_end_offset)

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The leader epoch under which `offset` was written; NO_LEADER_EPOCH if unknown."""
        return self.epochs.at(offset)

    def advance_log_start(self, offset: Offset) -> None:
        """DeleteRecords, or what a leader told. Never falls; above the log end, reset instead.

        The next checkpoint remembers it; segments wholly below it go with the next retention.
        """
        assert offset <= self.log_end_offset, (offset, self.log_end_offset)
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.high_watermark = max(self.high_watermark, offset)
            self.epochs.cut_start(offset)

    @property
    def size_bytes(self) -> int:
        """Of all segments, without indexes."""
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def stored_end_offset(self) -> Offset:
        """Where the last batch ends: what a restart finds as the log end. The log end offset lies
        past it when the log was cut inside a gap that compaction had left."""
        return Offset(self._active.end_offset)

    @property
    def unsynced_bytes(self) -> int:
        """At most so many bytes would be scanned if the process died now."""
        segment, position = self._recovery_mark
        done = position if segment is self._active else 0
        return self._active.size_bytes - done + sum(s.size_bytes for s in self._closed_dirty)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    # --- reading --------------------------------------------------------------------------------

    def plan_read(self, start_offset: Offset, *, bytes_max: int, end_offset: Offset) -> ReadPlan:
        """Plan to read whole batches from the one that holds `start_offset`, at least one.

        No batch that reaches past `end_offset` (exclusive) is included. A plan that `is_hot` must
        run at once. Raises OffsetOutOfRange.
        """
        if not self.log_start_offset <= start_offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"offset {start_offset} of {self.topic}-{self.partition} is not in"
                f" [{self.log_start_offset}, {self.log_end_offset}]"
            )
        end_offset = min(end_offset, self.log_end_offset)
        result = read_tail(self._tail, start_offset, bytes_max, end_offset)
        segments: list[Segment] = []
        if result is None:
            if start_offset >= end_offset:
                result = ReadResult((), start_offset, start_offset, 0)
            else:
                number = max(bisect_right(self._bases, start_offset) - 1, 0)
                segments = self._segments[number:]
                self._use(segments[0])
        return ReadPlan(
            self._storage, self._health, segments, start_offset, bytes_max, end_offset, result
        )

    def read(self, start_offset: Offset, *, bytes_max: int, end_offset: Offset) -> ReadResult:
        """Plan and run here, cold or not."""
        return self.plan_read(start_offset, bytes_max=bytes_max, end_offset=end_offset).run()

    def _use(self, segment: Segment) -> None:
        """A closed segment is wanted: close the one that was not for the longest time."""
        if segment is self._active:
            return
        if segment in self._open_closed:
            self._open_closed.remove(segment)
        self._open_closed.append(segment)
        while len(self._open_closed) > CLOSED_SEGMENTS_OPEN_MAX:
            oldest = self._open_closed.pop(0)
            oldest.close()
            if oldest not in self._closed_dirty:
                oldest.drop_indexes()

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after `timestamp_ms`, with its own timestamp (pool: may wait)."""
        return find_timestamp(self._storage, self._segments, timestamp_ms, self.log_start_offset)

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The record with the greatest timestamp (pool: may wait)."""
        return find_greatest(self._storage, self._segments, self.log_start_offset)

    def aborted_transactions(
        self, start_offset: Offset, end_offset: Offset
    ) -> list[AbortedTransaction]:
        """Aborted transactions that overlap [start_offset, end_offset), in the order of markers."""
        number = max(bisect_right(self._bases, start_offset) - 1, 0)
        found: list[AbortedTransaction] = []
        for segment in self._segments[number:]:
            for entry in segment.aborted():
                if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                    found.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return found
        return found

    # --- space ----------------------------------------------------------------------------------

    def apply_retention(self, *, now_ms: int) -> int:
        """Take segments out by age, size and log start offset; returns how many. No waiting.

        Their files are renamed, and removed later by whoever runs `take_deleted`.
        """
        self._health.check()
        if self._cut_under_way:
            return 0
        count, roll_first = expired_segments(
            self._segments,
            self.config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
        )
        try:
            if roll_first:
                self.roll()
            gone = self._segments[:count]
            for segment in gone:
                self.retire(segment, now_ms=now_ms)
        except OSError as error:
            raise self._health.fail(f"deleting segments of {self.directory}", error) from error
        if gone:
            self._forget(gone)
            self.advance_log_start(Offset(max(self._bases[0], self.log_start_offset)))
        return len(gone)

    def retire(self, segment: Segment, *, now_ms: int) -> None:
        """Rename a segment's files out of the way, to be removed later. Raises OSError."""
        segment.is_retired = True
        segment.rename_files(".deleted")
        self._deleted.append((now_ms + self.config.file_delete_delay_ms, segment))

    def _forget(self, gone: list[Segment]) -> None:
        self._segments = [s for s in self._segments if s not in gone]
        self._bases = [s.base_offset for s in self._segments]
        self._release(gone)
        self._unsynced_closed = [s for s in self._unsynced_closed if s not in gone]
        self._closed_dirty = [s for s in self._closed_dirty if s not in gone]

    def take_deleted(self, *, now_ms: int) -> list[Segment]:
        """Retired segments whose time has come: `remove_files` of each, in the pool."""
        due = [segment for at_ms, segment in self._deleted if at_ms <= now_ms]
        self._deleted = [entry for entry in self._deleted if entry[0] > now_ms]
        return due

    def retire_all(self) -> None:
        """The partition was deleted: nothing is written for it any more."""
        self._generation += 1
        self._cut_under_way = True
        self._release(self._segments)
        self._recent.forget(self._tail)

    def close(self) -> None:
        """Give back all descriptors; no use afterwards."""
        for segment in self._segments:
            segment.close()
        self._recent.forget(self._tail)


def _slice(data: ByteBuffer, start: int, end: int) -> ByteBuffer:
    return data[start:end]
