"""Consumer groups over Kafka's protocol: each request a file; the deciding is in odradek_broker.groups."""

from __future__ import annotations

from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.kafka_api.request import Request
from odradek_broker.kafka_api.services import Services


def has_groups(services: Services) -> bool:
    """Whether this broker coordinates groups at all."""
    return services.groups is not None


def coordinator(request: Request) -> GroupCoordinator:
    """The broker's group coordinator."""
    found = request.services.groups
    assert isinstance(found, GroupCoordinator), f"groups is {found!r}"
    return found
