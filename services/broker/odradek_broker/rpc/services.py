"""Creates the gRPC services of a broker, and registers them on the listeners for clients and for brokers."""

from __future__ import annotations

import grpc.aio

from odradek_broker.access.quotas import Quotas
from odradek_broker.broker import Broker
from odradek_broker.data_directory import DirectoryInventory
from odradek_broker.rpc import (
    admin_servicer,
    broker_servicer,
    group_servicer,
    replication_servicer,
    staged_write_servicer,
    transaction_link_servicer,
    transaction_servicer,
)
from odradek_broker.rpc.admin_servicer import describe_broker
from odradek_broker.rpc.hanging_calls import HangingCalls
from odradek_broker.rpc.listeners import GrpcListeners
from odradek_runtime.grpc_endpoints import InternalChannels


def add_services(
    listeners: GrpcListeners,
    broker: Broker,
    *,
    peers: InternalChannels,
    quotas: Quotas,
    is_mutual_tls: bool,
) -> None:
    """Register all servicers with the bound listeners, before the listeners start."""
    settings, partitions = broker.settings, broker.partitions
    records = broker_servicer.BrokerServicer(
        cluster_id=broker.cluster_id,
        partitions=partitions,
        controllers=broker.controllers,
        producer_ids=broker.producer_ids,
        topic_creation=broker.topic_creation,
        quotas=quotas,
    )
    admin = admin_servicer.AdminServicer(
        broker_id=broker.broker_id,
        partitions=partitions,
        controllers=broker.controllers,
        peers=peers,
        describe_broker=lambda resource: describe_broker(settings, partitions.image, resource),
        inventory=DirectoryInventory(broker.table, str(settings.log_dir)),
    )
    group = group_servicer.GroupServicer(
        broker_id=broker.broker_id,
        coordinator=broker.groups,
        partitions=partitions,
        peers=peers,
    )
    replication = replication_servicer.ReplicationServicer(
        broker.followers, is_mutual_tls=is_mutual_tls
    )

    transactions = transaction_servicer.TransactionServicer(
        broker_id=broker.broker_id,
        coordinator=broker.transactions.coordinator,
        offsets=broker.transactions.offsets,
        groups=broker.groups.placement,
        hanging=HangingCalls(
            partitions=partitions,
            hanging=broker.hanging,
            incidents=broker.table.counters.transaction_incidents,
        ),
        partitions=partitions,
        peers=peers,
    )
    staged = staged_write_servicer.StagedWriteServicer(
        broker_id=broker.broker_id,
        coordinator=broker.transactions.coordinator,
        partitions=partitions,
        peers=peers,
    )
    links = transaction_link_servicer.TransactionLinkServicer(
        cluster_id=broker.cluster_id,
        coordinator=broker.transactions.coordinator,
        registrations=broker.transactions.registrations,
        markers=broker.transactions.markers,
        is_mutual_tls=is_mutual_tls,
    )

    def for_clients(server: grpc.aio.Server) -> list[str]:
        return [
            broker_servicer.add_to(server, records),
            admin_servicer.add_to(server, admin),
            group_servicer.add_to(server, group),
            transaction_servicer.add_to(server, transactions),
            staged_write_servicer.add_to(server, staged),
        ]

    def for_brokers(server: grpc.aio.Server) -> None:
        admin_servicer.add_to(server, admin)
        group_servicer.add_to(server, group)
        transaction_servicer.add_to(server, transactions)
        staged_write_servicer.add_to(server, staged)
        replication_servicer.add_to(server, replication)
        transaction_link_servicer.add_to(server, links)

    listeners.add(for_clients, for_brokers)
