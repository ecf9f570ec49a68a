"""DescribeGroups: groups of the classic protocol; of the consumer protocol only that they are none."""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.groups.formats.consumer_protocol import (
    PROTOCOL_TYPE,
    read_assignment,
    read_subscription,
)
from odradek_broker.groups.messages import GroupDescription
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.groups import describe, has_groups
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DescribeGroupsResponse, Message
from odradek_protocol.primitives.varint import Malformed

_NOT_FOUND_FROM: Final = 6  # before, a group that is not there was told as Dead, without an error
_Group: Final = DescribeGroupsResponse.DescribedGroup
_Member: Final = _Group.DescribedGroupMember


@handles(ApiKey.DESCRIBE_GROUPS, needs=has_groups)
async def describe_groups(request: Request) -> Message:
    """Each group once, however often it is named."""
    return DescribeGroupsResponse(
        groups=[
            await _describe(request, one)
            async for one in request.in_turns(dict.fromkeys(request.message.groups))
        ]
    )


async def _describe(request: Request, group_id: str) -> Any:
    group = await describe(request, group_id, "classic")
    if isinstance(group, tuple):
        return _refused(request.version, group_id, *group)
    sees_topics = _sees_topics(request, group)
    described = _Group(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=[
            _Member(
                member_id=one.member_id,
                group_instance_id=one.instance_id,
                client_id=one.client_id,
                client_host=one.client_host,
                member_metadata=one.metadata if sees_topics else b"",
                member_assignment=one.assignment_bytes if sees_topics else b"",
            )
            async for one in request.in_turns(group.members)
        ],
    )
    if request.version >= 3 and request.message.include_authorized_operations:
        described.authorized_operations = request.operations(ResourceType.GROUP, group_id)
    return described


def _sees_topics(request: Request, group: GroupDescription) -> bool:
    """Whether the caller may know of every topic that a member reads; else what members say is left
    out. What is not a consumer's tells of no topics; what cannot be read may tell of any."""
    if not request.services.authorizer.is_on or group.protocol_type != PROTOCOL_TYPE:
        return True
    names: set[str] = set()
    try:
        for one in group.members:
            if one.metadata:
                names.update(read_subscription(one.metadata).topics)
            names.update(read_assignment(one.assignment_bytes))
    except Malformed:
        return False
    return all(request.sees(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in names)


def _refused(version: int, group_id: str, code: ErrorCode, text: str) -> Any:
    if code is ErrorCode.GROUP_ID_NOT_FOUND and version < _NOT_FOUND_FROM:
        code = ErrorCode.NONE
    return _Group(
        error_code=code,
        error_message=text or None,
        group_id=group_id,
        group_state="Dead",
        protocol_type="",
        protocol_data="",
        members=[],
    )
