"""Tracks how much of one log is durable, and how much of it a restart would have to scan.

    durable end       everything below it was covered by a sync that succeeded
    recovery point    in addition, the indexes, epochs and a producer snapshot up to it are written, so that a restart
                      does not scan the log below it

A plain sync moves the durable end; a full sync moves both. A closed segment is on two lists: on `_unsynced` until a
sync covers its bytes, and on `_unindexed` until a full sync covers its indexes.
"""

from __future__ import annotations

from odradek_broker.leader_epochs import LeaderEpochs
from odradek_broker.log.directory.partition_files import encode_epochs
from odradek_broker.log.log_jobs import Snapshot, SyncJob
from odradek_broker.log.producer_state import ProducerStates
from odradek_broker.log.recovery import LoadedLog
from odradek_broker.log.segments.segment import Segment
from odradek_broker.log.segments.segment_list import SegmentList
from odradek_protocol.identity import Offset, TopicIdPartition

SNAPSHOTS_BETWEEN_ROLLS_MAX = 2


class UpkeepDue:
    """The logs of one directory that periodic work has to examine, so that idle logs cost nothing.

    `unflushed` has at least the logs that were appended to since their last full sync. `checkpoint` is whether an
    offset of any log may have changed since the last checkpoint.
    """

    __slots__ = ("checkpoint", "unflushed")

    def __init__(self) -> None:
        self.unflushed: dict[TopicIdPartition, None] = {}
        self.checkpoint = True


class SyncProgress:
    """The sync state of one log.

    `since_ms` is a lower bound of the time of the oldest append past the recovery point. It is None if there is no such
    append, or if a running full sync covers all of them.
    """

    __slots__ = (
        "_directory_synced",
        "_epochs_written",
        "_id",
        "_mark",
        "_roll_snapshots",
        "_segments",
        "_snapshot_offsets",
        "_unindexed",
        "_unsynced",
        "directory_changes",
        "due",
        "durable_end",
        "is_full_wanted",
        "is_new",
        "is_under_way",
        "recovery_point",
        "since_ms",
    )

    def __init__(
        self,
        segments: SegmentList,
        loaded: LoadedLog,
        id_: TopicIdPartition,
        due: UpkeepDue,
        *,
        is_new: bool,
    ) -> None:
        self._segments = segments
        self._id = id_
        self.due = due
        self.durable_end = self.recovery_point = recovery_point = loaded.recovery_point
        # The segment, and the position in it, at which the last full sync ended.
        self._mark = (segments.active, loaded.recovery_position)
        # The next four fields are tuples, because they change rarely, and an empty list for each partition takes 56
        # bytes.
        self._snapshot_offsets = tuple(loaded.snapshot_offsets)
        self._roll_snapshots: tuple[Snapshot, ...] = ()
        self._unsynced = tuple([s for s in segments.all[:-1] if s.end_offset > recovery_point])
        self._unindexed = self._unsynced
        self._epochs_written = -1 if loaded.epochs.changes else 0
        self.is_new = is_new  # whether the directory of this log was perhaps never synced
        # This count rises when a segment file is created. It begins at 1, because the directory of a log that was just
        # opened may not be synced.
        self.directory_changes = 1
        self._directory_synced = 0
        self.is_under_way = False
        self.is_full_wanted = False
        self.since_ms: int | None = None
        if segments.active.end_offset > recovery_point:
            self.begin_age(0)

    def begin_age(self, now_ms: int) -> None:
        """Record the time of the first append that no full sync covers yet."""
        self.since_ms = now_ms
        self.due.unflushed[self._id] = None

    @property
    def is_directory_dirty(self) -> bool:
        """Whether file names of some segments are not durable yet."""
        return self._directory_synced != self.directory_changes

    @property
    def unsynced_bytes(self) -> int:
        """An upper bound of the bytes that a restart would scan if the process died now."""
        segment, position = self._mark
        active = self._segments.active
        synced_bytes = position if segment is active else 0
        return active.size_bytes - synced_bytes + sum(s.size_bytes for s in self._unindexed)

    def may_drop(self, segment: Segment) -> bool:
        """Return whether the indexes of a closed segment are completely in their files, so that they may be removed
        from memory.
        """
        return segment not in self._unindexed

    def rolled(self, old: Segment, producers: ProducerStates) -> None:
        """Record that the segment `old` was closed, and that a new active segment begins at its end."""
        self.directory_changes += 1
        self._unsynced = (*self._unsynced, old)
        self._unindexed = (*self._unindexed, old)
        snapshot = (Offset(old.end_offset), producers.entries())
        self._roll_snapshots = (*self._roll_snapshots, snapshot)

    def unsynced_segments(self, log_end: Offset) -> list[Segment]:
        """Return the segments that a sync must cover; an empty list if everything is durable."""
        if log_end <= self.durable_end and not self._unsynced:
            return []
        return [*self._unsynced, self._segments.active]

    def lacks_companions(self, epochs: LeaderEpochs) -> bool:
        """Return whether a full sync would write indexes, epochs or a snapshot, in addition to the batches."""
        end = self._segments.active.end_offset
        return (
            self.recovery_point < end
            or self._snapshot_offsets[-1:] != (end,)
            or epochs.changes != self._epochs_written
            or bool(self._unindexed)
        )

    def add_companions(self, job: SyncJob, epochs: LeaderEpochs, producers: ProducerStates) -> None:
        """Make the job a full sync: add the indexes, the epochs and the snapshots that are needed to move the recovery
        point to the current end.
        """
        active = self._segments.active
        end = Offset(active.end_offset)
        job.full = True
        job.since_ms, self.since_ms = self.since_ms, None
        job.active = active
        job.recovery_point = end
        job.closed = list(self._unindexed)
        job.epochs_changes = epochs.changes
        if epochs.changes != self._epochs_written:
            job.epochs_text = encode_epochs(epochs)
        job.snapshots = [*self._roll_snapshots, (end, producers.entries())]
        at_rolls = set(self._segments.bases)
        between = [o for o in self._snapshot_offsets if o not in at_rolls and o != end]
        job.stale_snapshots = between[: -SNAPSHOTS_BETWEEN_ROLLS_MAX + 1]

    def synced(self, job: SyncJob) -> None:
        """Record the success of a sync that is still current."""
        for segment, size_bytes in job.covered:
            segment.was_synced(size_bytes)
        self.is_new = False
        self._directory_synced = job.directory_changes
        self.durable_end = max(self.durable_end, job.end_offset)
        self._unsynced = tuple([s for s in self._unsynced if s.end_offset > job.end_offset])
        if not job.full:
            # `since_ms` is set if the job was begun as a full sync, whose indexes then could not be written.
            if job.since_ms is not None:
                self.since_ms = job.since_ms
            return
        assert job.active is not None, job
        self.recovery_point = max(self.recovery_point, job.recovery_point)
        self.due.checkpoint = True
        self._mark = (job.active, job.size_bytes)
        self._unindexed = tuple([s for s in self._unindexed if s not in job.closed])
        self._epochs_written = job.epochs_changes
        written = {offset for offset, _ in job.snapshots}
        self._roll_snapshots = tuple([s for s in self._roll_snapshots if s[0] not in written])
        kept = set(self._snapshot_offsets) - set(job.stale_snapshots)
        self._snapshot_offsets = tuple(sorted(kept | written))
        self._segments.close_unused(may_drop=self.may_drop)

    def was_refused(self, job: SyncJob) -> None:
        """Record that a sync failed or was refused, so that the next sync covers the same work."""
        self.directory_changes += job.sync_directory
        self.is_full_wanted |= job.full
        if job.since_ms is not None:
            self.since_ms = job.since_ms

    def cut(self, log_end: Offset, epochs: LeaderEpochs, snapshot_offsets: list[Offset]) -> None:
        """Record that the log was truncated and synced, and that its epochs were written."""
        self.forget_segments()
        end = Offset(self._segments.active.end_offset)
        alive = set(self._segments.bases)
        self._roll_snapshots = tuple([s for s in self._roll_snapshots if s[0] in alive])
        self._epochs_written = epochs.changes
        self._snapshot_offsets = tuple(snapshot_offsets)
        self.durable_end = min(self.durable_end, log_end)
        self.recovery_point = min(self.recovery_point, end)
        self._mark = (self._segments.active, 0)
        self.due.checkpoint = True
        if self.recovery_point == end:
            self.since_ms = None
        else:
            self.begin_age(self.since_ms or 0)

    def restarted(self, start: Offset) -> None:
        """Record that the log was reset and now begins at `start`."""
        self.durable_end = self.recovery_point = start
        self._roll_snapshots = ()
        self.since_ms = None

    def forget_segments(self) -> None:
        """Remove from the two lists the segments that are no longer part of the log."""
        current = self._segments.all
        self._unsynced = tuple([s for s in self._unsynced if s in current])
        self._unindexed = tuple([s for s in self._unindexed if s in current])
