"""DeleteTopics: deletes topics by name, and from version 6 on by id (KIP-516)."""

from __future__ import annotations

from collections import Counter
from typing import Final

from odradek_broker.access.quotas import MUTATION_RATE
from odradek_broker.kafka.forwarding import ControllerUnavailable, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request, find_topic
from odradek_protocol.access import Operation
from odradek_protocol.identity import NO_TOPIC_ID
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    uuid_of,
)
from odradek_protocol.metadata.configs import INTERNAL_TOPICS
from odradek_protocol.metadata.image import TopicState
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb

_WITH_IDS: Final = 6
_Result = DeleteTopicsResponse.DeletableTopicResult


@handles(DeleteTopicsRequest)
async def delete_topics(request: Request[DeleteTopicsRequest]) -> DeleteTopicsResponse:
    """Delete topics. Each topic has its own result. As in Kafka, a topic that the request names twice, or both by name
    and by id, is not deleted, because this is probably a mistake.

    The request is forwarded with topic ids, so that a topic which is created with the same name meanwhile is not
    deleted.
    """
    message = request.message
    if request.version >= _WITH_IDS:
        references = [(topic.name, topic.topic_id or NO_TOPIC_ID) for topic in message.topics]
    else:
        references = [(name, NO_TOPIC_ID) for name in message.topic_names]
    results: list[_Result] = []
    valid: list[tuple[int, TopicState]] = []
    counts = Counter(references)
    times_named: Counter[bytes] = Counter()
    resolved: list[tuple[str | None, bytes, TopicState | ErrorCode]] = []
    async for name, topic_id in request.in_turns(counts):
        topic: TopicState | ErrorCode = ErrorCode.INVALID_REQUEST
        if (name is None) != (topic_id == NO_TOPIC_ID):
            topic = find_topic(request, name, topic_id, Operation.DELETE)
        if isinstance(topic, TopicState):
            times_named[topic.topic_id] += counts[name, topic_id]
        elif counts[name, topic_id] > 1:
            topic = ErrorCode.INVALID_REQUEST
        resolved.append((name, topic_id, topic))
    async for name, topic_id, topic in request.in_turns(resolved):
        if isinstance(topic, TopicState) and times_named[topic.topic_id] > 1:
            topic = ErrorCode.INVALID_REQUEST
        if isinstance(topic, ErrorCode):
            results.append(_Result(name=name, topic_id=uuid_of(topic_id), error_code=topic))
        elif topic.name in INTERNAL_TOPICS:
            results.append(
                _result(
                    topic, ErrorCode.INVALID_TOPIC_EXCEPTION, "internal topics cannot be deleted"
                )
            )
        else:
            valid.append((len(results), topic))
            results.append(_result(topic, ErrorCode.NONE, ""))
    if valid:
        request.throttle_ms = request.services.quotas.throttle_ms(
            MUTATION_RATE,
            request.session.principal,
            request.client_id,
            sum(len(state.partitions) for _, state in valid),
        )
        command = pb.DeleteTopicsRequest(
            topic_ids=[state.topic_id for _, state in valid], timeout_ms=message.timeout_ms
        )
        try:
            response = await change(
                request,
                "DeleteTopics",
                command,
                pb.DeleteTopicsResponse,
                timeout_ms=message.timeout_ms,
            )
        except ControllerUnavailable as unavailable:
            async for number, state in request.in_turns(valid):
                results[number] = _result(state, unavailable.code, str(unavailable))
        else:
            pairs = zip(valid, response.topics, strict=True)
            async for (number, state), deleted in request.in_turns(pairs):
                results[number] = _result(state, deleted.error_code, deleted.error_message)
    return DeleteTopicsResponse(responses=results)


def _result(topic: TopicState, code: int, text: str) -> _Result:
    return _Result(
        name=topic.name,
        topic_id=uuid_of(topic.topic_id),
        error_code=code,
        error_message=text or None,
    )
