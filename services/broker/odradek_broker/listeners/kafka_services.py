"""What the Kafka listeners get of a broker: its context, as their handlers' `Services`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from odradek_broker.context import BrokerContext
from odradek_broker.kafka_api.services import LocalLog, Services
from odradek_broker.quotas.quotas import Quotas
from odradek_broker.replication.partition_table import PartitionTable
from odradek_broker.security.authorizer import Authorizer


class DirectoryInventory:
    """The logs that this broker has; implements LogInventory."""

    def __init__(self, table: PartitionTable, directory: str) -> None:
        self._table = table
        self._directory = directory

    def local_logs(self) -> Sequence[LocalLog]:
        """See LogInventory."""
        return [
            LocalLog(
                topic_id=host.partition.topic_id,
                partition=host.partition.partition,
                size_bytes=host.log.size_bytes,
            )
            for host in self._table.by_id.values()
        ]

    def disk_bytes(self) -> tuple[int, int]:
        """See LogInventory."""
        try:
            stats = os.statvfs(self._directory)
        except OSError:
            return -1, -1
        return stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize

    @property
    def is_offline(self) -> bool:
        """See LogInventory."""
        return bool(self._table.offline_reason)


def kafka_services(
    context: BrokerContext, table: PartitionTable, *, authorizer: Authorizer, quotas: Quotas
) -> Services:
    """The services of this broker's Kafka handlers."""
    settings = context.settings
    return Services(
        settings=settings,
        broker_id=context.broker_id,
        cluster_id=context.cluster_id,
        partitions=context.partitions,
        controllers=context.controllers,
        producer_ids=context.producer_ids,
        topic_creation=context.topic_creation,
        inventory=DirectoryInventory(table, str(settings.log_dir)),
        authorizer=authorizer,
        quotas=quotas,
        groups=context.groups,
    )
