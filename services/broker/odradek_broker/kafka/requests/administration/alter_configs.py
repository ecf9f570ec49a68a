"""AlterConfigs and IncrementalAlterConfigs: change the configs of topics, brokers and groups (KIP-339).

The older AlterConfigs replaces all configs of a resource and removes the configs that the request does not name.
IncrementalAlterConfigs sets and deletes single configs, and appends to lists or subtracts from them. Both requests are
forwarded to the controller, which applies all changes of a resource or none.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeAlias, cast

from odradek_broker.kafka.forwarding import ControllerUnavailable, ask_controller, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from odradek_protocol.metadata.configs import why_no_configs
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_runtime.budget.refusals import shortened

_Result = AlterConfigsResponse.AlterConfigsResourceResponse
_IncrementalResult = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
_SET: Final = 0
_DELETE: Final = 1
_OPERATIONS: Final = range(4)
_Outcome: TypeAlias = tuple[int, str]
_NO_ERROR: Final[_Outcome] = (ErrorCode.NONE, "")


@handles(AlterConfigsRequest)
async def alter_configs(request: Request[AlterConfigsRequest]) -> AlterConfigsResponse:
    """Replace the configs of resources. Each resource has its own result."""
    command = pb.AlterConfigsRequest(validate_only=request.message.validate_only)
    async for resource in request.in_turns(request.message.resources):
        alteration = command.resources.add(
            type=cast("pb.ConfigResourceType", resource.resource_type),
            name=resource.resource_name,
            replaces_all=True,
        )
        async for config in request.in_turns(resource.configs):
            alteration.operations.add(name=config.name, operation=_SET, value=config.value)
    pairs = zip(command.resources, await _alter(request, command), strict=True)
    return AlterConfigsResponse(
        responses=[
            _Result(
                error_code=code,
                error_message=text or None,
                resource_type=resource.type,
                resource_name=resource.name,
            )
            async for resource, (code, text) in request.in_turns(pairs)
        ]
    )


@handles(IncrementalAlterConfigsRequest)
async def incremental_alter_configs(
    request: Request[IncrementalAlterConfigsRequest],
) -> IncrementalAlterConfigsResponse:
    """Change single configs of resources. Each resource has its own result."""
    command = pb.AlterConfigsRequest(validate_only=request.message.validate_only)
    async for resource in request.in_turns(request.message.resources):
        alteration = command.resources.add(
            type=cast("pb.ConfigResourceType", resource.resource_type),
            name=resource.resource_name,
        )
        async for config in request.in_turns(resource.configs):
            alteration.operations.add(
                name=config.name, operation=config.config_operation, value=config.value
            )
    pairs = zip(command.resources, await _alter(request, command), strict=True)
    return IncrementalAlterConfigsResponse(
        responses=[
            _IncrementalResult(
                error_code=code,
                error_message=text or None,
                resource_type=resource.type,
                resource_name=resource.name,
            )
            async for resource, (code, text) in request.in_turns(pairs)
        ]
    )


async def _alter(request: AnyRequest, command: pb.AlterConfigsRequest) -> list[_Outcome]:
    """Forward the allowed alterations to the controller. Return an error code and text for each resource."""
    outcomes: list[_Outcome] = []
    allowed: list[int] = []
    counts = Counter((resource.type, resource.name) for resource in command.resources)
    async for number, resource in request.in_turns(enumerate(command.resources)):
        outcome: _Outcome = _NO_ERROR
        if counts[resource.type, resource.name] > 1:
            outcome = ErrorCode.INVALID_REQUEST, "the request names this resource twice"
        async for operation in request.in_turns(list(resource.operations)):
            if outcome == _NO_ERROR:
                outcome = _operation_refusal(operation)
        if outcome == _NO_ERROR:
            outcome = _refusal(request, resource)
        outcomes.append(outcome)
        if outcome == _NO_ERROR:
            allowed.append(number)
    if not allowed:
        return outcomes
    if len(allowed) < len(outcomes):
        whole, command = command, pb.AlterConfigsRequest(validate_only=command.validate_only)
        async for number in request.in_turns(allowed):
            command.resources.append(whole.resources[number])
    ask = ask_controller if command.validate_only else change
    try:
        response = await ask(request, "AlterConfigs", command, pb.AlterConfigsResponse)
        decided = [(result.error_code, result.error_message) for result in response.resources]
    except ControllerUnavailable as unavailable:
        decided = [(unavailable.code, str(unavailable))] * len(allowed)
    for number, outcome in zip(allowed, decided, strict=True):
        outcomes[number] = outcome
    return outcomes


def _operation_refusal(operation: pb.AlterConfigsOperation) -> _Outcome:
    if operation.operation not in _OPERATIONS:
        return (
            ErrorCode.INVALID_REQUEST,
            "the operation is unknown: use 0 (set), 1 (delete), 2 (append) or 3 (subtract)",
        )
    if operation.operation != _DELETE and not operation.HasField("value"):
        return ErrorCode.INVALID_REQUEST, f"the value of {shortened(operation.name)} is missing"
    return _NO_ERROR


def _refusal(request: AnyRequest, resource: pb.AlterConfigsResource) -> _Outcome:
    match int(resource.type):
        case ConfigResourceType.TOPIC:
            if not request.allows_topic(Operation.ALTER_CONFIGS, resource.name):
                return ErrorCode.TOPIC_AUTHORIZATION_FAILED, ""
            if request.services.image.topic(resource.name) is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""
        case ConfigResourceType.BROKER:
            if not request.allows_cluster(Operation.ALTER_CONFIGS):
                return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ""
        case ConfigResourceType.GROUP:
            if not request.allows_group(Operation.ALTER_CONFIGS, resource.name):
                return ErrorCode.GROUP_AUTHORIZATION_FAILED, ""
        case kind:
            return ErrorCode.INVALID_REQUEST, why_no_configs(kind)
    return _NO_ERROR
