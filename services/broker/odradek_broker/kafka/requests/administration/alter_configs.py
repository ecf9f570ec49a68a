"""AlterConfigs and IncrementalAlterConfigs: change the configs of topics, brokers and groups (KIP-339).

The older AlterConfigs replaces all configs of a resource and removes the configs that the request does not name.
IncrementalAlterConfigs sets and deletes single configs, and appends to lists or subtracts from them. Both requests are
forwarded to the controller, which applies all changes of a resource or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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


@handles(AlterConfigsRequest)
async def alter_configs(request: Request[AlterConfigsRequest]) -> AlterConfigsResponse:
    """Replace the configs of resources. Each resource has its own result."""
    resources = [
        pb.AlterConfigsResource(
            type=cast("pb.ConfigResourceType", resource.resource_type),
            name=resource.resource_name,
            operations=[
                pb.AlterConfigsOperation(
                    name=config.name,
                    operation=_SET,
                    value=config.value,
                )
                async for config in request.in_turns(resource.configs)
            ],
            replaces_all=True,
        )
        async for resource in request.in_turns(request.message.resources)
    ]
    outcomes = await _alter(request, resources, validate_only=request.message.validate_only)
    pairs = zip(resources, outcomes, strict=True)
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
    resources = [
        pb.AlterConfigsResource(
            type=cast("pb.ConfigResourceType", resource.resource_type),
            name=resource.resource_name,
            operations=[
                pb.AlterConfigsOperation(
                    name=config.name,
                    operation=config.config_operation,
                    value=config.value,
                )
                async for config in request.in_turns(resource.configs)
            ],
        )
        async for resource in request.in_turns(request.message.resources)
    ]
    outcomes = await _alter(request, resources, validate_only=request.message.validate_only)
    pairs = zip(resources, outcomes, strict=True)
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


async def _alter(
    request: AnyRequest, resources: Sequence[pb.AlterConfigsResource], *, validate_only: bool
) -> list[_Outcome]:
    """Forward the allowed changes to the controller. Return an error code and text for each resource."""
    outcomes: list[_Outcome] = []
    allowed: list[int] = []
    counts = Counter((resource.type, resource.name) for resource in resources)
    async for number, resource in request.in_turns(enumerate(resources)):
        is_twice = counts[resource.type, resource.name] > 1
        outcomes.append(_refusal(request, resource, is_twice=is_twice))
        if outcomes[number][0] == ErrorCode.NONE:
            allowed.append(number)
    if not allowed:
        return outcomes
    command = pb.AlterConfigsRequest(
        resources=[resources[number] async for number in request.in_turns(allowed)],
        validate_only=validate_only,
    )
    ask = ask_controller if validate_only else change
    try:
        response = await ask(request, "AlterConfigs", command, pb.AlterConfigsResponse)
        decided = [(result.error_code, result.error_message) for result in response.resources]
    except ControllerUnavailable as unavailable:
        decided = [(unavailable.code, str(unavailable))] * len(allowed)
    for number, outcome in zip(allowed, decided, strict=True):
        outcomes[number] = outcome
    return outcomes


def _refusal(
    request: AnyRequest, resource: pb.AlterConfigsResource, *, is_twice: bool
) -> tuple[ErrorCode, str]:
    if is_twice:
        return ErrorCode.INVALID_REQUEST, "the request names this resource twice"
    if any(operation.operation not in _OPERATIONS for operation in resource.operations):
        return (
            ErrorCode.INVALID_REQUEST,
            "the operation is unknown: use 0 (set), 1 (delete), 2 (append) or 3 (subtract)",
        )
    for operation in resource.operations:
        if operation.operation != _DELETE and not operation.HasField("value"):
            return ErrorCode.INVALID_REQUEST, f"the value of {shortened(operation.name)} is missing"
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
    return ErrorCode.NONE, ""
