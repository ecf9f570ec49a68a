"""DeleteAcls: removes the access control entries that filters find."""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.kafka.forwarding import Unanswered, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.access.acl_filters import filter_of, is_understood
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DeleteAclsResponse, Message
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb

_Result: Final = DeleteAclsResponse.DeleteAclsFilterResult
_Acl: Final = _Result.DeleteAclsMatchingAcl


@handles(ApiKey.DELETE_ACLS)
async def delete_acls(request: Request) -> Message:
    """Each filter on its own; the answer names what is gone."""
    filters = request.message.filters
    refused = ErrorCode.NONE
    if not request.services.authorizer.is_on:
        refused = ErrorCode.SECURITY_DISABLED
    elif not request.allows_cluster(Operation.ALTER):
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    results: list[Any] = [
        _result(
            refused or (ErrorCode.NONE if is_understood(one) else ErrorCode.INVALID_REQUEST), "", ()
        )
        async for one in request.in_turns(filters)
    ]
    wanted = [number for number, one in enumerate(results) if one.error_code == ErrorCode.NONE]
    if wanted:
        asked = pb.DeleteAclsRequest(
            filters=[filter_of(filters[number]) async for number in request.in_turns(wanted)]
        )
        try:
            answer = await change(request, "DeleteAcls", asked)
        except Unanswered as unanswered:
            async for number in request.in_turns(wanted):
                results[number] = _result(unanswered.code, str(unanswered), ())
        else:
            pairs = zip(wanted, answer.results, strict=True)
            async for number, one in request.in_turns(pairs):
                results[number] = _result(one.error_code, one.error_message, one.deleted)
    return DeleteAclsResponse(filter_results=results)


def _result(code: int, text: str, deleted: Any) -> Any:
    return _Result(
        error_code=code,
        error_message=text or None,
        matching_acls=[
            _Acl(
                error_code=ErrorCode.NONE,
                error_message=None,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
                pattern_type=one.pattern_type,
                principal=one.principal,
                host=one.host,
                operation=one.operation,
                permission_type=one.permission_type,
            )
            for one in deleted
        ],
    )
