"""The broker's data directory: opened and locked at the start, synced and marked clean at the stop."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from typing import Final

from odradek_broker.host_plan import ID
from odradek_broker.kafka.services import LocalLog
from odradek_broker.log.directory.strays import Strays
from odradek_broker.log.log_directory import DirectoryRefused, LogDirectory
from odradek_broker.log.storage import StorageFailed
from odradek_broker.replication.disk.disk_pool import Pool
from odradek_broker.replication.partition_table import PartitionTable
from odradek_broker.settings import BrokerSettings
from odradek_protocol.identity import BrokerEpoch, BrokerId, ClusterId, IncarnationId
from odradek_runtime.lifecycle import ProcessRefused, bounded
from odradek_runtime.logs import event_log
from odradek_runtime.open_files import descriptors_wanted

# How long a stop may sync logs. The Kubernetes manifests allow 90 s for the whole stop.
_SYNC_S_MAX: Final = 60.0
_log = event_log(__name__)


def open_data_directory(
    settings: BrokerSettings, *, broker_id: BrokerId, incarnation: IncarnationId
) -> LogDirectory:
    """Lock the directory, format it for this broker if it is empty, and find out whether the last shutdown was clean.

    Raises:
        ProcessRefused: the directory belongs to another broker or cannot be used, or cluster.id is not set.
    """
    if not settings.cluster_id:
        raise ProcessRefused(
            "cluster.id is not set: set it to the id that `odradek storage format` printed, or that"
            " `odradek cluster info` shows for a running cluster"
        )
    if ID in str(settings.log_dir):
        raise ProcessRefused(
            f"log.dirs={settings.log_dir} contains {ID}, which only `odradek broker --processes N` replaces by the id"
            " of each process: start the broker with --processes, or set log.dirs to the directory of this broker"
        )
    cluster_id = ClusterId(settings.cluster_id)
    try:
        settings.log_dir.mkdir(parents=True, exist_ok=True)
        LogDirectory.format(settings.log_dir, cluster_id=cluster_id, node_id=broker_id)
        return LogDirectory.open(
            settings.log_dir, cluster_id=cluster_id, node_id=broker_id, incarnation=incarnation
        )
    except DirectoryRefused as refused:
        raise ProcessRefused(str(refused)) from None
    except OSError as error:
        raise ProcessRefused(
            f"the data directory {settings.log_dir} cannot be used: {error.strerror}"
        ) from None


def warn_of_few_descriptors(directory: LogDirectory, settings: BrokerSettings) -> None:
    """Log a warning if the limit of open files is lower than the number that connections and logs may need."""
    partitions = sum(1 for _ in directory.logs())
    needed = descriptors_wanted(partitions=partitions, connections_max=settings.connections_max)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit < needed:
        _log.warning(
            "Limit of open files is lower than the number that partitions and connections may need",
            limit=limit,
            needed=needed,
            partitions=partitions,
            remedy="raise the limit (ulimit -n, LimitNOFILE of systemd), or lower max.connections",
        )


async def close_data_directory(
    directory: LogDirectory, pool: Pool, *, broker_epoch: BrokerEpoch | None
) -> None:
    """Sync the logs and write the clean-shutdown marker. If `broker_epoch` is None, the stop is not clean, and no
    marker is written.

    The sync may take up to a minute. No client waits for the sync, because the leaderships have moved to other brokers.
    Without the sync, the next start would have to scan the unsynced bytes.
    """
    is_clean = False

    async def close() -> None:
        nonlocal is_clean
        await pool.idle()
        is_clean = await pool.call(lambda: directory.close(broker_epoch=broker_epoch))

    unsynced_bytes = sum(log.unsynced_bytes for log in directory.logs())
    try:
        await bounded(close(), _SYNC_S_MAX, "the sync of the logs")
    except StorageFailed as failure:
        _log.error(
            "Failed to write the clean-shutdown marker; the next start recovers the logs",
            reason=str(failure),
        )
    else:
        _log.info("Stopped", clean=is_clean, unsynced_bytes=0 if is_clean else unsynced_bytes)


class DirectoryInventory:
    """Reports the logs and the free space of the data directory. Implements LogInventory."""

    def __init__(self, table: PartitionTable, path: str) -> None:
        self.path = path
        self._table = table

    def local_logs(self) -> Sequence[LocalLog]:
        """Return the logs of this broker, in no particular order."""
        return [
            LocalLog(
                topic_id=host.partition.topic_id,
                partition=host.partition.partition,
                size_bytes=host.log.size_bytes,
            )
            for host in self._table.by_id.values()
        ]

    def disk_bytes(self) -> tuple[int, int]:
        """Return the total and the usable bytes of the volume, or (-1, -1) if they are unknown."""
        try:
            stats = os.statvfs(self.path)
        except OSError:
            return -1, -1
        return stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize

    @property
    def offline_reason(self) -> str:
        """The error that took the directory offline until the broker restarts; "" while it is online."""
        return self._table.offline_reason

    @property
    def full_reason(self) -> str:
        """The error because of which writes are refused at present; "" while they are accepted."""
        return self._table.full_reason

    @property
    def strays(self) -> Strays:
        """The logs in the directory whose partitions the metadata does not assign to this broker."""
        return self._table.strays.kept
