"""ListGroups, DescribeGroups and DeleteGroups. DescribeGroups describes only groups of the classic protocol."""

from __future__ import annotations

from typing import Final

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.formats.consumer_protocol import (
    PROTOCOL_TYPE,
    read_assignment,
    read_subscription,
)
from odradek_broker.groups.messages import GroupDescription
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_broker.kafka.requests.groups import coordinator, describe, has_groups
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.identity import GroupId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from odradek_protocol.primitives import Malformed

_NOT_FOUND_FROM: Final = 6  # earlier versions report a missing group as Dead, without an error
_Described = DescribeGroupsResponse.DescribedGroup
_Member = _Described.DescribedGroupMember
_Listed = ListGroupsResponse.ListedGroup
_Deleted = DeleteGroupsResponse.DeletableGroupResult


@handles(ListGroupsRequest, needs=has_groups)
async def list_groups(request: Request[ListGroupsRequest]) -> ListGroupsResponse:
    """List the groups that this broker coordinates. Clients send this request to every broker.

    From version 4 on, the request may filter by state, and from version 5 on by type. Case does not matter.
    """
    message = request.message
    states = {state.lower() for state in message.states_filter} if request.version >= 4 else set()
    types = {type_.lower() for type_ in message.types_filter} if request.version >= 5 else set()
    try:
        listings = coordinator(request).listings()
    except CoordinatorError as error:
        return ListGroupsResponse(error_code=error.code, groups=[])
    sees_all = request.sees_cluster(Operation.DESCRIBE)
    return ListGroupsResponse(
        groups=[
            _Listed(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            )
            async for group in request.in_turns(listings)
            if (not states or group.state.lower() in states)
            and (not types or group.group_type.lower() in types)
            and (sees_all or request.sees(Operation.DESCRIBE, ResourceType.GROUP, group.group_id))
        ]
    )


@handles(DescribeGroupsRequest, needs=has_groups)
async def describe_groups(request: Request[DescribeGroupsRequest]) -> DescribeGroupsResponse:
    """Describe groups. A group that the request names twice is described once."""
    return DescribeGroupsResponse(
        groups=[
            await _describe(request, group_id)
            async for group_id in request.in_turns(dict.fromkeys(request.message.groups))
        ]
    )


async def _describe(request: Request[DescribeGroupsRequest], group_id: str) -> _Described:
    group = await describe(request, group_id, "classic")
    if isinstance(group, tuple):
        return _not_described(request.version, group_id, *group)
    sees_topics = _sees_topics(request, group)
    described = _Described(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=[
            _Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata if sees_topics else b"",
                member_assignment=member.assignment_bytes if sees_topics else b"",
            )
            async for member in request.in_turns(group.members)
        ],
    )
    if request.version >= 3 and request.message.include_authorized_operations:
        described.authorized_operations = request.operations(ResourceType.GROUP, group_id)
    return described


def _sees_topics(request: AnyRequest, group: GroupDescription) -> bool:
    """Return whether the caller may describe every topic that a member reads. If not, the response omits the members'
    metadata and assignments.

    The metadata of protocol types other than `consumer` contains no topics. If metadata cannot be decoded, the result
    is False.
    """
    if not request.services.authorizer.is_on or group.protocol_type != PROTOCOL_TYPE:
        return True
    names: set[str] = set()
    try:
        for member in group.members:
            if member.metadata:
                names.update(read_subscription(member.metadata).topics)
            names.update(read_assignment(member.assignment_bytes))
    except Malformed:
        return False
    return all(request.sees(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in names)


def _not_described(version: int, group_id: str, code: ErrorCode, text: str) -> _Described:
    if code is ErrorCode.GROUP_ID_NOT_FOUND and version < _NOT_FOUND_FROM:
        code = ErrorCode.NONE
    return _Described(
        error_code=code,
        error_message=text or None,
        group_id=group_id,
        group_state="Dead",
        protocol_type="",
        protocol_data="",
        members=[],
    )


@handles(DeleteGroupsRequest, needs=has_groups)
async def delete_groups(request: Request[DeleteGroupsRequest]) -> DeleteGroupsResponse:
    """Delete groups without members, and their committed offsets. Each group has its own result."""
    return DeleteGroupsResponse(
        results=[
            _Deleted(group_id=group_id, error_code=await _delete(request, group_id))
            async for group_id in request.in_turns(request.message.groups_names)
        ]
    )


async def _delete(request: AnyRequest, group_id: str) -> ErrorCode:
    if not request.allows_group(Operation.DELETE, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    try:
        return await coordinator(request).delete_group(GroupId(group_id))
    except CoordinatorError as error:
        return error.code
