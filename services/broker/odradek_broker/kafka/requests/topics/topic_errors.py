"""Topics as requests name them, and the errors for topics that are missing or that the caller may not see."""

from __future__ import annotations

from odradek_broker.kafka.request import AnyRequest
from odradek_protocol.access import Operation
from odradek_protocol.identity import TopicId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import TopicState


def find_topic(
    request: AnyRequest, name: str | None, topic_id: bytes | None, operation: Operation
) -> TopicState | ErrorCode:
    """Return the topic that a request names by name or, without a name, by id; or the error.

    A caller without any right to a topic does not learn from its id whether it exists.
    """
    image = request.services.image
    if name:
        if not request.allows_topic(operation, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        named = image.topic(name)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if named is None else named
    topic = image.topics.get(TopicId(topic_id or b""))
    if topic is None or not request.allows_topic(Operation.DESCRIBE, topic.name):
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not request.allows_topic(operation, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return topic
