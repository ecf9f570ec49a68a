"""How a broker takes its data directory when it starts, and leaves it when it stops."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from typing import Final

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

_SYNC_S_MAX: Final = 60.0  # when it stops; our manifests let Kubernetes wait for 90 s
_log = event_log(__name__)


def open_data_directory(
    settings: BrokerSettings, *, broker_id: BrokerId, incarnation: IncarnationId
) -> LogDirectory:
    """Lock it, make it this broker's if it is new, and judge its last life.

    Raises:
        ProcessRefused: it is another's, or cannot be used; no cluster is told.
    """
    if not settings.cluster_id:
        raise ProcessRefused(
            "cluster.id is not set: take the one that `odradek storage format` printed, or that"
            " `odradek cluster info` tells of a running cluster"
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
    """Say so if the limit of open files is less than these logs and all connections may need."""
    partitions = sum(1 for _ in directory.logs())
    wanted = descriptors_wanted(partitions=partitions, connections_max=settings.connections_max)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit < wanted:
        _log.warning(
            "The limit of open files is less than partitions and connections may need",
            limit=limit,
            wanted=wanted,
            partitions=partitions,
            remedy="raise it (ulimit -n, LimitNOFILE of systemd), or lower max.connections",
        )


async def close_data_directory(
    directory: LogDirectory, pool: Pool, *, broker_epoch: BrokerEpoch | None
) -> None:
    """Sync and mark; `broker_epoch` None: it is no clean end.

    Its leaderships are elsewhere by now: nobody waits but who starts it again, whom the sync saves the scan of as many
    bytes.
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
        _log.error("Could not stop cleanly", reason=str(failure))
    else:
        _log.info("Stopped", clean=is_clean, unsynced_bytes=0 if is_clean else unsynced_bytes)


class DirectoryInventory:
    """Implements LogInventory over the broker's partitions and its data directory."""

    def __init__(self, table: PartitionTable, path: str) -> None:
        self.path = path
        self._table = table

    def local_logs(self) -> Sequence[LocalLog]:
        """The logs, in no order."""
        return [
            LocalLog(
                topic_id=host.partition.topic_id,
                partition=host.partition.partition,
                size_bytes=host.log.size_bytes,
            )
            for host in self._table.by_id.values()
        ]

    def disk_bytes(self) -> tuple[int, int]:
        """(total, usable) of the volume; -1 when unknown."""
        try:
            stats = os.statvfs(self.path)
        except OSError:
            return -1, -1
        return stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize

    @property
    def offline_reason(self) -> str:
        """Why the directory is offline until the broker restarts; "" while it is not."""
        return self._table.offline_reason

    @property
    def full_reason(self) -> str:
        """Why nothing can be written for now; "" while writes are taken."""
        return self._table.full_reason

    @property
    def strays(self) -> Strays:
        """The logs in it that the metadata does not claim."""
        return self._table.strays.kept
