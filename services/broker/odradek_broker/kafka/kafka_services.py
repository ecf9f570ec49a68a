"""What the handlers of the Kafka listeners get of a broker: their `Services`."""

from __future__ import annotations

from odradek_broker.access.authorizer import Authorizer
from odradek_broker.access.quotas import Quotas
from odradek_broker.broker import Broker
from odradek_broker.data_directory import DirectoryInventory
from odradek_broker.kafka.services import Services
from odradek_runtime.budget.client_budget import ClientBudget


def kafka_services(
    broker: Broker,
    *,
    authorizer: Authorizer,
    quotas: Quotas,
    budget: ClientBudget,
) -> Services:
    """Return the services of this broker's Kafka handlers."""
    settings = broker.settings
    return Services(
        settings=settings,
        broker_id=broker.broker_id,
        cluster_id=broker.cluster_id,
        partitions=broker.partitions,
        controllers=broker.controllers,
        producer_ids=broker.producer_ids,
        topic_creation=broker.topic_creation,
        inventory=DirectoryInventory(broker.table, str(settings.log_dir)),
        authorizer=authorizer,
        quotas=quotas,
        budget=budget,
        groups=broker.groups,
    )
