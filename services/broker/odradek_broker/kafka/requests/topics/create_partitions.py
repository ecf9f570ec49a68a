"""CreatePartitions: more partitions for topics that there are."""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.access.quotas import MUTATION_RATE
from odradek_broker.kafka.forwarding import Unanswered, ask_controller, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.topics.create_topics import PARTITIONS_MAX
from odradek_broker.kafka.requests.topics.topic_errors import find_topic
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import CreatePartitionsResponse, Message
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb

_Result: Final = CreatePartitionsResponse.CreatePartitionsTopicResult


@handles(ApiKey.CREATE_PARTITIONS)
async def create_partitions(request: Request) -> Message:
    """Each topic on its own."""
    message = request.message
    results: list[Any] = [None] * len(message.topics)
    wanted: list[int] = []
    more = 0
    seen: set[str] = set()
    async for number, one in request.in_turns(enumerate(message.topics)):
        found = find_topic(request, one.name, None, Operation.ALTER)
        if one.name in seen:
            found = ErrorCode.INVALID_REQUEST
        seen.add(one.name)
        if isinstance(found, ErrorCode):
            results[number] = _Result(name=one.name, error_code=found)
        else:
            wanted.append(number)
            more += min(max(one.count - len(found.partitions), 1), PARTITIONS_MAX)
    if wanted:
        request.throttle_ms = request.services.quotas.throttle_ms(
            MUTATION_RATE, request.session.principal, request.client_id, more
        )
        asked = pb.CreatePartitionsRequest(
            topics=[
                await _new_partitions(request, message.topics[number])
                async for number in request.in_turns(wanted)
            ],
            validate_only=message.validate_only,
            timeout_ms=message.timeout_ms,
        )
        ask = ask_controller if message.validate_only else change
        try:
            answer = await ask(request, "CreatePartitions", asked, timeout_ms=message.timeout_ms)
            answers = [(one.error_code, one.error_message) for one in answer.topics]
        except Unanswered as unanswered:
            answers = [(unanswered.code, str(unanswered))] * len(wanted)
        pairs = zip(wanted, answers, strict=True)
        async for number, (code, text) in request.in_turns(pairs):
            results[number] = _Result(
                name=message.topics[number].name, error_code=code, error_message=text or None
            )
    return CreatePartitionsResponse(results=results)


async def _new_partitions(request: Request, one: Any) -> pb.NewPartitions:
    return pb.NewPartitions(
        name=one.name,
        total_count=one.count,
        assignments=[
            pb.ReplicaAssignment(broker_ids=each.broker_ids)
            async for each in request.in_turns(one.assignments or ())
        ],
    )
