"""One partition's log: its segments on disk, and its offsets, leader epochs and producer states in memory.

    log start offset <= last stable offset <= high watermark <= log end offset
                                              durable end    <= log end offset
                                              recovery point <= durable end

The owner (the partition's host, on the event loop) calls all methods, and no method takes a lock. An append is one
write(2) into the page cache. An operation that may wait for the disk has three steps: a method `begin_*` decides on the
event loop and returns a job, `job.run()` waits for the disk on a disk thread, and `finish(job)` applies the result on
the event loop.

Invariants: a batch is recorded in memory only after its bytes were written. Each segment begins at the end offset of
the previous one, even if compaction left gaps between batches, so that recovery detects bytes that a power loss has
removed. The durable end passes a batch only when a sync that began after the batch was written has succeeded; the
recovery point moves only when indexes, epochs and a producer snapshot up to it were written as well. After a failed
write or sync every change raises StorageFailed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from odradek_broker.compiled import Value
from odradek_broker.leader_epochs import LeaderEpochs
from odradek_broker.log.compaction import CompactJob, begin_compaction
from odradek_broker.log.directory.partition_files import write_damage_mark, write_log_start
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_jobs import ResetJob, StorageJob, SyncJob, TruncateJob
from odradek_broker.log.log_reads import (
    OffsetOutOfRange,
    ReadPlan,
    ReadResult,
    RecentAppends,
    Tail,
    end_before_damage,
    read_tail,
)
from odradek_broker.log.log_times import TimestampOffset, find_greatest, find_timestamp
from odradek_broker.log.producer_state import fold_batch, part
from odradek_broker.log.recovery import LoadedLog
from odradek_broker.log.segments.batch_walk import Header, headers_of
from odradek_broker.log.segments.indexes import AbortedTransaction
from odradek_broker.log.segments.segment import Segment
from odradek_broker.log.segments.segment_list import SegmentList, expired_segments
from odradek_broker.log.storage import (
    DirectoryHealth,
    ErrorClass,
    Storage,
    StorageRefused,
    error_class,
)
from odradek_broker.log.sync_progress import SyncProgress, UpkeepDue
from odradek_protocol.identity import LeaderEpoch, Offset, TopicIdPartition, TopicName
from odradek_protocol.records.batch_header import LENGTH_PREFIX_BYTES, ByteBuffer


class AppendInfo(Value, frozen=True):
    """The result of one append. `end_offset` is the log end offset after the append."""

    base_offset: Offset
    end_offset: Offset
    max_timestamp_ms: int
    size_bytes: int


class PartitionLog:
    """One partition's log. Its owner may set `config` and `is_trusted`, and only reads all other attributes."""

    __slots__ = (
        "_directory",
        "_generation",
        "_health",
        "_is_truncating",
        "_jobs_lock",
        "_lower_checkpoints",
        "_progress",
        "_recent",
        "_segments",
        "_storage",
        "_tail",
        "cleaned_offset",
        "config",
        "cut_limits",
        "damage",
        "epochs",
        "high_watermark",
        "id",
        "is_intact",
        "is_trusted",
        "key",
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
        id_: TopicIdPartition,
        config: LogConfig,
        loaded: LoadedLog,
        lower_checkpoints: Callable[[TopicIdPartition, Offset, Offset | None], None],
        is_new: bool,
        due: UpkeepDue,
        cleaned_offset: Offset = Offset(0),
    ) -> None:
        self._storage, self._health, self._recent = storage, health, recent
        self._tail: Tail = {}
        # The first offset of a damaged batch, and its last offset + 1.
        self.damage: tuple[int, int] | None = None
        self._segments = SegmentList(loaded.segments, storage.open_files)
        self.id = id_
        self._progress = SyncProgress(self._segments, loaded, self.id, due, is_new=is_new)
        self.topic_id, self.partition = self.key = (id_.topic_id, id_.partition)
        self._directory = str(directory)
        self.topic = topic
        self.epochs, self.producers = loaded.epochs, loaded.producers
        self.log_start_offset, self.high_watermark = loaded.log_start_offset, loaded.high_watermark
        self.log_end_offset = Offset(self._segments.active.end_offset)
        self._lower_checkpoints = lower_checkpoints
        self._jobs_lock: threading.Lock | None = None  # lets only one job of this log run at a time
        self._generation = 0  # a truncation raises this: older jobs are then stale
        self._is_truncating = False
        self.cut_limits: tuple[Offset, Offset] | None = None
        """Upper bounds of recovery point and log start in checkpoints that are written during a truncation."""
        self.config = config
        # The log is compacted below this offset.
        self.cleaned_offset = min(cleaned_offset, self.log_end_offset)
        self.is_intact = True  # false: a truncation failed half-way; the log must be reopened
        self.is_trusted = True  # false after an internal error: no clean marker is written

    def append(self, batches: ByteBuffer, *, now_ms: int, retain: bool = True) -> AppendInfo:
        """Write complete, validated batches with their final offsets at the end of the log: write(2) without a sync.

        A leader sets the offsets, from `log_end_offset` on, and its epoch before the call; a follower passes the
        batches as received. Offsets must rise (compaction leaves gaps), and epochs must not fall. The buffer must not
        change afterwards, because readers of the tail get it, unless `retain` is false. The append may begin a new
        segment, and records epochs, producers and transactions. After StorageFailed the batches do not count as
        appended; after StorageRefused the files are unchanged as well, if `is_intact` is true. Raises CorruptBatch,
        before any write, if a batch is invalid."""
        self._health.check_room()
        assert not self._is_truncating, self.id
        headers, newest_ms = headers_of(batches, self.log_end_offset)
        base_offset = Offset(headers[0].base_offset)
        end_before = self.log_end_offset
        active, size_bytes = self._segments.active, len(batches)
        try:
            if active.has_room_for_all(headers, size_bytes, newest_ms, self.config):
                self._write_run(batches, headers, 0, size_bytes)
            else:
                self._append_runs(batches, headers)
        except OSError as error:
            failure = self._health.fail_to_write(f"writing {self.directory}", error)
            if isinstance(failure, StorageRefused):
                self._undo_append(end_before)
            raise failure from error
        if self._progress.since_ms is None:
            self._progress.begin_age(now_ms)
        if retain:
            self._recent.keep(self._tail, base_offset, self.log_end_offset, batches)
        elif self._tail:
            self._recent.forget(self._tail)
        return AppendInfo(base_offset, self.log_end_offset, newest_ms, len(batches))

    def _undo_append(self, end_before: Offset) -> None:
        """Remove what a refused append has written to the files."""
        self.is_intact = False
        with self._health.writing(f"undoing a failed append in {self.directory}"):
            self._segments.active.undo_write()
        if self.log_end_offset > end_before:  # the append had begun a second segment
            self.truncate_to(end_before)
        self.is_intact = True

    def _append_runs(self, data: ByteBuffer, headers: list[Header]) -> None:
        """Write the batches in runs: one write for the batches that go into the same segment."""
        if len(headers) > 1:
            data = memoryview(data)
        run: list[Header] = []
        run_start = run_bytes = 0
        for header in headers:
            active = self._segments.active
            first_ms = run[0].max_timestamp_ms if run else -1
            if not active.has_room(header, run_bytes, first_ms, self.config) and (
                active.size_bytes or run
            ):
                self._write_run(data, run, run_start, run_bytes)
                self._roll()
                run_start += run_bytes
                run, run_bytes = [], 0
            run.append(header)
            run_bytes += header.size_bytes
        self._write_run(data, run, run_start, run_bytes)

    def _write_run(self, data: ByteBuffer, run: list[Header], start: int, size_bytes: int) -> None:
        if not run:
            return
        active = self._segments.active
        active.write(data if size_bytes == len(data) else data[start : start + size_bytes])
        interval_bytes, epoch = self.config.index_interval_bytes, self.epochs.latest
        for header in run:
            active.note(header, interval_bytes)
            if header.leader_epoch > epoch:
                epoch = LeaderEpoch(header.leader_epoch)
                self.epochs.enter(epoch, Offset(header.base_offset))
            end = start + LENGTH_PREFIX_BYTES + header.batch_length
            if header.producer_id >= 0:
                aborted = fold_batch(self.producers, header, partial(part, data, start, end))
                if aborted is not None:
                    active.note_aborted(aborted)
            start = end
        self.log_end_offset = Offset(active.end_offset)

    def _roll(self) -> None:
        """Close the active segment, which must not be empty, and begin the next one. Raises OSError."""
        old = self._segments.begin_next(self._storage, self.directory)
        self._progress.rolled(old, self.producers)
        self._segments.use(old, may_drop=self._progress.may_drop)

    def assign_epoch(self, epoch: LeaderEpoch) -> None:
        """Add (epoch, log end offset) to the leader epochs when this replica becomes the leader."""
        if epoch > self.epochs.latest:
            self.epochs.enter(epoch, self.log_end_offset)

    def begin_sync(self, *, full: bool = False) -> SyncJob | None:
        """Return a job that makes all bytes up to the current log end durable.

        Return None if nothing is unsynced, or if a sync is running; in the second case the caller begins the next sync
        after `finish` (group commit without a timer). A `full` sync also writes indexes, epochs and a producer
        snapshot, and moves the recovery point. If a full sync is requested while a sync runs, the next sync is a full
        one."""
        self._health.check()
        progress = self._progress
        if progress.is_under_way or self._is_truncating:
            progress.is_full_wanted |= full
            return None
        full |= progress.is_full_wanted
        segments = progress.unsynced_segments(self.log_end_offset)
        if not segments and not (full and progress.lacks_companions(self.epochs)):
            return None
        try:
            files = [segment.handle() for segment in segments]
        except OSError as error:
            raise self._health.fail_to_write(f"syncing {self.directory}", error) from error
        job = SyncJob(
            **self._job_basics(),
            end_offset=self.log_end_offset,
            size_bytes=self._segments.active.size_bytes,
            files=files,
            covered=[(segment, segment.size_bytes) for segment in segments],
            sync_directory=progress.is_directory_dirty,
            directory_changes=progress.directory_changes,
            is_new=progress.is_new,
        )
        if full:
            progress.add_companions(job, self.epochs, self.producers)
        progress.is_under_way, progress.is_full_wanted = True, False
        return job

    def finish(self, job: StorageJob) -> None:
        """Apply the result of a job that has run. If the job failed, raise its error and change no offset."""
        if isinstance(job, SyncJob):
            self._finish(job)
            return
        self._is_truncating = False
        self._finish(job)
        # The limits are removed last: a thread that collects the offsets for a checkpoint must not read offsets from
        # before the truncation without limits.
        self.cut_limits = None

    def _finish(self, job: StorageJob) -> None:
        is_sync = isinstance(job, SyncJob)
        if is_sync:
            self._progress.is_under_way = False
        is_void = job.error is not None or not job.is_current()
        if is_void and isinstance(job, TruncateJob | ResetJob) and job.active is not None:
            job.active.close()
        if job.error is not None:
            if not isinstance(job.error, OSError):
                raise job.error
            if isinstance(job, SyncJob):
                self._progress.was_refused(job)
            self.is_intact &= is_sync  # a failed truncation may be half done
            operation = f"{job.operation} {self.directory}"
            raise self._health.fail_to_write(operation, job.error) from job.error
        if isinstance(job, SyncJob):
            if job.refused is not None:  # only the indexes failed; the batches are durable
                self._health.fail_to_write(f"writing indexes in {self.directory}", job.refused)
            if job.is_current():
                self._progress.synced(job)
        elif not job.is_current():
            return  # the partition was deleted while the job ran
        elif isinstance(job, TruncateJob | ResetJob):
            self._was_cut(job)

    def sync_at_close(self) -> bool:
        """Run a full sync in this thread; a sync job that was begun is ignored, and must not be finished. Return False
        if the log is not completely synced, because the disk is full, the log is being truncated, or an internal error
        occurred."""
        if self._is_truncating or not self.is_trusted:
            return False
        self._progress.is_under_way = False
        job = self.begin_sync(full=True)
        if job is not None:
            self._run_here(job)
        return self.is_intact and (job is None or job.full)

    def _job_basics(self) -> dict[str, Any]:
        """Return the fields that every job has. A job is current until the log is truncated, reset or deleted."""
        generation = self._generation
        self._jobs_lock = self._jobs_lock or threading.Lock()
        return {
            "storage": self._storage,
            "directory": self.directory,
            "lock": self._jobs_lock,
            "is_current": lambda: self._generation == generation,
        }

    def begin_truncate(self, offset: Offset) -> StorageJob:
        """Return a job that truncates the log, its leader epochs and its producer states to `offset`, and syncs them.

        No append is allowed until `finish`. A batch that contains `offset` is removed whole. Truncating to the log end
        offset removes only epochs without records. An `offset` below the first segment resets the log."""
        if offset < self._segments.first_offset:
            return self.begin_reset(offset)
        self._begin_cut(Offset(self._segments.since(offset)[0].base_offset), offset)
        return TruncateJob(
            **self._job_basics(),
            offset=min(offset, self.log_end_offset),
            high_watermark=self.high_watermark,
            segments=self._segments.all,
            epochs=LeaderEpochs(self.epochs.entries()),
            lower_checkpoints=partial(self._lower_checkpoints, self.id),
        )

    def begin_reset(self, start_offset: Offset) -> StorageJob:
        """Return a job that deletes all segments. Afterwards the log is empty and begins at `start_offset`."""
        self._begin_cut(Offset(0), start_offset)
        return ResetJob(
            **self._job_basics(),
            start_offset=start_offset,
            segments=self._segments.all,
            lower_checkpoints=partial(self._lower_checkpoints, self.id),
        )

    def _begin_cut(self, recovery_point_max: Offset, log_start_max: Offset) -> None:
        self._health.check()
        assert not self._is_truncating, self.id
        self._is_truncating = True
        self.cut_limits = recovery_point_max, log_start_max
        self._generation += 1

    def truncate_to(self, offset: Offset) -> None:
        """Truncate the log and wait for the disk in this thread."""
        self._run_here(self.begin_truncate(offset))

    def reset_to(self, start_offset: Offset) -> None:
        """Reset the log and wait for the disk in this thread."""
        self._run_here(self.begin_reset(start_offset))

    def _run_here(self, job: StorageJob) -> None:
        job.run()
        self.finish(job)

    def _was_cut(self, job: TruncateJob | ResetJob) -> None:
        assert job.active is not None, self.id
        is_reset = isinstance(job, ResetJob)
        kept = [s for s in self._segments.all if s.base_offset < job.active.base_offset]
        self._segments.replace_all([job.active] if is_reset else [*kept, job.active])
        self._recent.forget(self._tail)
        self.epochs = job.epochs
        self.producers.become(job.producers)
        self.log_end_offset = end_offset = job.end_offset
        self._progress.cut(end_offset, job.epochs, job.snapshots)
        if is_reset:
            self._progress.restarted(end_offset)
            self.log_start_offset = self.high_watermark = self.cleaned_offset = end_offset
            return
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.high_watermark = min(self.high_watermark, end_offset)
        self.cleaned_offset = min(self.cleaned_offset, end_offset)

    def set_high_watermark(self, offset: Offset) -> None:
        """Store the replica's high watermark, which limits retention, compaction and the last stable offset."""
        assert offset <= self.log_end_offset, (offset, self.log_end_offset)
        self.high_watermark = offset
        self._progress.due.checkpoint = True

    def advance_log_start(self, offset: Offset) -> None:
        """Raise the log start offset, at most to the log end (DeleteRecords, or a leader's log start).

        The new offset survives a kill from now on, or from the next checkpoint on if the disk is full. It survives a
        power loss after that checkpoint. The next retention run deletes the segments below it."""
        if self._move_log_start(offset) and not self._is_truncating:
            try:
                write_log_start(self._storage, self.directory, offset)
            except OSError as error:
                # A failed write does no harm, because the next checkpoint also stores the log start.
                if error_class(error) is ErrorClass.DISK:
                    self._health.fail(f"writing {self.directory}", error)

    def _move_log_start(self, offset: Offset) -> bool:
        assert offset <= self.log_end_offset, (offset, self.log_end_offset)
        is_higher = offset > self.log_start_offset
        if is_higher:
            self._progress.due.checkpoint = True
            self.log_start_offset = offset
            self.high_watermark = max(self.high_watermark, offset)
            self.epochs.truncate_from_start(offset)
        return is_higher

    def apply_retention(self, *, now_ms: int) -> int:
        """Remove segments from the log by age, size and log start offset; return their number. Does not wait for the
        disk. `now_ms` is wall-clock time, as in records. The files are only renamed; `take_retired` returns them for
        deletion."""
        self._health.check()
        if self._is_truncating:
            return 0
        with self._health.writing(f"looking for old segments of {self.directory}"):
            count, roll_first = expired_segments(
                self._segments.all,
                self.config,
                now_ms=now_ms,
                log_start_offset=self.log_start_offset,
                last_stable_offset=self.last_stable_offset,
                high_watermark=self.high_watermark,
            )
        if roll_first:
            try:
                self._roll()
            except OSError as error:
                failure = self._health.fail_to_write(f"rolling {self.directory}", error)
                if not isinstance(failure, StorageRefused):
                    raise failure from error
                count -= 1  # the closed segments can still be deleted, which frees space
        if not count:
            return 0
        with self._health.writing(f"deleting segments of {self.directory}"):
            delay_ms = self.config.file_delete_delay_ms
            self._segments.retire(self._segments.all[:count], delay_ms=delay_ms)
        self._progress.forget_segments()
        first_offset = Offset(self._segments.first_offset)
        self.cleaned_offset = max(self.cleaned_offset, first_offset)
        self._move_log_start(max(first_offset, self.log_start_offset))
        return count

    def take_retired(self, *, now_ms: int) -> list[Segment]:
        """Return removed segments that `file.delete.delay.ms` no longer protects. The caller runs `remove_files` of
        each on a disk thread. `now_ms` is read from a monotonic clock, the same one in all calls of this method."""
        return self._segments.take_retired(now_ms=now_ms)

    def begin_compaction(self, *, now_ms: int) -> CompactJob | None:
        """Return a compaction pass if one is due, else None. The caller runs the slices of the pass on a disk thread,
        and calls `install_compacted` after each slice, until the pass is done. Only one pass may run at a time.
        """
        if self._is_truncating or self._health.full is not None:
            return None
        with self._health.writing(f"looking for segments to compact in {self.directory}"):
            return begin_compaction(self, self._job_basics(), self._segments.all, now_ms=now_ms)

    def install_compacted(self, job: CompactJob) -> None:
        """Replace old segments by the compacted segments that the last slice completed. Raises StorageFailed."""
        self._health.check()
        if job.error is not None:
            failure = self._health.fail_to_write(f"compacting {self.directory}", job.error)
            raise failure from job.error
        delay_ms = self.config.file_delete_delay_ms
        with self._health.failing(f"compacting {self.directory}"):
            if job.install(self._segments, is_truncating=self._is_truncating, delay_ms=delay_ms):
                self._recent.forget(self._tail)
        self._progress.forget_segments()
        if job.is_done and job.is_current():
            self._progress.due.checkpoint = True
            self.cleaned_offset = max(self.cleaned_offset, job.end_offset)

    def mark_damaged(self, reason: str) -> None:
        """Make the next start verify all batches and truncate the log at the first invalid batch (blocks).
        Raises OSError.
        """
        write_damage_mark(self._storage, self.directory, reason)

    def retire_all(self) -> None:
        """Stop all writes to the log, because the partition was deleted."""
        self._generation += 1
        self._is_truncating = True
        self._segments.close(for_good=True)
        self._recent.forget(self._tail)

    def close(self) -> None:
        """Close all file descriptors. The log must not be used afterwards."""
        self._segments.close()
        self._recent.forget(self._tail)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def directory(self) -> Path:
        return Path(self._directory)

    @property
    def durable_end_offset(self) -> Offset:
        """The offset below which every record is synced."""
        return self._progress.durable_end

    @property
    def recovery_point(self) -> Offset:
        """The offset below which the next start need not scan the log."""
        return self._progress.recovery_point

    @property
    def unsynced_bytes(self) -> int:
        """An upper bound of the bytes that the next start would have to scan if the process died now."""
        return self._progress.unsynced_bytes

    @property
    def unsynced_since_ms(self) -> int | None:
        """The time (`now_ms`) of the oldest append that no full sync covers; None if there is none."""
        return self._progress.since_ms

    @property
    def last_stable_offset(self) -> Offset:
        """The first offset of the oldest transaction that is open, or whose marker is not below the high watermark;
        without such a transaction, the high watermark. It is never below the log start."""
        first = self.producers.first_unstable_offset(self.high_watermark)
        if first is None or first >= self.high_watermark:
            return self.high_watermark
        return max(first, self.log_start_offset)

    @property
    def stored_end_offset(self) -> Offset:
        """The end of the last batch, which would be the log end offset after a restart. The log end offset itself is
        higher after a truncation to an offset in a gap that compaction left."""
        return Offset(self._segments.active.end_offset)

    @property
    def size_bytes(self) -> int:
        """The size of all segments, without indexes."""
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments.all)

    def plan_read(
        self, start_offset: Offset, *, bytes_max: int, end_offset: Offset, verify: bool = False
    ) -> ReadPlan:
        """Plan to read complete batches, at least one, from the one that contains `start_offset` on.

        No batch that ends above `end_offset` (exclusive) is read. A plan that `is_hot` must be run immediately.
        With `verify`, batches from a file are read on a disk thread and their CRCs are checked; a wrong CRC makes the
        read raise LogDamaged. Raises OffsetOutOfRange."""
        if not self.log_start_offset <= start_offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"offset {start_offset} of {self} is not in"
                f" [{self.log_start_offset}, {self.log_end_offset}]"
            )
        end_offset = min(end_offset, self.log_end_offset)
        if self.damage is not None:
            end_offset = end_before_damage(self.directory, self.damage, start_offset, end_offset)
        result = read_tail(self._tail, start_offset, bytes_max, end_offset)
        segments: list[Segment] = []
        if result is None and start_offset >= end_offset:
            result = ReadResult((), start_offset, start_offset, 0)
        elif result is None:
            segments = self._segments.since(start_offset)
            self._segments.use(segments[0], may_drop=self._progress.may_drop)
        arguments = (segments, start_offset, bytes_max, end_offset, verify, result)
        return ReadPlan(self._storage, self._health, *arguments)

    def read(self, start_offset: Offset, *, bytes_max: int, end_offset: Offset) -> ReadResult:
        """Plan a read and run it in this thread, even if the read waits for the disk."""
        return self.plan_read(start_offset, bytes_max=bytes_max, end_offset=end_offset).run()

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """Return the first record whose timestamp is at least `timestamp_ms`, or None. Blocks. Raises StorageFailed."""
        return find_timestamp(
            self._storage, self._health, self._segments, timestamp_ms, self.log_start_offset
        )

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """Return the first record with the greatest timestamp, or None. May block. Raises StorageFailed."""
        return find_greatest(self._storage, self._health, self._segments, self.log_start_offset)

    def aborted_transactions(
        self, start_offset: Offset, end_offset: Offset
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap [start_offset, end_offset), in the order of their markers."""
        return self._segments.aborted_transactions(start_offset, end_offset)
