"""Consumer groups over Kafka's protocol: each request a file; the deciding is in odradek_broker.groups."""

from __future__ import annotations

from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import GroupDescription
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.services import Services
from odradek_protocol.access import Operation
from odradek_protocol.identity import GroupId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import GROUP_VERSION


def has_groups(services: Services) -> bool:
    """Whether this broker coordinates groups at all."""
    return services.groups is not None


def has_consumer_protocol(request: Request) -> bool:
    """Whether the cluster's level of group.version lets members speak it (KIP-848)."""
    return request.services.image.feature_level(GROUP_VERSION) >= 1


def coordinator(request: Request) -> GroupCoordinator:
    """The broker's group coordinator."""
    found = request.services.groups
    assert isinstance(found, GroupCoordinator), f"groups is {found!r}"
    return found


async def describe(
    request: Request, group_id: str, group_type: str
) -> GroupDescription | tuple[ErrorCode, str]:
    """A group of that type, or the error and its text for one that may not be seen or is not there."""
    if not request.allows_group(Operation.DESCRIBE, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED, ""
    try:
        group = await coordinator(request).describe(GroupId(group_id))
    except CoordinatorError as error:
        return error.code, ""
    if group.error is ErrorCode.NONE and group.group_type == group_type:
        return group
    return ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
