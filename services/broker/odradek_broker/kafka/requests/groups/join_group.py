"""JoinGroup: a member of the classic protocol wants in; answered when the rebalance is complete."""

from __future__ import annotations

import uuid
from typing import Final

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import Joined, JoinGroup
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_protocol.access import Operation
from odradek_protocol.identity import GroupId, MemberId
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import JoinGroupResponse, Message

CLIENT_ID_CHARACTERS_MAX: Final = 255
"""Of a client id that a group keeps; member ids begin with it."""
_KNOWN_MEMBER_FROM: Final = 4
_PROTOCOL_MAY_BE_NULL_FROM: Final = 7
_SKIPS_ASSIGNMENT_FROM: Final = 9


@handles(ApiKey.JOIN_GROUP, needs=has_groups)
async def join_group(request: Request) -> Message:
    """See the module."""
    message = request.message
    member_id = MemberId(message.member_id)
    if not request.allows_group(Operation.READ, message.group_id):
        return await _response(request, _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, member_id))
    protocols = tuple((one.name, bytes(one.metadata)) for one in message.protocols)
    instance_id = message.group_instance_id if request.version >= 5 else None
    client_id = (request.client_id or "")[:CLIENT_ID_CHARACTERS_MAX]
    join = JoinGroup(
        group_id=GroupId(message.group_id),
        member_id=member_id,
        instance_id=instance_id,
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=message.rebalance_timeout_ms
        if request.version >= 1
        else message.session_timeout_ms,
        protocol_type=message.protocol_type,
        protocols=protocols,
        client_id=client_id,
        client_host=f"/{request.session.host}",
        new_member_id=MemberId(
            f"{(instance_id or client_id or 'member')[:CLIENT_ID_CHARACTERS_MAX]}-{uuid.uuid4()}"
        ),
        requires_known_member=request.version >= _KNOWN_MEMBER_FROM,
        may_skip_assignment=request.version >= _SKIPS_ASSIGNMENT_FROM,
    )
    try:
        joined = await coordinator(request).join(join)
    except CoordinatorError as error:
        joined = _refused(error.code, member_id)
    return await _response(request, joined)


def _refused(code: ErrorCode, member_id: MemberId) -> Joined:
    return Joined(error=code, member_id=member_id)


async def _response(request: Request, joined: Joined) -> Message:
    protocol = joined.protocol
    if protocol is None and request.version < _PROTOCOL_MAY_BE_NULL_FROM:
        protocol = ""
    return JoinGroupResponse(
        error_code=joined.error,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=protocol,
        leader=joined.leader,
        skip_assignment=joined.skips_assignment,
        member_id=joined.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=one.member_id, group_instance_id=one.instance_id, metadata=one.metadata
            )
            async for one in request.in_turns(joined.members)
        ],
    )
