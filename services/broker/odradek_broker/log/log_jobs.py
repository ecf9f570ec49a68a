"""Jobs: the parts of a log's operations that wait for the disk. They run on a disk thread.

A `begin_*` method of `PartitionLog` makes a job on the event loop, with copies of all the data that the job needs.
`run` works on a disk thread, accesses only files and never raises. The job keeps its result, or the error that stopped
it, until `PartitionLog.finish` applies the result on the event loop.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

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
    """The base class of all jobs. A lock of the log makes its jobs run one after the other. `is_current` returns False
    if the log was truncated or deleted after the job was made; the job then does nothing.
    """

    operation: ClassVar[str] = "syncing"
    """What the job does, in the words of an error message."""
    storage: Storage
    directory: Path
    lock: threading.Lock
    is_current: Callable[[], bool]
    error: Exception | None = None  # an OSError, or the exception that a bug raised

    def run(self) -> None:
        """Run the job once, in any thread. An exception is stored in `error`; `PartitionLog.finish` raises it."""
        try:
            with self.lock:
                if self.is_current():
                    self._work()
        except FileNotFoundError as error:
            if self.is_current():  # otherwise the partition was deleted while the job ran
                self.error = error
        except OSError as error:
            self.error = error
        except CorruptBatch as error:
            self.error = DamagedContent(error)
        except Exception as error:  # stored, because `finish` must not apply an incomplete result
            self.error = error
        finally:
            self.discard()

    def require_current(self) -> None:
        """Raise FileNotFoundError if the job is no longer current.

        A job calls this after long steps and before it changes files by name: if the partition was deleted in between,
        its directory may belong to a new topic of the same name.
        """
        if not self.is_current():
            raise FileNotFoundError(
                errno.ENOENT, "the log was truncated or deleted while a job of it ran"
            )

    def discard(self) -> None:
        """Close the files that the job holds open. `run` calls this; if the job never runs, its owner does."""

    def _work(self) -> None:
        raise NotImplementedError


Snapshot = tuple[Offset, dict[ProducerId, ProducerEntry]]


@dataclass(slots=True, kw_only=True)
class SyncJob(StorageJob):
    """Makes everything below `end_offset` durable. A `full` sync also writes the files that a restart needs.

    `files` are duplicated handles that belong to the job. `closed` are segments whose indexes were never synced. New
    index entries of the `active` segment are written but not synced, except those of aborted transactions, because
    recovery rebuilds all other entries after a power loss. `refused` is the error (such as a full disk) because of
    which a full sync became a plain one.
    """

    end_offset: Offset
    size_bytes: int
    files: list[File]
    covered: list[tuple[Segment, int]]  # a segment of each file, and the size that the sync covers
    sync_directory: bool
    directory_changes: int  # the count of directory changes that this sync makes durable
    is_new: bool  # whether the directory entry of the log was never synced
    full: bool = False
    # The time of the oldest append that this sync makes durable, if it is a full sync.
    since_ms: int | None = None
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
    """Truncates the log to `offset`. The order is: lower the recovery point on disk, truncate the file, sync, truncate
    the epochs, sync.

    With this order a crash does no harm: everything below the checkpointed recovery point exists, and epochs above the
    log end are removed when the log is opened.
    """

    operation: ClassVar[str] = "truncating"
    offset: Offset
    high_watermark: Offset
    segments: list[Segment]  # all segments of the log, oldest first
    epochs: LeaderEpochs  # a copy of the log's epochs, which this job truncates
    lower_checkpoints: Callable[[Offset, Offset | None], None]
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
                # The batch that contains `offset` is removed whole.
                self.end_offset = Offset(header.base_offset)
            stored_end = Offset(self.active.end_offset)
            # If no batch contains `offset`, no records are between the last batch and `offset`. A high watermark there
            # must not look like a loss at the next start.
            has_gap = self.end_offset == self.offset
            self.lower_checkpoints(stored_end, stored_end if has_gap else None)
            self.require_current()
            forget_log_start(self.storage, self.directory, above=self.end_offset)
            for segment in reversed(self.segments):
                if segment.base_offset > victim.base_offset:
                    segment.is_retired = True
                    segment.remove_files()
            # `active` replaces `victim`. A thread that still reads `victim` may see the truncated file.
            victim.is_retired = True
            file.truncate(position)
            file.sync()
        finally:
            file.close()
        self.require_current()
        self.active.write_indexes(sync=True)
        self.require_current()
        snapshots = snapshot_offsets(self.storage.names(self.directory))
        for offset in [o for o in snapshots if o > self.end_offset]:
            self.storage.remove(self.directory / file_name(offset, Suffix.SNAPSHOT))
        self.snapshots = [o for o in snapshots if o <= self.end_offset]
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
    """Deletes all segments. Afterwards the log is empty and begins at `start_offset`."""

    operation: ClassVar[str] = "resetting"
    start_offset: Offset
    segments: list[Segment]
    lower_checkpoints: Callable[[Offset, Offset | None], None]
    active: Segment | None = None
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    producers: ProducerStates = field(default_factory=ProducerStates)
    snapshots: list[Offset] = field(default_factory=list)

    @property
    def end_offset(self) -> Offset:
        """The log end offset after the reset, like the field with the same name in `TruncateJob`."""
        return self.start_offset

    def _work(self) -> None:
        undo_swaps(self.storage, self.directory)
        self.lower_checkpoints(Offset(0), None)
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
    """Return the producer states at the end of `segments`, from a snapshot and a replay of the batches after it.

    The snapshot is the newest one at or below the high watermark, because a snapshot does not say which transaction
    markers are not replicated yet.
    """
    start, states = Offset(segments[0].base_offset), ProducerStates()
    end = min(Offset(segments[-1].end_offset), high_watermark)
    snapshot = read_newest_snapshot(storage, directory, snapshots, offset_max=end)
    if snapshot is not None:
        start, states = snapshot
    replay(storage, segments, states, from_offset=start)
    return states
