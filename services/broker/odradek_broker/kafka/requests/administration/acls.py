"""CreateAcls, DeleteAcls and DescribeAcls: access control entries.

All three are refused with SECURITY_DISABLED if authorizer.class.name is empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from odradek_broker.kafka.forwarding import ControllerUnavailable, ask_controller, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_protocol.access import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb

_Creation = CreateAclsRequest.AclCreation
_Created = CreateAclsResponse.AclCreationResult
_Filter = DeleteAclsRequest.DeleteAclsFilter
_FilterResult = DeleteAclsResponse.DeleteAclsFilterResult
_Deleted = _FilterResult.DeleteAclsMatchingAcl
_Resource = DescribeAclsResponse.DescribeAclsResource
_Described = _Resource.AclDescription
_RESOURCE_TYPES: Final = frozenset(map(int, OPERATIONS_OF))
_NO_AUTHORIZER: Final = (
    "the cluster enforces no ACLs: set authorizer.class.name=acl on all brokers to use them"
)


async def _refuse_creations(
    request: Request[CreateAclsRequest], code: ErrorCode
) -> CreateAclsResponse:
    refused = _Created(error_code=code, error_message=None)
    return CreateAclsResponse(results=[refused] * len(request.message.creations))


@handles(CreateAclsRequest, refuse=_refuse_creations)
async def create_acls(request: Request[CreateAclsRequest]) -> CreateAclsResponse:
    """Create entries. Each entry has its own result."""
    creations = request.message.creations
    results: list[tuple[int, str]] = [
        _creation_error(request, creation) async for creation in request.in_turns(creations)
    ]
    valid = [number for number, (code, _) in enumerate(results) if code == ErrorCode.NONE]
    if valid:
        command = pb.CreateAclsRequest(
            entries=[_entry(creations[number]) async for number in request.in_turns(valid)]
        )
        try:
            response = await change(request, "CreateAcls", command, pb.CreateAclsResponse)
            outcomes = [(result.error_code, result.error_message) for result in response.results]
        except ControllerUnavailable as unavailable:
            outcomes = [(unavailable.code, str(unavailable))] * len(valid)
        for number, outcome in zip(valid, outcomes, strict=True):
            results[number] = outcome
    return CreateAclsResponse(
        results=[
            _Created(error_code=code, error_message=text or None)
            async for code, text in request.in_turns(results)
        ]
    )


def _creation_error(request: AnyRequest, creation: _Creation) -> tuple[ErrorCode, str]:
    kind = creation.resource_type
    if not request.services.authorizer.is_on:
        return ErrorCode.SECURITY_DISABLED, _NO_AUTHORIZER
    if kind not in _RESOURCE_TYPES or not creation.resource_name:
        return (
            ErrorCode.INVALID_REQUEST,
            f"the resource type ({kind}) is unknown, or the resource name is empty",
        )
    if kind == ResourceType.CLUSTER and creation.resource_name != CLUSTER_NAME:
        return ErrorCode.INVALID_REQUEST, f"the resource name of the cluster must be {CLUSTER_NAME}"
    if creation.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return ErrorCode.INVALID_REQUEST, "the pattern type must be LITERAL or PREFIXED"
    if creation.permission_type not in (Permission.ALLOW, Permission.DENY):
        return ErrorCode.INVALID_REQUEST, "the permission must be ALLOW or DENY"
    if not Operation.ALL <= creation.operation <= Operation.TWO_PHASE_COMMIT:
        return ErrorCode.INVALID_REQUEST, f"operation {creation.operation} is unknown"
    if ":" not in creation.principal or not creation.host:
        return (
            ErrorCode.INVALID_REQUEST,
            "the principal must be TYPE:NAME (for example User:alice), and the host an IP address or *",
        )
    return ErrorCode.NONE, ""


def _entry(creation: _Creation) -> pb.AclEntry:
    return pb.AclEntry(
        resource_type=creation.resource_type,
        resource_name=creation.resource_name,
        pattern_type=creation.resource_pattern_type,
        principal=creation.principal,
        host=creation.host,
        operation=creation.operation,
        permission_type=creation.permission_type,
    )


async def _refuse_deletions(
    request: Request[DeleteAclsRequest], code: ErrorCode
) -> DeleteAclsResponse:
    return DeleteAclsResponse(filter_results=[_filter_result(code)] * len(request.message.filters))


@handles(DeleteAclsRequest, refuse=_refuse_deletions)
async def delete_acls(request: Request[DeleteAclsRequest]) -> DeleteAclsResponse:
    """Delete the entries that match the filters. The result of each filter lists the entries that were deleted."""
    if not request.services.authorizer.is_on:
        return await _refuse_deletions(request, ErrorCode.SECURITY_DISABLED)
    filters = request.message.filters
    results = [
        _filter_result(
            ErrorCode.NONE
            if _is_valid(filter_) and _is_known(filter_)
            else ErrorCode.INVALID_REQUEST
        )
        async for filter_ in request.in_turns(filters)
    ]
    valid = [
        number
        for number, result in enumerate(results)
        if result.error_code == ErrorCode.NONE and not _matches_nothing(filters[number])
    ]
    if valid:
        command = pb.DeleteAclsRequest(
            filters=[_entry_filter(filters[number]) async for number in request.in_turns(valid)]
        )
        try:
            response = await change(request, "DeleteAcls", command, pb.DeleteAclsResponse)
        except ControllerUnavailable as unavailable:
            async for number in request.in_turns(valid):
                results[number] = _filter_result(unavailable.code, str(unavailable))
        else:
            pairs = zip(valid, response.results, strict=True)
            async for number, result in request.in_turns(pairs):
                results[number] = _filter_result(
                    result.error_code, result.error_message, result.deleted
                )
    return DeleteAclsResponse(filter_results=results)


def _filter_result(code: int, text: str = "", deleted: Iterable[pb.AclEntry] = ()) -> _FilterResult:
    return _FilterResult(
        error_code=code,
        error_message=text or None,
        matching_acls=[
            _Deleted(
                error_code=ErrorCode.NONE,
                error_message=None,
                resource_type=entry.resource_type,
                resource_name=entry.resource_name,
                pattern_type=entry.pattern_type,
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission_type,
            )
            for entry in deleted
        ],
    )


def _refuse_description(_request: AnyRequest, code: ErrorCode) -> DescribeAclsResponse:
    return _no_acls(code)


@handles(DescribeAclsRequest, refuse=_refuse_description)
async def describe_acls(request: Request[DescribeAclsRequest]) -> DescribeAclsResponse:
    """List the entries that match a filter, by resource.

    The request is forwarded to the controller, so that the response includes entries that were created through another
    broker a moment ago.
    """
    if not request.services.authorizer.is_on:
        return _no_acls(ErrorCode.SECURITY_DISABLED, _NO_AUTHORIZER)
    if not _is_valid(request.message):
        return _no_acls(
            ErrorCode.INVALID_REQUEST, "a field of the filter is UNKNOWN (0): use ANY (1)"
        )
    if _matches_nothing(request.message):
        return _no_acls(ErrorCode.NONE)
    query = pb.DescribeAclsRequest(filter=_entry_filter(request.message))
    try:
        response = await ask_controller(request, "DescribeAcls", query, pb.DescribeAclsResponse)
    except ControllerUnavailable as unavailable:
        return _no_acls(unavailable.code, str(unavailable))
    resources: dict[tuple[int, str, int], list[_Described]] = {}
    async for entry in request.in_turns(response.entries):
        key = (entry.resource_type, entry.resource_name, entry.pattern_type)
        resources.setdefault(key, []).append(
            _Described(
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission_type,
            )
        )
    return DescribeAclsResponse(
        error_code=response.error_code,
        error_message=None,
        resources=[
            _Resource(resource_type=kind, resource_name=name, pattern_type=pattern, acls=acls)
            async for (kind, name, pattern), acls in request.in_turns(resources.items())
        ],
    )


def _no_acls(code: int, text: str = "") -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=code, error_message=text or None, resources=[])


def _entry_filter(filter_: _Filter | DescribeAclsRequest) -> pb.AclEntry:
    """Convert a filter to the controller's message, in which an empty string matches anything, as null does in Kafka's
    protocol.
    """
    return pb.AclEntry(
        resource_type=filter_.resource_type_filter,
        resource_name=filter_.resource_name_filter or "",
        pattern_type=filter_.pattern_type_filter or PatternType.LITERAL,
        principal=filter_.principal_filter or "",
        host=filter_.host_filter or "",
        operation=filter_.operation,
        permission_type=filter_.permission_type,
    )


def _matches_nothing(filter_: _Filter | DescribeAclsRequest) -> bool:
    """Return whether the filter has an empty string, which matches no entry in Kafka's protocol. In the controller's
    message, an empty string would match all entries.
    """
    return "" in (filter_.resource_name_filter, filter_.principal_filter, filter_.host_filter)


def _is_valid(filter_: _Filter | DescribeAclsRequest) -> bool:
    """Return whether no field of the filter is UNKNOWN (0), which could match entries by accident."""
    return all(value > 0 for value, _ in _parts(filter_))


def _is_known(filter_: _Filter) -> bool:
    """Return whether this broker knows the value of every field; a newer client may send other values. A deletion with
    an unknown value must fail; otherwise the response would say that no entry matched.
    """
    return all(value <= max(enum_type) for value, enum_type in _parts(filter_))


def _parts(filter_: _Filter | DescribeAclsRequest) -> tuple[tuple[int, type[IntEnum]], ...]:
    return (
        (filter_.resource_type_filter, ResourceType),
        (filter_.pattern_type_filter, PatternType),
        (filter_.operation, Operation),
        (filter_.permission_type, Permission),
    )
