"""CreatePartitions: adds partitions to existing topics."""

from __future__ import annotations

from odradek_broker.access.quotas import MUTATION_RATE
from odradek_broker.kafka.forwarding import ControllerUnavailable, ask_controller, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_broker.kafka.requests.topics.create_topics import PARTITIONS_MAX
from odradek_broker.kafka.requests.topics.topic_errors import find_topic
from odradek_protocol.access import Operation
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb

_Topic = CreatePartitionsRequest.CreatePartitionsTopic
_Result = CreatePartitionsResponse.CreatePartitionsTopicResult


@handles(CreatePartitionsRequest)
async def create_partitions(request: Request[CreatePartitionsRequest]) -> CreatePartitionsResponse:
    """Add partitions to each topic. Each topic has a result of its own."""
    message = request.message
    results: list[_Result] = []
    valid: list[int] = []
    new_partitions = 0
    seen: set[str] = set()
    async for number, topic in request.in_turns(enumerate(message.topics)):
        state = find_topic(request, topic.name, None, Operation.ALTER)
        if topic.name in seen:
            state = ErrorCode.INVALID_REQUEST
        seen.add(topic.name)
        if isinstance(state, ErrorCode):
            results.append(_Result(name=topic.name, error_code=state))
        else:
            results.append(_Result(name=topic.name))
            valid.append(number)
            new_partitions += min(max(topic.count - len(state.partitions), 1), PARTITIONS_MAX)
    if valid:
        request.throttle_ms = request.services.quotas.throttle_ms(
            MUTATION_RATE, request.session.principal, request.client_id, new_partitions
        )
        command = pb.CreatePartitionsRequest(
            topics=[
                await _new_partitions(request, message.topics[number])
                async for number in request.in_turns(valid)
            ],
            validate_only=message.validate_only,
            timeout_ms=message.timeout_ms,
        )
        ask = ask_controller if message.validate_only else change
        try:
            response = await ask(
                request,
                "CreatePartitions",
                command,
                pb.CreatePartitionsResponse,
                timeout_ms=message.timeout_ms,
            )
            outcomes = [(result.error_code, result.error_message) for result in response.topics]
        except ControllerUnavailable as unavailable:
            outcomes = [(int(unavailable.code), str(unavailable))] * len(valid)
        pairs = zip(valid, outcomes, strict=True)
        async for number, (code, text) in request.in_turns(pairs):
            results[number].error_code = code
            results[number].error_message = text or None
    return CreatePartitionsResponse(results=results)


async def _new_partitions(request: AnyRequest, topic: _Topic) -> pb.NewPartitions:
    return pb.NewPartitions(
        name=topic.name,
        total_count=topic.count,
        assignments=[
            pb.ReplicaAssignment(broker_ids=assignment.broker_ids)
            async for assignment in request.in_turns(topic.assignments or ())
        ],
    )
