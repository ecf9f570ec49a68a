"""A broker's data directory: its lock and identity, its state after the last stop, and the logs in it.

    meta.properties                                  cluster, node, directory id
    .lock                                            locked while the process lives; contains its pid
    clean | running | failed                         directory/restart_markers.py
    *-offset-checkpoint                              directory/checkpoints.py
    <topic>-<partition>/                             a partition's log
    <topic id>-<partition>.<random>-delete/          deleted, its files are removed later; directory/strays.py
    <topic id>-<partition>.<random>-stray/           not assigned to this broker, kept; directory/strays.py

The lifetime of a directory object: `open` (lock, identity, restart class), `load` (recover every log), then the
broker's work, with flushes and checkpoints by a timer, and `close`. After the first failed write or sync the directory
is offline: `failure` has the reason, and the next start is as after a loss of power. While the disk is full, `full` is
set and the directory is read-only, until `look_for_room` finds space and the caller calls `health.has_room_again`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Final

from odradek_broker.leader_epochs import LeaderEpochs
from odradek_broker.log.directory.checkpoints import CheckpointJob, Checkpoints
from odradek_broker.log.directory.loading import (
    DirectoryLoad,
    FoundPartition,
    LoadReport,
    StrayReturn,
)
from odradek_broker.log.directory.opening import (
    DirectoryRefused,
    MetaProperties,
    adopt_metadata,
    checked_meta,
    format_directory,
    sync_name,
    take_lock,
)
from odradek_broker.log.directory.partition_files import STRAY_SUFFIX, create_metadata, uuid_text
from odradek_broker.log.directory.restart_markers import RestartClass, RestartMarkers
from odradek_broker.log.directory.strays import STRAY_FILE, Departures, Stray, Strays, departed_name
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_reads import RECENT_BYTES_MAX, RecentAppends
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.producer_state import ProducerStates
from odradek_broker.log.recovery import LoadedLog, Recovery
from odradek_broker.log.segments.segment import Segment
from odradek_broker.log.storage import (
    DirectoryHealth,
    DiskStorage,
    ErrorClass,
    File,
    Storage,
    StorageFailed,
    StorageFull,
    error_class,
)
from odradek_broker.log.sync_progress import UpkeepDue
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    MetadataIncarnationId,
    Offset,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
    TopicName,
)

__all__ = ["DirectoryRefused", "LoadReport", "LogDirectory", "RestartClass"]

SYNCS_AT_CLOSE_MAX: Final = 8
ROOM_BYTES_MIN: Final = 8 << 20  # a full directory is writable again with this much free space
BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")


class LogDirectory:
    """One locked data directory. `open` locks and checks it; `load` recovers the logs (on a disk thread)."""

    def __init__(
        self,
        *,
        path: Path,
        storage: Storage,
        lock: File,
        meta: MetaProperties,
        boot_id: str,
        recent_bytes_max: int,
    ) -> None:
        self.path = path
        self.cluster_id = meta.cluster_id
        self.directory_id = meta.directory_id
        # The id of the metadata log that this broker follows; None: not known yet.
        self.metadata_incarnation_id = meta.metadata_incarnation_id
        self.restart_class = RestartClass.POWER
        # The broker epoch in the marker of a clean stop; -1 without a marker.
        self.previous_broker_epoch = BrokerEpoch(-1)
        self.recent = RecentAppends(recent_bytes_max)
        self.health = DirectoryHealth()
        self.flush_total_bytes_max = FLUSH_TOTAL_BYTES_MAX
        self.on_failure: Callable[[StorageFailed], None] | None = None
        self.room_bytes_min = ROOM_BYTES_MIN
        self.due = UpkeepDue()
        self._storage = storage
        self._lock: File | None = lock
        self._boot_id = boot_id
        self._markers = RestartMarkers(storage, path)
        self._checkpoints = Checkpoints(storage, path)
        self._lower = self._checkpoints.lower  # one bound method, which all logs share
        self._logs: dict[tuple[TopicId, PartitionIndex], PartitionLog] = {}
        self.strays = Strays(storage, path)
        self._departures = Departures(storage, path)
        # Damage marks of logs that have lost bytes. They are deleted when the controller knows of the loss.
        self._damage_marks: list[Path] = []
        # The paths of `stray.json` in restored logs. These files are deleted after the next checkpoint.
        self._returned: list[Path] = []
        self.health.on_failure = self._failed
        storage.open_files.on_sync_failed = partial(self.health.fail, f"syncing a log in {path}")

    @staticmethod
    def format(
        path: Path, *, cluster_id: ClusterId, node_id: BrokerId, storage: Storage | None = None
    ) -> DirectoryId:
        """Write meta.properties. It is no error if the file exists for the same cluster and node.

        Raises DirectoryRefused for a directory of another cluster or node.
        """
        return format_directory(
            storage or DiskStorage(), path, cluster_id=cluster_id, node_id=node_id
        )

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        cluster_id: ClusterId,
        node_id: BrokerId,
        incarnation: IncarnationId,
        storage: Storage | None = None,
        boot_id: str | None = None,
        recent_bytes_max: int = RECENT_BYTES_MAX,
    ) -> LogDirectory:
        """Lock the directory, check its identity, determine the restart class, and write the running marker (blocks).

        Raises DirectoryRefused if another process has locked it (the message has the pid), or if it belongs to another
        cluster or node or was never formatted. Raises OSError when the disk fails.
        """
        storage = storage or DiskStorage()
        if not storage.exists(path):
            raise DirectoryRefused(f"{path} does not exist: run `odradek storage format` first")
        lock = take_lock(storage, path)
        try:
            meta = checked_meta(storage, path, cluster_id=cluster_id, node_id=node_id)
            sync_name(storage, path)
            directory = cls(
                path=path,
                storage=storage,
                lock=lock,
                meta=meta,
                boot_id=boot_id if boot_id is not None else BOOT_ID_PATH.read_text().strip(),
                recent_bytes_max=recent_bytes_max,
            )
            directory.restart_class, directory.previous_broker_epoch = directory._markers.begin(
                boot_id=directory._boot_id, lock_inode=lock.inode(), incarnation=incarnation
            )
        except BaseException:
            lock.close()
            raise
        return directory

    def loss_reported(self) -> OSError | None:
        """Record that the controller has committed a registration with this `restart_class` (blocks; run it on a disk
        thread).

        If the process is killed before this call, the restart class of the next start is no better than this one. On a
        full disk nothing is recorded, the error is returned, and the next start reports the same loss again. Raises
        StorageFailed."""
        try:
            self._markers.loss_reported()
        except OSError as error:
            if error_class(error) is ErrorClass.DISK:
                raise self.health.fail(
                    f"saving the broker's registration in {self.path}", error
                ) from error
            return error
        marks, self._damage_marks = self._damage_marks, []
        for mark in marks:
            # If the removal fails, the next start verifies the log again.
            with contextlib.suppress(OSError):
                self._storage.remove(mark)
        return None

    def follow_metadata(self, incarnation_id: MetadataIncarnationId) -> None:
        """Store durably the id of the metadata log that this broker follows (blocks; run it on a disk thread). Raises
        StorageFailed.
        """
        try:
            adopt_metadata(self._storage, self.path, incarnation_id)
        except OSError as error:
            raise self.health.fail(
                f"storing the metadata log's id in {self.path}", error
            ) from error
        self.metadata_incarnation_id = incarnation_id

    def load(
        self,
        config_of: Callable[[TopicName, TopicId], LogConfig] | None = None,
        *,
        on_progress: Callable[[int, int], None] | None = None,
        threads_max: int = 2,
    ) -> LoadReport:
        """Open every partition and recover its log above the recovery point (blocks; run it on a disk thread).

        `on_progress(done, of)` is called from threads. Raises StorageFailed when the disk fails.
        """
        loading = DirectoryLoad(
            storage=self._storage,
            path=self.path,
            health=self.health,
            restart_class=self.restart_class,
            recovery_points=self._checkpoints.recovery_points,
            high_watermarks=self._checkpoints.high_watermarks,
            log_starts=self._checkpoints.log_starts,
            strays=self.strays,
        )
        cleaned = self._checkpoints.cleaned.read()
        log_starts = self._checkpoints.log_starts.read()

        def add(location: FoundPartition, loaded: LoadedLog) -> None:
            end = Offset(loaded.segments[-1].end_offset)
            if log_starts.get(location.id, 0) > end:
                # The records at the end of the log were lost. The checkpoints are lowered so that the next start keeps
                # the records that will get the same offsets.
                self._lower_checkpoints(location.id, end)
            # Unless the last stop was clean, a partition's directory may never have been synced.
            self._add(
                location,
                config_of(location.topic, location.id.topic_id) if config_of else LogConfig(),
                loaded,
                is_new=self.restart_class is not RestartClass.CLEAN,
                cleaned_offset=cleaned.get(location.id, Offset(0)),
            )

        report = loading.run(add, on_progress=on_progress, threads_max=threads_max)
        for deleted in loading.deleted:
            self._departures.add(deleted)
        self._returned += loading.returned
        self._damage_marks = loading.damage_marks
        return report

    def _lower_checkpoints(self, partition: TopicIdPartition, offset: Offset) -> None:
        try:
            self._checkpoints.lower(partition, offset)
        except OSError as error:
            raise self.health.fail(f"lowering the checkpoints in {self.path}", error) from error

    def _add(
        self,
        location: FoundPartition,
        config: LogConfig,
        loaded: LoadedLog,
        *,
        is_new: bool,
        cleaned_offset: Offset,
    ) -> PartitionLog:
        log = PartitionLog(
            storage=self._storage,
            health=self.health,
            recent=self.recent,
            directory=location.path,
            topic=location.topic,
            id_=location.id,
            config=config,
            loaded=loaded,
            lower_checkpoints=self._lower,
            is_new=is_new,
            due=self.due,
            cleaned_offset=cleaned_offset,
        )
        self.due.checkpoint = True
        self._logs[log.key] = log
        return log

    @property
    def failure(self) -> StorageFailed | None:
        """The error that took the directory offline; None if it is online."""
        return self.health.failure

    def get(self, topic_id: TopicId, partition: PartitionIndex) -> PartitionLog | None:
        return self._logs.get((topic_id, partition))

    def logs(self) -> Iterable[PartitionLog]:
        """Return all logs. The caller must not create or delete logs while it iterates."""
        return self._logs.values()

    def create(
        self, topic: TopicName, topic_id: TopicId, partition: PartitionIndex, config: LogConfig
    ) -> PartitionLog:
        """Create an empty log with a few system calls. The log is not durable until its first sync.

        Raises StorageFailed. An earlier topic of the same name must have been deleted; if its directory could not be
        renamed at that time, the rename is tried again.
        """
        self.health.check_room()
        key = (topic_id, partition)
        assert key not in self._logs, key
        path = self.path / f"{topic}-{partition}"
        try:
            self._storage.require_room_for_partition()
            self.strays.make_way(path)
            self._departures.make_way(path)
            self._checkpoints.enter(TopicIdPartition(topic_id, partition))
        except OSError as error:
            raise self.health.fail_to_write(f"creating {path}", error) from error
        try:
            self._storage.make_directory(path)
            create_metadata(self._storage, path, topic_id)
            segment = Segment(self._storage, path, 0)
            segment.create()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._storage.remove_tree(path)
            raise self.health.fail_to_write(f"creating {path}", error) from error
        loaded = LoadedLog(
            segments=[segment],
            epochs=LeaderEpochs(),
            producers=ProducerStates(),
            snapshot_offsets=[],
            log_start_offset=Offset(0),
            high_watermark=Offset(0),
            recovery_point=Offset(0),
            recovery_position=0,
        )
        location = FoundPartition(path, topic, TopicIdPartition(topic_id, partition))
        return self._add(location, config, loaded, is_new=True, cleaned_offset=Offset(0))

    def recover(self, log: PartitionLog) -> LoadedLog | None:
        """Recover a log whose truncation failed half-way because the disk was full (blocks; run it on a disk thread).

        The recovery is the same as after a crash. `log` must not be used any more. Return None if the partition was
        deleted during the call. Raises StorageFailed.
        """
        log.close()
        recovery = Recovery(
            storage=self._storage,
            directory=log.directory,
            recovery_point=self._checkpoints.recovery_points.get(log.id),
            high_watermark=log.high_watermark,
            log_start_offset=log.log_start_offset,
            is_clean=False,
            is_power_loss=False,
        )
        try:
            return recovery.run()
        except OSError as error:
            if self.get(log.topic_id, log.partition) is not log:
                return None
            raise self.health.fail_to_write(f"opening {log.directory}", error) from error

    def replace(self, log: PartitionLog, loaded: LoadedLog) -> PartitionLog:
        """Replace `log` by the result of `recover`."""
        assert self.get(log.topic_id, log.partition) is log, log.id
        location = FoundPartition(log.directory, log.topic, log.id)
        return self._add(
            location, log.config, loaded, is_new=True, cleaned_offset=log.cleaned_offset
        )

    def delete(self, topic_id: TopicId, partition: PartitionIndex) -> None:
        """Delete a partition: its directory is renamed, and `take_removals` returns the directory for removal later.

        Its log must not be used afterwards. It is no error if the partition has no log. Raises StorageFailed if the
        disk fails; after any other error of the rename the partition is deleted nevertheless.
        """
        self.health.check()
        log = self._logs.pop((topic_id, partition), None)
        self.due.checkpoint = True
        if log is None:
            return
        log.retire_all()
        self._checkpoints.leave(log.id)
        with self.health.failing(f"deleting {log.directory}"):
            self._departures.delete(log.directory, log.id)

    def put_aside(
        self, topic_id: TopicId, partition: PartitionIndex, *, reason: str, now_ms: int
    ) -> Stray | None:
        """Rename the log of a partition that the metadata does not assign to this broker, and keep it for an operator.

        In all other respects this is like `delete`; directory/strays.py has the details. Return None if there is no
        such log. The caller must run `strays.sync` with the result on a disk thread.
        """
        self.health.check()
        log = self._logs.pop((topic_id, partition), None)
        self.due.checkpoint = True
        if log is None:
            return None
        log.retire_all()
        self._checkpoints.leave(log.id)
        stray = Stray(
            name=departed_name(log.id, STRAY_SUFFIX),
            topic=log.topic,
            topic_id=uuid_text(topic_id),
            partition=partition,
            reason=reason,
            since_ms=now_ms,
            size_bytes=log.size_bytes,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            recovery_point=log.recovery_point,
            log_end_offset=log.stored_end_offset,
        )
        with self.health.failing(f"putting {log.directory} aside"):
            self.strays.put_aside(log.directory, stray)
        return stray

    def remove_stray(self, stray: Stray) -> None:
        """Delete a stray; `take_removals` returns its directory for removal. Raises StorageFailed."""
        with self.health.writing(f"deleting {self.path / stray.name}"):
            self._departures.add(self.strays.remove(stray))

    def begin_return(self, stray: Stray, topic: TopicName) -> StrayReturn:
        """Return a job that opens a stray's log, because the metadata assigns its partition to this broker again.
        Raises StorageFailed.
        """
        self.health.check_room()
        assert stray.id is not None, stray
        assert (stray.id.topic_id, stray.id.partition) not in self._logs, stray
        path = self.path / f"{topic}-{stray.id.partition}"
        with self.health.writing(f"bringing {self.path / stray.name} back"):
            if path.name != stray.name:
                self.strays.make_way(path)
                self._departures.make_way(path)
            self.strays.bring_back(stray, path)
        return StrayReturn(self._storage, FoundPartition(path, topic, stray.id), stray)

    def finish_return(self, job: StrayReturn, config: LogConfig) -> PartitionLog:
        """Add the log of a stray whose job has run. If this raises StorageFailed, the log is a stray again."""
        if job.error is not None:
            self.strays.keep(job.stray, job.found.path)
            operation = f"opening {job.found.path}"
            raise self.health.fail_to_write(operation, job.error) from job.error
        assert job.loaded is not None, job.found
        self._returned.append(job.found.path / STRAY_FILE)
        return self._add(job.found, config, job.loaded, is_new=True, cleaned_offset=Offset(0))

    def take_removals(self) -> list[Path]:
        """Return directories of deleted partitions; the caller runs `remove_tree` of each on a disk thread."""
        return self._departures.take()

    def remove_tree(self, path: Path) -> None:
        """Remove a directory from `take_removals` (blocks, perhaps for long). If it raises OSError, only disk space is
        wasted, and `take_removals` returns the directory again.
        """
        self._departures.remove(path)

    @property
    def size_bytes(self) -> int:
        """The size of all logs, without indexes."""
        return sum(log.size_bytes for log in self._logs.values())

    @property
    def full(self) -> StorageFull | None:
        """The error because of which the directory is read-only; None if it is writable."""
        return self.health.full

    def look_for_room(self) -> bool:
        """Return whether a directory whose disk was full has enough free space again. This makes a system call."""
        return self.free_bytes() >= self.room_bytes_min

    def free_bytes(self) -> int:
        """Return the free bytes of the file system. This makes a system call."""
        return self._storage.free_bytes(self.path)

    def begin_checkpoint(self) -> CheckpointJob:
        """Return a job that writes the offset checkpoints; the caller runs it on a disk thread, about every 5 s.

        Must not be called before the controller accepted the registration that reports `LoadReport.power_loss`: until
        then, the next start must find the old files, which show the loss.
        """
        self.due.checkpoint = False
        return self._checkpoints.begin(list(self._logs.values()))

    def finish_checkpoint(self, job: CheckpointJob) -> None:
        """Apply the result of a checkpoint job that has run. Raises StorageFailed if the job failed."""
        if job.error is not None or job.is_outdated:
            self.due.checkpoint = True
        if job.error is not None:
            operation = f"writing checkpoints of {self.path}"
            raise self.health.fail_to_write(operation, job.error) from job.error
        returned, self._returned = self._returned, []
        for path in returned:
            # If the removal fails, the next start removes the file.
            with contextlib.suppress(OSError):
                self._storage.remove(path)

    def due_flushes(self, *, now_ms: int) -> Generator[None, None, list[PartitionLog]]:
        """Return the logs of this directory that need a full sync, as the function `due_flushes` does.

        While most of the files that logs keep open are unsynced (`is_crowded`), every unsynced log counts as due. This
        generator yields after every `LOGS_PER_STEP` logs, so that the caller can let the event loop run other work.
        """
        unsynced: list[tuple[int, PartitionLog]] = []
        for number, key in enumerate(list(self.due.unflushed), 1):
            log = self._logs.get((key.topic_id, key.partition))
            if log is not None and log.recovery_point < log.stored_end_offset:
                unsynced.append((log.unsynced_bytes, log))
            elif log is None or log.unsynced_since_ms is None:
                self.due.unflushed.pop(key, None)
            if number % LOGS_PER_STEP == 0:
                yield
        total_bytes_max = 0 if self.is_crowded else self.flush_total_bytes_max
        return due_flushes(unsynced, now_ms=now_ms, total_bytes_max=total_bytes_max)

    @property
    def is_crowded(self) -> bool:
        """Whether most of the files that logs may keep open have unsynced bytes, so that opening a file may wait for a
        sync.
        """
        return self._storage.open_files.is_crowded

    def close(self, *, broker_epoch: BrokerEpoch | None) -> bool:
        """Sync all logs, write the checkpoints, and write the clean marker last (blocks; run it on a disk thread).

        Return whether the clean marker was written. Sync jobs that were begun need not be finished; during a truncation
        no clean marker is written. The lock is always released, also when this raises StorageFailed. Without a broker
        epoch, or if the directory is offline already, only close the files and release the lock."""
        is_whole = False
        try:
            if self.health.failure is None and broker_epoch is not None:
                is_whole = self._sync_all()
                for stray in self.strays:
                    if not stray.is_synced:
                        with self.health.writing(f"syncing {self.path / stray.name}"):
                            self.strays.sync(stray)
                checkpoint = self.begin_checkpoint()
                checkpoint.run()
                self.finish_checkpoint(checkpoint)
                try:
                    if is_whole:
                        self._markers.end_clean(boot_id=self._boot_id, broker_epoch=broker_epoch)
                except OSError as error:
                    raise self.health.fail_to_write(
                        f"writing the clean marker in {self.path}", error
                    ) from error
            return is_whole
        finally:
            for log in self._logs.values():
                log.close()
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def _sync_all(self) -> bool:
        """Run a full sync of each log, several at a time, so that the disk has no idle time between them."""
        logs = list(self._logs.values())
        with ThreadPoolExecutor(SYNCS_AT_CLOSE_MAX, thread_name_prefix="log-close") as pool:
            return all(list(pool.map(PartitionLog.sync_at_close, logs)))

    def _failed(self, failure: StorageFailed) -> None:
        self._markers.fail()
        if self.on_failure is not None:
            self.on_failure(failure)


FLUSH_BYTES_MAX: Final = 64 << 20  # a log with this many unsynced bytes is synced
FLUSH_AGE_MS_MAX: Final = 60_000
# While all logs together have more unsynced bytes than this, logs are synced. This bounds what a restart has to scan.
FLUSH_TOTAL_BYTES_MAX: Final = 2 << 30
FLUSHES_AT_ONCE_MAX: Final = 64
LOGS_PER_STEP: Final = 500


def due_flushes(
    unsynced: Sequence[tuple[int, PartitionLog]], *, now_ms: int, total_bytes_max: int
) -> list[PartitionLog]:
    """Return the logs that need a full sync, because of their unsynced bytes or their age; at most FLUSHES_AT_ONCE_MAX.

    `unsynced` has pairs (number of unsynced bytes, log). In the result, the log with the most unsynced bytes is the
    first. The caller should begin each sync (`begin_sync(full=True)`) only when a thread is free for it, because a
    running sync delays the syncs for producers to topics with `durability=fsync`.
    """
    total_bytes = sum(unsynced_bytes for unsynced_bytes, _ in unsynced)
    due: list[PartitionLog] = []
    for unsynced_bytes, log in sorted(unsynced, key=itemgetter(0), reverse=True):
        since_ms = log.unsynced_since_ms
        is_old = since_ms is not None and now_ms - since_ms >= FLUSH_AGE_MS_MAX
        is_big = unsynced_bytes >= FLUSH_BYTES_MAX or total_bytes >= total_bytes_max
        if (is_old or is_big) and len(due) < FLUSHES_AT_ONCE_MAX:
            due.append(log)
            total_bytes -= unsynced_bytes
    return due
