"""The gRPC services of a broker: which of them clients see, and which only brokers."""

from __future__ import annotations

import grpc.aio

from odradek_broker.access.quotas import Quotas
from odradek_broker.broker_configs import describe_broker
from odradek_broker.context import BrokerContext
from odradek_broker.log.directory.inventory import DirectoryInventory
from odradek_broker.replication.partition_table import PartitionTable
from odradek_broker.rpc.listeners import GrpcListeners
from odradek_broker.rpc.servicers import (
    admin_servicer,
    broker_servicer,
    group_servicer,
    replication_servicer,
)


def add_services(
    listeners: GrpcListeners, context: BrokerContext, table: PartitionTable, *, quotas: Quotas
) -> None:
    """Register all servicers with the bound listeners, before these start."""
    settings, partitions = context.settings, context.partitions
    broker = broker_servicer.BrokerServicer(
        cluster_id=context.cluster_id,
        service=partitions,
        controllers=context.controllers,
        producer_ids=context.producer_ids,
        topic_creation=context.topic_creation,
        quotas=quotas,
    )
    admin = admin_servicer.AdminServicer(
        broker_id=context.broker_id,
        service=partitions,
        controllers=context.controllers,
        peers=context.peers,
        describe_broker=lambda one: describe_broker(settings, partitions.image, one),
        inventory=DirectoryInventory(table, str(settings.log_dir)),
    )
    group = group_servicer.GroupServicer(
        broker_id=context.broker_id,
        coordinator=context.groups,
        partitions=partitions,
        peers=context.peers,
    )
    replication = replication_servicer.ReplicationServicer(
        cluster_id=context.cluster_id,
        table=table,
        partition_bytes_max=settings.replica_fetch_bytes_max,
        message_bytes_max=settings.replica_fetch_response_bytes_max,
        is_mutual_tls=context.tls is not None,
    )

    def for_clients(server: grpc.aio.Server) -> list[str]:
        return [
            broker_servicer.add_to(server, broker),
            admin_servicer.add_to(server, admin),
            group_servicer.add_to(server, group),
        ]

    def for_brokers(server: grpc.aio.Server) -> None:
        admin_servicer.add_to(server, admin)
        group_servicer.add_to(server, group)
        replication_servicer.add_to(server, replication)

    listeners.add(for_clients, for_brokers)
