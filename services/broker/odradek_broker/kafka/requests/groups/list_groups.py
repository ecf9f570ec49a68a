"""ListGroups: the groups that this broker coordinates; clients ask every broker."""

from __future__ import annotations

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.messages import ListGroupsResponse, Message


@handles(ApiKey.LIST_GROUPS, needs=has_groups)
async def list_groups(request: Request) -> Message:
    """Filtered by state and type where the version has filters; names compare without case."""
    message = request.message
    states = {one.lower() for one in message.states_filter or ()} if request.version >= 4 else set()
    types = {one.lower() for one in message.types_filter or ()} if request.version >= 5 else set()
    try:
        listings = coordinator(request).listings()
    except CoordinatorError as error:
        return ListGroupsResponse(error_code=error.code, groups=[])
    sees_all = request.sees_cluster(Operation.DESCRIBE)
    return ListGroupsResponse(
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=one.group_id,
                protocol_type=one.protocol_type,
                group_state=one.state,
                group_type=one.group_type,
            )
            async for one in request.in_turns(listings)
            if (not states or one.state.lower() in states)
            and (not types or one.group_type.lower() in types)
            and (sees_all or request.sees(Operation.DESCRIBE, ResourceType.GROUP, one.group_id))
        ]
    )
