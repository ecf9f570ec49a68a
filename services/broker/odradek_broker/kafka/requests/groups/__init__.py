"""Kafka requests about consumer groups.

`odradek_broker.groups` has the state machines that decide about these requests, and `odradek_broker.coordination` runs
the state machines.
"""

from __future__ import annotations

from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import GroupDescription
from odradek_broker.kafka.request import AnyRequest
from odradek_broker.kafka.services import Services
from odradek_protocol.access import Operation
from odradek_protocol.identity import GroupId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import GROUP_VERSION


def has_groups(services: Services) -> bool:
    """Return whether this broker has a group coordinator."""
    return services.groups is not None


def has_consumer_protocol(request: AnyRequest) -> bool:
    """Return whether the level of the feature group.version allows the consumer protocol (KIP-848)."""
    return request.services.image.feature_level(GROUP_VERSION) >= 1


def coordinator(request: AnyRequest) -> GroupCoordinator:
    """Return the broker's group coordinator. Handlers that call this must declare `needs=has_groups`."""
    groups = request.services.groups
    assert groups is not None, "this broker coordinates no groups"
    return groups


async def describe(
    request: AnyRequest, group_id: str, group_type: str
) -> GroupDescription | tuple[ErrorCode, str]:
    """Return the group if it has this type. Otherwise return an error code and a text."""
    if not request.allows_group(Operation.DESCRIBE, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED, ""
    try:
        group = await coordinator(request).describe(GroupId(group_id))
    except CoordinatorError as error:
        return error.code, ""
    if group.error is ErrorCode.NONE and group.group_type == group_type:
        return group
    return ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
