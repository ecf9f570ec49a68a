"""CreateAcls: adds access control entries. Refused while no authorizer would heed them."""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.kafka.forwarding import Unanswered, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import CreateAclsResponse, Message
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb

_Result: Final = CreateAclsResponse.AclCreationResult


@handles(ApiKey.CREATE_ACLS)
async def create_acls(request: Request) -> Message:
    """Each entry on its own."""
    creations = request.message.creations
    results: list[tuple[int, str]] = [
        _refused(request, one) async for one in request.in_turns(creations)
    ]
    wanted = [number for number, told in enumerate(results) if told[0] == ErrorCode.NONE]
    if wanted:
        asked = pb.CreateAclsRequest(
            entries=[_entry(creations[number]) async for number in request.in_turns(wanted)]
        )
        try:
            answer = await change(request, "CreateAcls", asked)
            answers = [(one.error_code, one.error_message) for one in answer.results]
        except Unanswered as unanswered:
            answers = [(unanswered.code, str(unanswered))] * len(wanted)
        for number, told in zip(wanted, answers, strict=True):
            results[number] = told
    return CreateAclsResponse(
        results=[
            _Result(error_code=code, error_message=text or None)
            async for code, text in request.in_turns(results)
        ]
    )


def _refused(request: Request, one: Any) -> tuple[ErrorCode, str]:
    if not request.services.authorizer.is_on:
        return ErrorCode.SECURITY_DISABLED, "authorizer.class.name is not set"
    if not request.allows_cluster(Operation.ALTER):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ""
    kinds = {int(kind) for kind in OPERATIONS_OF}
    if one.resource_type not in kinds or not one.resource_name:
        return ErrorCode.INVALID_REQUEST, f"there are no resources of type {one.resource_type}"
    if one.resource_type == ResourceType.CLUSTER and one.resource_name != CLUSTER_NAME:
        return ErrorCode.INVALID_REQUEST, f"the cluster is called {CLUSTER_NAME}"
    if one.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return ErrorCode.INVALID_REQUEST, "an entry is literal or prefixed"
    if one.permission_type not in (Permission.ALLOW, Permission.DENY):
        return ErrorCode.INVALID_REQUEST, "an entry allows or denies"
    if not Operation.ALL <= one.operation <= Operation.TWO_PHASE_COMMIT:
        return ErrorCode.INVALID_REQUEST, f"there is no operation {one.operation}"
    if ":" not in one.principal or not one.host:
        return ErrorCode.INVALID_REQUEST, "a principal is TYPE:NAME, a host an address or *"
    return ErrorCode.NONE, ""


def _entry(one: Any) -> pb.AclEntry:
    return pb.AclEntry(
        resource_type=one.resource_type,
        resource_name=one.resource_name,
        pattern_type=one.resource_pattern_type,
        principal=one.principal,
        host=one.host,
        operation=one.operation,
        permission_type=one.permission_type,
    )
