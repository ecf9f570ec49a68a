"""DescribeAcls: the access control entries that a filter finds, grouped by resource."""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.kafka.forwarding import Unanswered, ask_controller
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.access.acl_filters import filter_of, is_understood
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DescribeAclsResponse, Message
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb

_Resource: Final = DescribeAclsResponse.DescribeAclsResource
_Acl: Final = _Resource.AclDescription


@handles(ApiKey.DESCRIBE_ACLS)
async def describe_acls(request: Request) -> Message:
    """The controller looks, so that an entry made anywhere a moment ago is told."""
    if not request.services.authorizer.is_on:
        return _refused(ErrorCode.SECURITY_DISABLED, "authorizer.class.name is not set")
    if not request.allows_cluster(Operation.DESCRIBE):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not is_understood(request.message):
        return _refused(ErrorCode.INVALID_REQUEST, "something in the filter is unknown")
    asked = pb.DescribeAclsRequest(filter=filter_of(request.message))
    try:
        answer = await ask_controller(request, "DescribeAcls", asked)
    except Unanswered as unanswered:
        return _refused(unanswered.code, str(unanswered))
    resources: dict[tuple[int, str, int], list[Any]] = {}
    async for one in request.in_turns(answer.entries):
        key = (one.resource_type, one.resource_name, one.pattern_type)
        resources.setdefault(key, []).append(
            _Acl(
                principal=one.principal,
                host=one.host,
                operation=one.operation,
                permission_type=one.permission_type,
            )
        )
    return DescribeAclsResponse(
        error_code=answer.error_code,
        error_message=None,
        resources=[
            _Resource(resource_type=kind, resource_name=name, pattern_type=pattern, acls=acls)
            async for (kind, name, pattern), acls in request.in_turns(resources.items())
        ],
    )


def _refused(code: ErrorCode, text: str = "") -> Message:
    return DescribeAclsResponse(error_code=code, error_message=text or None, resources=[])
