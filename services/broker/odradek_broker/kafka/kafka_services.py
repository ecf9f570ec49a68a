"""What the Kafka listeners get of a broker: its context, as their handlers' `Services`."""

from __future__ import annotations

from odradek_broker.access.authorizer import Authorizer
from odradek_broker.access.quotas import Quotas
from odradek_broker.context import BrokerContext
from odradek_broker.kafka.services import Services
from odradek_broker.log.directory.inventory import DirectoryInventory
from odradek_broker.replication.partition_table import PartitionTable
from odradek_runtime.budget.client_budget import ClientBudget


def kafka_services(
    context: BrokerContext,
    table: PartitionTable,
    *,
    authorizer: Authorizer,
    quotas: Quotas,
    budget: ClientBudget,
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
        budget=budget,
        groups=context.groups,
    )
