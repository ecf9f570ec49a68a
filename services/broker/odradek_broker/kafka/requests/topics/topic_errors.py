"""What is told of topics that are not there, or that the client may not see."""

from __future__ import annotations

from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.identity import TopicId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import TopicState


def find_topic(
    request: Request, name: str | None, topic_id: bytes | None, operation: Operation
) -> TopicState | ErrorCode:
    """The topic that a request names by name or, without one, by id; or why it gets none.

    Who may do nothing with a topic is not told by id whether there is one.
    """
    image = request.services.image
    if name:
        if not request.allows_topic(operation, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        found = image.topic(name)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None else found
    topic = image.topics.get(TopicId(topic_id or b""))
    if topic is None or not request.allows_topic(Operation.DESCRIBE, topic.name):
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not request.allows_topic(operation, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return topic
