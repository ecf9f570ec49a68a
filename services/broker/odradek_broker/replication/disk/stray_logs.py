"""Stray logs are logs without a replica in the metadata. The broker puts them aside, reports them, and restores them.

A log is deleted only because of a metadata record that this process saw committed. An image that only lacks a partition
may be the wrong image: the controllers may have started empty, or from an old backup. The log is then put aside
(log/directory/strays.py) until an operator removes it, the image has its replica on this broker again, or
`log.dir.stray.retention.ms` has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from odradek_broker.log.directory.strays import Stray, Strays
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_directory import LogDirectory
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.storage import StorageFailed
from odradek_broker.replication.disk.disk_pool import Pool
from odradek_protocol.identity import PartitionIndex, TopicId, TopicIdPartition, TopicName
from odradek_runtime.clock import Clock
from odradek_runtime.logs import event_log

NO_TOPIC: Final = "the metadata has no topic with this id"
NO_REPLICA: Final = "the metadata has no replica of the partition on this broker"
_NAMED_MAX: Final = 10
_log = event_log(__name__)


class StrayLogs:
    """The stray logs of one broker. Only the event loop uses this object."""

    def __init__(
        self,
        directory: LogDirectory,
        pool: Pool,
        *,
        on_failure: Callable[[StorageFailed], None],
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._pool = pool
        self._on_failure = on_failure
        self._clock = clock
        self._returning: set[TopicIdPartition] = set()

    @property
    def kept(self) -> Strays:
        """The stray logs that are in the directory now."""
        return self._directory.strays

    def begin(self) -> None:
        """Sync the stray logs that the last process could not sync, and log a list of all stray logs. Called once, at
        the start of the broker.
        """
        strays = tuple(self._directory.strays)
        for stray in strays:
            if not stray.is_synced:
                self._sync(stray)
        if strays:
            self._tell(
                strays, "Data directory contains stray logs, which no replica in the metadata uses"
            )

    def put_aside(self, logs: list[PartitionLog], reason: str) -> None:
        """Turn these logs into stray logs. The caller must not use them afterwards."""
        strays: list[Stray] = []
        for log in logs:
            try:
                stray = self._directory.put_aside(
                    log.topic_id, log.partition, reason=reason, now_ms=self._clock.wall_ms()
                )
            except StorageFailed as failure:
                self._on_failure(failure)
                break
            if stray is not None:
                strays.append(stray)
                self._sync(stray)
        if strays:
            self._tell(strays, f"Put logs aside as strays: {reason}")

    def remove_deleted(self, topic_ids: Container[TopicId]) -> None:
        """Delete the stray logs of these topics, because metadata records have deleted the topics."""
        for stray in self._directory.strays:
            if stray.id is not None and stray.id.topic_id in topic_ids:
                self._remove(stray)

    def find(self, topic_id: TopicId, partition: PartitionIndex) -> Stray | None:
        """Return the stray log of this partition; None if there is none."""
        return self._directory.strays.find(TopicIdPartition(topic_id, partition))

    def is_returning(self, topic_id: TopicId, partition: PartitionIndex) -> bool:
        """Return whether a stray log of this partition is being opened again."""
        return TopicIdPartition(topic_id, partition) in self._returning

    def bring_back(
        self,
        stray: Stray,
        topic: TopicName,
        config: LogConfig,
        on_done: Callable[[PartitionLog], None],
    ) -> None:
        """Open a stray log again, because the metadata has its replica again. `on_done` is called with the log when it
        is open.
        """
        partition = stray.id
        assert partition is not None, stray
        try:
            job = self._directory.begin_return(stray, topic)
        except StorageFailed as failure:
            self._on_failure(failure)
            return
        self._returning.add(partition)

        def done() -> None:
            self._returning.discard(partition)
            try:
                log = self._directory.finish_return(job, config)
            except StorageFailed as failure:
                self._on_failure(failure)
                return
            _log.warning(
                "Restored a stray log, because the metadata assigns its partition to this broker again",
                partition=f"{topic}-{partition.partition}",
                log_end_offset=log.log_end_offset,
                log_end_offset_before=stray.log_end_offset,
                damage=job.damage,
            )
            on_done(log)

        self._pool.run(job.run, done)

    def remove_expired(self, retention_ms: int, *, wall_ms: int) -> None:
        """Delete the stray logs that were put aside more than `retention_ms` ago. If `retention_ms` is -1,
        delete none.
        """
        self._directory.strays.forget_removed()
        expired = self._directory.strays.expired(now_ms=wall_ms, retention_ms=retention_ms)
        if not expired:
            return
        self._tell(expired, "Deleting stray logs that are older than log.dir.stray.retention.ms")
        for stray in expired:
            self._remove(stray)

    def _remove(self, stray: Stray) -> None:
        try:
            self._directory.remove_stray(stray)
        except StorageFailed as failure:
            self._on_failure(failure)

    def _sync(self, stray: Stray) -> None:
        failures: list[OSError] = []

        def work() -> None:
            try:
                self._directory.strays.sync(stray)
            except OSError as error:
                failures.append(error)

        def done() -> None:
            for error in failures:
                operation = f"syncing {self._directory.path / stray.name}"
                self._on_failure(self._directory.health.fail_to_write(operation, error))

        self._pool.run(work, done)

    def _tell(self, strays: tuple[Stray, ...] | list[Stray], event: str) -> None:
        _log.error(
            event,
            logs=len(strays),
            size_bytes=sum(stray.size_bytes for stray in strays),
            partitions=[f"{s.topic or '?'}-{s.partition}" for s in strays[:_NAMED_MAX]],
            remedy=f"see `odradek storage strays --data-dir {self._directory.path}`",
        )
