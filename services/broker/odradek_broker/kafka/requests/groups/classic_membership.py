"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: membership by the classic protocol.

The response to JoinGroup is sent when the rebalance is complete. Then the group's leader sends the assignment with its
SyncGroup, and every member gets its part of the assignment in the response to its own SyncGroup.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable
from typing import Final, TypeAlias

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import (
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    Synced,
    SyncGroup,
)
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Encoded, Request, at_once, encoded
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_protocol.identity import GroupId, MemberId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.group_messages import (
    HeartbeatMessage,
    decode_heartbeat,
    encode_heartbeat_response,
)
from odradek_protocol.kafka.messages import (
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

CLIENT_ID_CHARACTERS_MAX: Final = 255
"""A group stores only the first characters of a client id, up to this number. Member ids begin with these characters.
"""
_KNOWN_MEMBER_FROM: Final = 4
_PROTOCOL_MAY_BE_NULL_FROM: Final = 7
_SKIPS_ASSIGNMENT_FROM: Final = 9
_SYNC_NAMES_PROTOCOL_FROM: Final = 5
_LEAVE_NAMES_MEMBERS_FROM: Final = 3
_JoinedMember = JoinGroupResponse.JoinGroupResponseMember
_LeftMember = LeaveGroupResponse.MemberResponse
_BeatResponse: TypeAlias = HeartbeatResponse | Encoded


async def _refuse_join(request: Request[JoinGroupRequest], code: ErrorCode) -> JoinGroupResponse:
    return await _joined(request, Joined(error=code, member_id=MemberId(request.message.member_id)))


@handles(JoinGroupRequest, refuse=_refuse_join, needs=has_groups)
async def join_group(request: Request[JoinGroupRequest]) -> JoinGroupResponse:
    """Join or rejoin a group. This waits until the rebalance is complete."""
    message = request.message
    instance_id = message.group_instance_id if request.version >= 5 else None
    client_id = (request.client_id or "")[:CLIENT_ID_CHARACTERS_MAX]
    join = JoinGroup(
        group_id=GroupId(message.group_id),
        member_id=MemberId(message.member_id),
        instance_id=instance_id,
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=message.rebalance_timeout_ms
        if request.version >= 1
        else message.session_timeout_ms,
        protocol_type=message.protocol_type,
        protocols=tuple(
            (protocol.name, bytes(protocol.metadata)) for protocol in message.protocols
        ),
        client_id=client_id,
        client_host=f"/{request.session.host}",
        new_member_id=MemberId(
            f"{(instance_id or client_id or 'member')[:CLIENT_ID_CHARACTERS_MAX]}-{uuid.uuid4()}"
        ),
        requires_known_member=request.version >= _KNOWN_MEMBER_FROM,
        may_skip_assignment=request.version >= _SKIPS_ASSIGNMENT_FROM,
    )
    try:
        return await _joined(request, await coordinator(request).join(join))
    except CoordinatorError as error:
        return await _refuse_join(request, error.code)


async def _joined(request: AnyRequest, joined: Joined) -> JoinGroupResponse:
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
            _JoinedMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            async for member in request.in_turns(joined.members)
        ],
    )


def _refuse_sync(_request: AnyRequest, code: ErrorCode) -> SyncGroupResponse:
    return _synced(Synced(error=code))


@handles(SyncGroupRequest, refuse=_refuse_sync, needs=has_groups)
async def sync_group(request: Request[SyncGroupRequest]) -> SyncGroupResponse:
    """Wait until the group's leader has sent the assignment, and return the member's part of the assignment."""
    message = request.message
    names_protocol = request.version >= _SYNC_NAMES_PROTOCOL_FROM
    sync = SyncGroup(
        group_id=GroupId(message.group_id),
        generation=message.generation_id,
        member_id=MemberId(message.member_id),
        instance_id=message.group_instance_id if request.version >= 3 else None,
        protocol_type=message.protocol_type if names_protocol else None,
        protocol=message.protocol_name if names_protocol else None,
        assignments={
            MemberId(part.member_id): bytes(part.assignment) for part in message.assignments
        },
    )
    try:
        return _synced(await coordinator(request).sync(sync))
    except CoordinatorError as error:
        return _synced(Synced(error=error.code))


def _synced(synced: Synced) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=synced.error,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )


def _refuse_heartbeat(_request: AnyRequest, code: ErrorCode) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code)


@handles(HeartbeatMessage, decode=decode_heartbeat, refuse=_refuse_heartbeat, needs=has_groups)
def heartbeat(request: Request[HeartbeatMessage]) -> _BeatResponse | Awaitable[_BeatResponse]:
    """Extend the session of a group member.

    While the coordinator loads the group, the response has no error, as in Apache Kafka, because some clients
    (aiokafka) treat COORDINATOR_LOAD_IN_PROGRESS as fatal to the consumer.
    """
    message = request.message
    beat = Heartbeat(
        group_id=GroupId(message.group_id),
        generation=message.generation_id,
        member_id=MemberId(message.member_id),
        instance_id=message.group_instance_id,
    )

    def response_of(outcome: ErrorCode | CoordinatorError) -> _BeatResponse:
        code = outcome.code if isinstance(outcome, CoordinatorError) else outcome
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            code = ErrorCode.NONE
        if request.services.quotas.counts_time:
            return HeartbeatResponse(error_code=code)
        return encoded(encode_heartbeat_response(request.version, code))

    try:
        return at_once(coordinator(request).heartbeat_soon(beat, response_of))
    except CoordinatorError as error:
        return response_of(error)


def _refuse_leave(_request: AnyRequest, code: ErrorCode) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code, members=[])


@handles(LeaveGroupRequest, refuse=_refuse_leave, needs=has_groups)
async def leave_group(request: Request[LeaveGroupRequest]) -> LeaveGroupResponse:
    """Remove members from a group, by member id or instance id. Before version 3, a request names one member."""
    message = request.message
    names_members = request.version >= _LEAVE_NAMES_MEMBERS_FROM
    members: tuple[tuple[MemberId, str | None], ...] = (
        tuple((MemberId(member.member_id), member.group_instance_id) for member in message.members)
        if names_members
        else ((MemberId(message.member_id), None),)
    )
    try:
        outcome = await coordinator(request).leave(
            LeaveGroup(group_id=GroupId(message.group_id), members=members)
        )
    except CoordinatorError as error:
        return LeaveGroupResponse(error_code=error.code, members=[])
    if not names_members:
        code = outcome.error or next((code for _, _, code in outcome.members), ErrorCode.NONE)
        return LeaveGroupResponse(error_code=code)
    return LeaveGroupResponse(
        error_code=outcome.error,
        members=[
            _LeftMember(member_id=member_id, group_instance_id=instance_id, error_code=code)
            async for member_id, instance_id, code in request.in_turns(outcome.members)
        ],
    )
