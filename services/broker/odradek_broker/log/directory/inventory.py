"""What lies in a broker's data directory, for those who describe it to clients."""

from __future__ import annotations

import os
from collections.abc import Sequence

from odradek_broker.kafka.services import LocalLog
from odradek_broker.log.directory.strays import Strays
from odradek_broker.replication.partition_table import PartitionTable


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
