"""LeaveGroup: one member, or several by member or instance id from version 3 on."""

from __future__ import annotations

from typing import Final

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import LeaveGroup
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_protocol.access import Operation
from odradek_protocol.identity import GroupId, MemberId
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import LeaveGroupResponse, Message

_BATCHED_FROM: Final = 3


@handles(ApiKey.LEAVE_GROUP, needs=has_groups)
async def leave_group(request: Request) -> Message:
    """See the module."""
    message = request.message
    if not request.allows_group(Operation.READ, message.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, members=[])
    is_batched = request.version >= _BATCHED_FROM
    members: tuple[tuple[MemberId, str | None], ...] = (
        tuple((MemberId(m.member_id), m.group_instance_id) for m in message.members)
        if is_batched
        else ((MemberId(message.member_id), None),)
    )
    leave = LeaveGroup(group_id=GroupId(message.group_id), members=members)
    try:
        left = await coordinator(request).leave(leave)
    except CoordinatorError as error:
        return LeaveGroupResponse(error_code=error.code, members=[])
    if not is_batched:
        code = left.error or next((code for _, _, code in left.members), ErrorCode.NONE)
        return LeaveGroupResponse(error_code=code)
    return LeaveGroupResponse(
        error_code=left.error,
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=member_id, group_instance_id=instance_id, error_code=code
            )
            async for member_id, instance_id, code in request.in_turns(left.members)
        ],
    )
