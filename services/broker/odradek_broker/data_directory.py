"""How a broker takes its data directory when it starts, and leaves it when it stops."""

from __future__ import annotations

import resource
from typing import Final

from odradek_broker.log.log_directory import DirectoryRefused, LogDirectory
from odradek_broker.log.storage import StorageFailed
from odradek_broker.replication.disk.disk_pool import Pool
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
