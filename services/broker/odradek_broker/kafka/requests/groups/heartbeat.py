"""Heartbeat of the classic protocol."""

from __future__ import annotations

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import Heartbeat
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_protocol.access import Operation
from odradek_protocol.identity import GroupId, MemberId
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import HeartbeatResponse, Message


@handles(ApiKey.HEARTBEAT, needs=has_groups)
async def heartbeat(request: Request) -> Message:
    """See the module."""
    message = request.message
    if not request.allows_group(Operation.READ, message.group_id):
        return HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    beat = Heartbeat(
        group_id=GroupId(message.group_id),
        generation=message.generation_id,
        member_id=MemberId(message.member_id),
        instance_id=message.group_instance_id if request.version >= 3 else None,
    )
    try:
        return HeartbeatResponse(error_code=await coordinator(request).heartbeat(beat))
    except CoordinatorError as error:
        return HeartbeatResponse(error_code=error.code)
