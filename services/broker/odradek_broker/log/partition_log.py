"""One partition's log: segments on disk, and what is known of them in memory.

    log start offset <= last stable offset <= high watermark <= log end offset
                                              durable end    <= log end offset
                                              recovery point <= durable end

The owner (the partition's host, on the event loop) calls everything; nothing here takes a lock.
Appends are one write(2) into the page cache. What may wait for the disk comes in two halves:
`begin_*` decides on the loop and returns a job, `job.run()` does the waiting in a pool thread, and
`finish(job)` applies the result on the loop.

Invariants: a batch is noted in memory only after its bytes were written. Each segment begins where
the one before ends, also where compaction left gaps between batches, so that a hole left by a power
cut is seen. The durable end moves only when a sync that began after those bytes were written has
ended without an error; the recovery point moves only when indexes, epochs and a producer snapshot
up to it were written as well. After a failed write or sync every mutation raises StorageFailed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
from odradek_broker.log.sync_progress import SyncProgress
from odradek_protocol.identity import (
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from odradek_protocol.records.batch_header import ByteBuffer


class AppendInfo(NamedTuple):
    """What one append did; `end_offset` is the log end offset after it."""

    base_offset: Offset
    end_offset: Offset
    max_timestamp_ms: int
    size_bytes: int


class PartitionLog:
    """One partition's log; set `config` and `is_trusted`, and read the rest."""

    __slots__ = (
        "_generation",
        "_health",
        "_is_cutting",
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
        "directory",
        "epochs",
        "high_watermark",
        "id",
        "is_intact",
        "is_trusted",
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
        config: LogConfig,
        loaded: LoadedLog,
        lower_checkpoints: Callable[[TopicIdPartition, Offset], None],
        is_new: bool,
        cleaned_offset: Offset = Offset(0),
    ) -> None:
        self._storage = storage
        self._health = health
        self._recent = recent
        self._tail: Tail = {}
        self.damage: tuple[int, int] | None = None  # offsets of a batch that nobody may be given
        self._segments = SegmentList(loaded.segments)
        self._progress = SyncProgress(self._segments, loaded, is_new=is_new)
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
        self._lower_checkpoints = lower_checkpoints
        self._jobs_lock = threading.Lock()  # one job of this log at a time
        self._generation = 0  # rises with each cut: jobs begun before are stale
        self._is_cutting = False
        self.cut_limits: tuple[Offset, Offset] | None = None
        """While a cut is under way: no recovery point past the first and no log start past the second
        may be written to the disk. The files are cut some time before the offsets here are."""
        self.config = config
        self.cleaned_offset = min(cleaned_offset, self.log_end_offset)  # compacted below it
        self.is_intact = True  # false: a cut was refused half-way; the log must be opened anew
        self.is_trusted = True  # false: a bug was met; the files alone tell the next start

    def append(self, batches: ByteBuffer, *, now_ms: int, retain: bool = True) -> AppendInfo:
        """Write whole, stamped, validated batches at the end; synchronous write(2), no sync.

        For leader (batches stamped with `log_end_offset` and its epoch) and follower alike: offsets
        rise from `log_end_offset` on (compaction leaves gaps), epochs never fall. The buffer
        belongs to the log afterwards: it is kept for readers of the tail unless `retain` is false,
        so nobody may change it. Rolls segments, enters new leader epochs, notes producers and
        transactions. Raises StorageFailed, and nothing of it counts as written (with StorageRefused,
        nothing is, if `is_intact`); CorruptBatch, and nothing is written, if these are no batches.
        """
        self._health.check_room()
        assert not self._is_cutting, self.id
        headers, newest_ms = headers_of(batches, self.log_end_offset)
        base_offset = Offset(headers[0].base_offset)
        end_before = self.log_end_offset
        try:
            self._append_runs(batches, headers)
        except OSError as error:
            failure = self._health.fail_to_write(f"writing {self.directory}", error)
            if isinstance(failure, StorageRefused):
                self._undo_append(end_before)
            raise failure from error
        if self._progress.since_ms is None:
            self._progress.since_ms = now_ms
        if retain:
            kept = batches if isinstance(batches, bytes) else memoryview(batches).toreadonly()
            self._recent.keep(self._tail, base_offset, self.log_end_offset, kept)
        elif self._tail:
            self._recent.forget(self._tail)
        return AppendInfo(base_offset, self.log_end_offset, newest_ms, len(batches))

    def _undo_append(self, end_before: Offset) -> None:
        """Take back what reached the files of an append that was refused."""
        self.is_intact = False
        with self._health.writing(f"cutting {self.directory}"):
            self._segments.active.undo_write()
        if self.log_end_offset > end_before:  # it went on into a second segment
            self.truncate_to(end_before)
        self.is_intact = True

    def _append_runs(self, data: ByteBuffer, headers: list[Header]) -> None:
        """Write the batches in runs that each go into one segment."""
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
        interval_bytes = self.config.index_interval_bytes
        for header in run:
            active.note(header, interval_bytes)
            if header.leader_epoch > self.epochs.latest:
                self.epochs.enter(LeaderEpoch(header.leader_epoch), Offset(header.base_offset))
            if header.producer_id >= 0:
                batch = partial(part, data, start, start + header.size_bytes)
                aborted = fold_batch(self.producers, header, batch)
                if aborted is not None:
                    active.note_aborted(aborted)
            start += header.size_bytes
        self.log_end_offset = Offset(active.end_offset)

    def _roll(self) -> None:
        """Close the active segment, which has batches, and begin the next. Raises OSError."""
        old = self._segments.begin_next(self._storage, self.directory)
        self._progress.rolled(old, self.producers)
        self._segments.use(old, may_drop=self._progress.may_drop)

    def assign_epoch(self, epoch: LeaderEpoch) -> None:
        """Enter (epoch, log end offset) in the epoch cache: this replica begins to lead (R1)."""
        if epoch > self.epochs.latest:
            self.epochs.enter(epoch, self.log_end_offset)

    def begin_sync(self, *, full: bool = False) -> SyncJob | None:
        """A job that makes all bytes up to the present log end durable.

        None if nothing is unsynced, or if a sync is under way: its `finish` is the moment to begin
        the next (group commit without a timer). `full` also writes indexes, epochs and producer
        snapshot and moves the recovery point; wished for during a sync, it is granted to the next.
        """
        self._health.check()
        progress = self._progress
        if progress.is_under_way or self._is_cutting:
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
            sync_directory=progress.is_directory_dirty,
            directory_changes=progress.directory_changes,
            is_new=progress.is_new,
        )
        if full:
            progress.add_companions(job, self.epochs, self.producers)
        progress.is_under_way = True
        progress.is_full_wanted = False
        return job

    def finish(self, job: StorageJob) -> None:
        """Apply a job that ran. Raises StorageFailed, or a bug, if it failed: then nothing is."""
        if isinstance(job, SyncJob):
            self._finish(job)
            return
        self._is_cutting = False
        self._finish(job)
        self.cut_limits = None  # last: a thread may gather the offsets for a checkpoint meanwhile

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
            self.is_intact &= is_sync  # nobody knows how far a cut came
            what = f"syncing {self.directory}"
            raise self._health.fail_to_write(what, job.error) from job.error
        if isinstance(job, SyncJob):
            if job.refused is not None:  # only the indexes; the batches are durable
                self._health.fail_to_write(f"writing indexes in {self.directory}", job.refused)
            if job.is_current():
                self._progress.synced(job)
        elif not job.is_current():
            return  # the partition was deleted meanwhile
        elif isinstance(job, TruncateJob | ResetJob):
            self._was_cut(job)

    def sync_at_close(self) -> bool:
        """Sync in full here, also while a sync is under way that nobody will finish any more.

        False if there was no room for all of it, while a cut is under way, or after a bug: what the
        log holds then, only the next start can tell.
        """
        if self._is_cutting or not self.is_trusted:
            return False
        self._progress.is_under_way = False
        job = self.begin_sync(full=True)
        if job is not None:
            self._run_here(job)
        return self.is_intact and (job is None or job.full)

    def _job_basics(self) -> dict[str, Any]:
        """What every job has; it is current until the log is cut."""
        generation = self._generation
        return {
            "storage": self._storage,
            "directory": self.directory,
            "lock": self._jobs_lock,
            "is_current": lambda: self._generation == generation,
        }

    def begin_truncate(self, offset: Offset) -> StorageJob:
        """Cut everything at and above `offset`, epochs and producer state too, synced (R4).

        No append until `finish`. A batch that `offset` would divide goes as a whole. Cutting at
        the log end offset forgets epochs without data. Below the first segment: a reset to it.
        """
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
        """Drop the whole log and start again, empty, at `start_offset` (Snapshotless)."""
        self._begin_cut(Offset(0), start_offset)
        return ResetJob(
            **self._job_basics(),
            start_offset=start_offset,
            segments=self._segments.all,
            lower_checkpoints=partial(self._lower_checkpoints, self.id),
        )

    def _begin_cut(self, recovery_point_max: Offset, log_start_max: Offset) -> None:
        self._health.check()
        assert not self._is_cutting, self.id
        self._is_cutting = True
        self.cut_limits = recovery_point_max, log_start_max
        self._generation += 1

    def truncate_to(self, offset: Offset) -> None:
        """Truncate and wait for the disk here."""
        self._run_here(self.begin_truncate(offset))

    def reset_to(self, start_offset: Offset) -> None:
        """Reset and wait for the disk here."""
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
        self.epochs, self.producers = job.epochs, job.producers
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
        """Told by the replica whenever it moves; bounds retention and the last stable offset."""
        assert offset <= self.log_end_offset, (offset, self.log_end_offset)
        self.high_watermark = offset

    def advance_log_start(self, offset: Offset) -> None:
        """DeleteRecords, or what a leader told. Never falls; above the log end, reset instead.

        A kill does not undo it, and after the next checkpoint a power cut does not either; the next
        retention takes the segments wholly below it."""
        if self._move_log_start(offset) and not self._is_cutting:
            try:
                write_log_start(self._storage, self.directory, offset)
            except OSError as error:  # the checkpoint remembers it later
                if error_class(error) is ErrorClass.DISK:
                    self._health.fail(f"writing {self.directory}", error)

    def _move_log_start(self, offset: Offset) -> bool:
        assert offset <= self.log_end_offset, (offset, self.log_end_offset)
        is_higher = offset > self.log_start_offset
        if is_higher:
            self.log_start_offset = offset
            self.high_watermark = max(self.high_watermark, offset)
            self.epochs.truncate_from_start(offset)
        return is_higher

    def apply_retention(self, *, now_ms: int) -> int:
        """Take segments out by age, size and log start offset; returns how many. Does not wait.

        `now_ms` is the wall clock, as the timestamps of records are. The segments' files are
        renamed, and removed later by the caller of `take_retired`.
        """
        self._health.check()
        if self._is_cutting:
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
                count -= 1  # what is closed may go all the same, and makes room
        if not count:
            return 0
        with self._health.writing(f"deleting segments of {self.directory}"):
            gone = self._segments.all[:count]
            self._segments.retire(gone, delay_ms=self.config.file_delete_delay_ms)
        self._progress.forget_segments()
        first_offset = Offset(self._segments.first_offset)
        self.cleaned_offset = max(self.cleaned_offset, first_offset)
        self._move_log_start(max(first_offset, self.log_start_offset))
        return count

    def take_retired(self, *, now_ms: int) -> list[Segment]:
        """Retired segments whose time has come: `remove_files` of each, in the pool. `now_ms` is of a
        clock that does not jump, and only of the calls of this."""
        return self._segments.take_retired(now_ms=now_ms)

    def begin_compaction(self, *, now_ms: int) -> CompactJob | None:
        """A compaction pass, if one is due: let the pool run its slices, and call
        `install_compacted` after each, until it is done. One at a time."""
        if self._is_cutting or self._health.full is not None:
            return None
        with self._health.writing(f"looking for old segments of {self.directory}"):
            return begin_compaction(self, self._job_basics(), self._segments.all, now_ms=now_ms)

    def install_compacted(self, job: CompactJob) -> None:
        """Put the segments that a slice made ready in place. Raises StorageFailed."""
        self._health.check()
        if job.error is not None:
            failure = self._health.fail_to_write(f"compacting {self.directory}", job.error)
            raise failure from job.error
        delay_ms = self.config.file_delete_delay_ms
        with self._health.failing(f"compacting {self.directory}"):
            if job.install(self._segments, is_cutting=self._is_cutting, delay_ms=delay_ms):
                self._recent.forget(self._tail)
        self._progress.forget_segments()
        if job.is_done:
            self.cleaned_offset = max(self.cleaned_offset, job.end_offset)

    def mark_damaged(self, reason: str) -> None:
        """Let the next start verify every batch and cut the log at the first wrong one (waits). Raises OSError."""
        write_damage_mark(self._storage, self.directory, reason)

    def retire_all(self) -> None:
        """The partition was deleted: nothing is written for it any more."""
        self._generation += 1
        self._is_cutting = True
        self._segments.close(for_good=True)
        self._recent.forget(self._tail)

    def close(self) -> None:
        """Give back all descriptors; no use afterwards."""
        self._segments.close()
        self._recent.forget(self._tail)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

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
    def size_bytes(self) -> int:
        """Of all segments, without indexes."""
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments.all)

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
            end_offset = end_before_damage(self.directory, self.damage, start_offset, end_offset)
        result = read_tail(self._tail, start_offset, bytes_max, end_offset)
        segments: list[Segment] = []
        if result is None and start_offset >= end_offset:
            result = ReadResult((), start_offset, start_offset, 0)
        elif result is None:
            segments = self._segments.since(start_offset)
            self._segments.use(segments[0], may_drop=self._progress.may_drop)
        wanted = (segments, start_offset, bytes_max, end_offset, verify, result)
        return ReadPlan(self._storage, self._health, *wanted)

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
