"""DescribeGroups: groups of the classic protocol; of the consumer protocol only that they are none."""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.kafka_api.groups import coordinator, has_groups
from odradek_broker.kafka_api.registry import handles
from odradek_broker.kafka_api.request import Request
from odradek_broker.security.rights import Operation, ResourceType
from odradek_protocol.identity import GroupId
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DescribeGroupsResponse, Message

_NOT_FOUND_FROM: Final = 6  # before, a group that is not there was told as Dead, without an error
_Group: Final = DescribeGroupsResponse.DescribedGroup
_Member: Final = _Group.DescribedGroupMember


@handles(ApiKey.DESCRIBE_GROUPS, needs=has_groups)
async def describe_groups(request: Request) -> Message:
    """See the module."""
    return DescribeGroupsResponse(
        groups=[await _describe(request, g) for g in request.message.groups]
    )


async def _describe(request: Request, group_id: str) -> Any:
    if not request.allows_group(Operation.DESCRIBE, group_id):
        return _refused(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        group = await coordinator(request).describe(GroupId(group_id))
    except CoordinatorError as error:
        return _refused(group_id, error.code)
    if group.error is not ErrorCode.NONE or group.group_type != "classic":
        code = ErrorCode.GROUP_ID_NOT_FOUND
        return _refused(group_id, code if request.version >= _NOT_FOUND_FROM else ErrorCode.NONE)
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
                member_metadata=one.metadata,
                member_assignment=one.assignment_bytes,
            )
            for one in group.members
        ],
    )
    if request.version >= 3 and request.message.include_authorized_operations:
        described.authorized_operations = request.operations(ResourceType.GROUP, group_id)
    return described


def _refused(group_id: str, code: ErrorCode) -> Any:
    return _Group(
        error_code=code,
        group_id=group_id,
        group_state="Dead",
        protocol_type="",
        protocol_data="",
        members=[],
    )
