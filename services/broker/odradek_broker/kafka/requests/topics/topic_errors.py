"""What is told of topics that are not there, or that the client may not see."""

from __future__ import annotations

import re
from typing import Final

from odradek_broker.access.rights import Operation
from odradek_broker.kafka.request import Request
from odradek_protocol.identity import TOPIC_NAME_BYTES_MAX, TopicId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import TopicState

_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_BYTES_MAX}}}")


def is_topic_name(name: str) -> bool:
    """Whether a topic may have this name: it is also a directory's."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


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
