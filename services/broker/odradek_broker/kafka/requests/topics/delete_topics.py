"""DeleteTopics: by name, and from version 6 on by id (KIP-516)."""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.access.quotas import MUTATION_RATE
from odradek_broker.kafka.forwarding import Unanswered, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.topics.topic_errors import find_topic
from odradek_protocol.access import Operation
from odradek_protocol.identity import NO_TOPIC_ID
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DeleteTopicsResponse, Message, uuid_of
from odradek_protocol.metadata.configs import INTERNAL_TOPICS
from odradek_protocol.metadata.image import TopicState
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb

_WITH_IDS: Final = 6
_Result: Final = DeleteTopicsResponse.DeletableTopicResult


@handles(ApiKey.DELETE_TOPICS)
async def delete_topics(request: Request) -> Message:
    """Each topic on its own. By id, so that a namesake made meanwhile is not hit."""
    message = request.message
    if request.version >= _WITH_IDS:
        references = [(one.name, one.topic_id or NO_TOPIC_ID) for one in message.topics]
    else:
        references = [(name, NO_TOPIC_ID) for name in message.topic_names]
    results: list[Any] = [None] * len(references)
    wanted: list[tuple[int, TopicState]] = []
    async for number, (name, topic_id) in request.in_turns(enumerate(references)):
        found = find_topic(request, name, topic_id, Operation.DELETE)
        if isinstance(found, ErrorCode):
            results[number] = _Result(name=name, topic_id=uuid_of(topic_id), error_code=found)
        elif found.name in INTERNAL_TOPICS:
            results[number] = _result(found, ErrorCode.INVALID_TOPIC_EXCEPTION, "it is internal")
        else:
            wanted.append((number, found))
    if wanted:
        request.throttle_ms = request.services.quotas.throttle_ms(
            MUTATION_RATE,
            request.session.principal,
            request.client_id,
            sum(len(topic.partitions) for _, topic in wanted),
        )
        asked = pb.DeleteTopicsRequest(
            topic_ids=[topic.topic_id for _, topic in wanted], timeout_ms=message.timeout_ms
        )
        try:
            answer = await change(request, "DeleteTopics", asked, timeout_ms=message.timeout_ms)
        except Unanswered as unanswered:
            async for number, topic in request.in_turns(wanted):
                results[number] = _result(topic, unanswered.code, str(unanswered))
        else:
            pairs = zip(wanted, answer.topics, strict=True)
            async for (number, topic), one in request.in_turns(pairs):
                results[number] = _result(topic, one.error_code, one.error_message)
    return DeleteTopicsResponse(responses=results)


def _result(topic: TopicState, code: int, text: str) -> Any:
    return _Result(
        name=topic.name,
        topic_id=uuid_of(topic.topic_id),
        error_code=code,
        error_message=text or None,
    )
