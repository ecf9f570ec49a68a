"""The halves of a log's operations that wait for the disk.

A job is made on the loop by a `begin_*` of `PartitionLog`, with copies of all that it needs. `run`
works in a pool thread on files alone and never raises; what it learned, or the error that stopped
it, stays in the job until `PartitionLog.finish` applies it on the loop.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from odradek_broker.leader_epochs import LeaderEpochs
from odradek_broker.log.directory.partition_files import (
    encode_epochs,
    forget_log_start,
    read_newest_snapshot,
    snapshot_offsets,
    sync_new_partition,
    write_epochs,
    write_snapshot,
)
from odradek_broker.log.producer_state import ProducerEntry, ProducerStates, replay
from odradek_broker.log.segments.segment import Segment, Suffix, file_name
from odradek_broker.log.segments.swap import undo_swaps
from odradek_broker.log.storage import DamagedContent, ErrorClass, File, Storage, error_class
from odradek_protocol.identity import NO_OFFSET, Offset, ProducerId
from odradek_protocol.records.errors import CorruptBatch


@dataclass(slots=True, kw_only=True)
class StorageJob:
    """What every job has: the log's lock, so that its jobs run one after the other, and
    `is_current`, false once the log was cut after the job was made: then it has nothing to do.
    """

    storage: Storage
    directory: Path
    lock: threading.Lock
    is_current: Callable[[], bool]
    error: Exception | None = None  # an OSError, or a bug

    def run(self) -> None:
        """Do it, in any thread, once. Errors are kept for `finish`."""
        try:
            with self.lock:
                if self.is_current():
                    self._work()
        except FileNotFoundError as error:
            if self.is_current():  # else the partition was deleted meanwhile
                self.error = error
        except OSError as error:
            self.error = error
        except CorruptBatch as error:
            self.error = DamagedContent(error)
        except Exception as error:  # `finish` must not apply what was not done
            self.error = error
        finally:
            self.discard()

    def require_current(self) -> None:
        """After what takes time, before files are changed by name: the partition may be deleted by now,
        and its directory a namesake's. Raises FileNotFoundError."""
        if not self.is_current():
            raise FileNotFoundError(errno.ENOENT, "the log was cut or deleted")

    def discard(self) -> None:
        """Give up what the job holds open; also for a job that will not run."""

    def _work(self) -> None:
        raise NotImplementedError


Snapshot = tuple[Offset, dict[ProducerId, ProducerEntry]]


@dataclass(slots=True, kw_only=True)
class SyncJob(StorageJob):
    """Make everything below `end_offset` durable; `full`: with all that a restart needs.

    `files` are duplicates and belong to the job. `closed` are segments whose indexes were never
    synced, `active` the one whose index files only get what is new: but for its aborted transactions
    they may be lost with the power, and are made again then. `refused`: why it was no full sync after
    all (the disk is full).
    """

    end_offset: Offset
    size_bytes: int
    files: list[File]
    sync_directory: bool
    directory_changes: int  # of which it takes the names
    is_new: bool  # the partition's own directory was never synced
    full: bool = False
    since_ms: int | None = None  # when the oldest append was made that a full one takes
    closed: list[Segment] = field(default_factory=list)
    active: Segment | None = None
    recovery_point: Offset = NO_OFFSET
    epochs_text: bytes | None = None
    epochs_changes: int = 0
    snapshots: list[Snapshot] = field(default_factory=list)
    stale_snapshots: list[Offset] = field(default_factory=list)
    refused: OSError | None = None

    def _work(self) -> None:
        for file in self.files:
            file.datasync()
        if self.full:
            try:
                self._write_companions()
            except OSError as error:
                if error_class(error) is ErrorClass.DISK or not self.is_current():
                    raise
                self.full, self.refused = False, error
        if self.is_new:
            sync_new_partition(self.storage, self.directory)
        elif self.sync_directory:
            self.storage.sync_directory(self.directory)

    def discard(self) -> None:
        for file in self.files:
            file.close()
        self.files = []

    def _write_companions(self) -> None:
        for segment in self.closed:
            self.sync_directory |= segment.write_indexes(sync=True)
        if self.active is not None:
            self.sync_directory |= self.active.write_indexes(sync=False)
        if self.epochs_text is not None:
            self.require_current()
            write_epochs(self.storage, self.directory, self.epochs_text)
        self.require_current()
        for offset in self.stale_snapshots:
            self.storage.remove(self.directory / file_name(offset, Suffix.SNAPSHOT))
        for offset, entries in self.snapshots:
            write_snapshot(self.storage, self.directory, offset, entries)


@dataclass(slots=True, kw_only=True)
class TruncateJob(StorageJob):
    """Cut the log at `offset`: lower the recovery point on disk, cut, sync, cut epochs, sync.

    The order makes a crash harmless: what the checkpoint vouches for is there, and epochs past the
    end are forgotten when the log is opened.
    """

    offset: Offset
    high_watermark: Offset
    segments: list[Segment]  # those of the log, oldest first
    epochs: LeaderEpochs  # a copy, to be cut
    lower_checkpoints: Callable[[Offset], None]
    active: Segment | None = None
    end_offset: Offset = NO_OFFSET
    producers: ProducerStates = field(default_factory=ProducerStates)
    snapshots: list[Offset] = field(default_factory=list)

    def _work(self) -> None:
        undo_swaps(self.storage, self.directory)
        victim = next(s for s in reversed(self.segments) if s.base_offset <= self.offset)
        file = self.storage.open(victim.path(Suffix.LOG))
        try:
            position, header = victim.locate(file, self.offset, victim.size_bytes)
            next_offset = header.base_offset if header is not None else self.offset
            self.active = victim.copy_until(position, next_offset)
            self.end_offset = self.offset
            if header is not None and header.base_offset < self.offset:
                self.end_offset = Offset(header.base_offset)  # a batch is cut whole or not at all
            self.lower_checkpoints(Offset(self.active.end_offset))
            self.require_current()
            forget_log_start(self.storage, self.directory, above=self.end_offset)
            for segment in reversed(self.segments):
                if segment.base_offset > victim.base_offset:
                    segment.is_retired = True
                    segment.remove_files()
            # `active` stands for it: who still reads the victim may meet its new end.
            victim.is_retired = True
            file.truncate(position)
            file.sync()
        finally:
            file.close()
        self.require_current()
        self.active.write_indexes(sync=True)
        self.require_current()
        there = snapshot_offsets(self.storage.names(self.directory))
        for offset in [o for o in there if o > self.end_offset]:
            self.storage.remove(self.directory / file_name(offset, Suffix.SNAPSHOT))
        self.snapshots = [o for o in there if o <= self.end_offset]
        self.epochs.truncate_from_end(self.end_offset)
        write_epochs(self.storage, self.directory, encode_epochs(self.epochs))
        self.storage.sync_directory(self.directory)
        kept = [s for s in self.segments if s.base_offset < victim.base_offset]
        self.producers = restore_producers(
            self.storage,
            self.directory,
            self.snapshots,
            [*kept, self.active],
            high_watermark=self.high_watermark,
        )


@dataclass(slots=True, kw_only=True)
class ResetJob(StorageJob):
    """Drop everything and begin again, empty, at `start_offset`."""

    start_offset: Offset
    segments: list[Segment]
    lower_checkpoints: Callable[[Offset], None]
    active: Segment | None = None
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    producers: ProducerStates = field(default_factory=ProducerStates)
    snapshots: list[Offset] = field(default_factory=list)

    @property
    def end_offset(self) -> Offset:
        """Where the log ends after the reset, as a TruncateJob says it."""
        return self.start_offset

    def _work(self) -> None:
        undo_swaps(self.storage, self.directory)
        self.lower_checkpoints(Offset(0))
        self.require_current()
        forget_log_start(self.storage, self.directory, above=self.start_offset)
        for segment in reversed(self.segments):
            segment.is_retired = True
            segment.remove_files()
        for offset in snapshot_offsets(self.storage.names(self.directory)):
            self.storage.remove(self.directory / file_name(offset, Suffix.SNAPSHOT))
        write_epochs(self.storage, self.directory, encode_epochs(LeaderEpochs()))
        self.require_current()
        active = Segment(self.storage, self.directory, self.start_offset)
        active.create()
        self.storage.sync_directory(self.directory)
        self.active = active


def restore_producers(
    storage: Storage,
    directory: Path,
    snapshots: list[Offset],
    segments: list[Segment],
    *,
    high_watermark: Offset,
) -> ProducerStates:
    """The producers at the end of `segments`: a snapshot and a replay. The snapshot is the newest below
    the high watermark, as none says which markers are not replicated yet."""
    start, states = Offset(segments[0].base_offset), ProducerStates()
    end = min(Offset(segments[-1].end_offset), high_watermark)
    found = read_newest_snapshot(storage, directory, snapshots, offset_max=end)
    if found is not None:
        start, states = found
    replay(storage, segments, states, from_offset=start)
    return states
