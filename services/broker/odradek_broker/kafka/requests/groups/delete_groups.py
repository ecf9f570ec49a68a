"""DeleteGroups: groups without members, and all that they committed."""

from __future__ import annotations

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_protocol.access import Operation
from odradek_protocol.identity import GroupId
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DeleteGroupsResponse, Message


@handles(ApiKey.DELETE_GROUPS, needs=has_groups)
async def delete_groups(request: Request) -> Message:
    """Each by itself."""
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.DeletableGroupResult(
                group_id=name, error_code=await _delete(request, name)
            )
            async for name in request.in_turns(request.message.groups_names)
        ]
    )


async def _delete(request: Request, name: str) -> ErrorCode:
    if not request.allows_group(Operation.DELETE, name):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    try:
        return await coordinator(request).delete_group(GroupId(name))
    except CoordinatorError as error:
        return error.code
