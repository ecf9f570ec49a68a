"""SyncGroup: the leader brings the assignment, everyone gets theirs."""

from __future__ import annotations

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import Synced, SyncGroup
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_protocol.access import Operation
from odradek_protocol.identity import GroupId, MemberId
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message, SyncGroupResponse


@handles(ApiKey.SYNC_GROUP, needs=has_groups)
async def sync_group(request: Request) -> Message:
    """See the module."""
    message = request.message
    if not request.allows_group(Operation.READ, message.group_id):
        return _response(Synced(error=ErrorCode.GROUP_AUTHORIZATION_FAILED))
    named = request.version >= 5
    sync = SyncGroup(
        group_id=GroupId(message.group_id),
        generation=message.generation_id,
        member_id=MemberId(message.member_id),
        instance_id=message.group_instance_id if request.version >= 3 else None,
        protocol_type=message.protocol_type if named else None,
        protocol=message.protocol_name if named else None,
        assignments={MemberId(a.member_id): bytes(a.assignment) for a in message.assignments},
    )
    try:
        return _response(await coordinator(request).sync(sync))
    except CoordinatorError as error:
        return _response(Synced(error=error.code))


def _response(synced: Synced) -> Message:
    return SyncGroupResponse(
        error_code=synced.error,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )
