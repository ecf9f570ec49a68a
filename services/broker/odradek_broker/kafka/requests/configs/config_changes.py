"""What both ways of altering configs have in common: rights, and the controller's decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from odradek_broker.kafka.forwarding import Unanswered, ask_controller, change
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb


async def alter(
    request: Request, response: Any, resources: Sequence[pb.AlterConfigsResource]
) -> Message:
    """Alter each resource on its own; `response` is the class of the answer."""
    results: list[tuple[int, str]] = []
    wanted: list[int] = []
    seen: set[tuple[int, str]] = set()
    async for number, resource in request.in_turns(enumerate(resources)):
        results.append(_refused(request, resource, seen))
        seen.add((resource.type, resource.name))
        if results[number][0] == ErrorCode.NONE:
            wanted.append(number)
    if wanted:
        validate_only = request.message.validate_only
        asked = pb.AlterConfigsRequest(
            resources=[resources[number] async for number in request.in_turns(wanted)],
            validate_only=validate_only,
        )
        ask = ask_controller if validate_only else change
        try:
            answer = await ask(request, "AlterConfigs", asked)
            answers = [(one.error_code, one.error_message) for one in answer.resources]
        except Unanswered as unanswered:
            answers = [(unanswered.code, str(unanswered))] * len(wanted)
        for number, told in zip(wanted, answers, strict=True):
            results[number] = told
    return response(
        responses=[
            response.AlterConfigsResourceResponse(
                error_code=code,
                error_message=text or None,
                resource_type=resource.type,
                resource_name=resource.name,
            )
            async for resource, (code, text) in request.in_turns(
                zip(resources, results, strict=True)
            )
        ]
    )


def _refused(
    request: Request, resource: pb.AlterConfigsResource, seen: set[tuple[int, str]]
) -> tuple[ErrorCode, str]:
    if (resource.type, resource.name) in seen:
        return ErrorCode.INVALID_REQUEST, "the request names it twice"
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
            return ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no configs"
    return ErrorCode.NONE, ""
