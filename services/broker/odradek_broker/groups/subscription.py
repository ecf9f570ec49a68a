"""What stands in the bytes that consumers exchange in the classic protocol (ConsumerProtocolSubscription)."""

from __future__ import annotations

import struct
from typing import Final

from odradek_protocol.identity import TopicName

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_TOPICS_MAX: Final = 100_000


def subscribed_topics(metadata: bytes) -> frozenset[TopicName]:
    """The topics of a subscription; none where the bytes are not a consumer's (a Connect worker's, damaged)."""
    try:
        position = _INT16.size  # version; all have the topics first
        (count,) = _INT32.unpack_from(metadata, position)
        position += _INT32.size
        if not 0 <= count <= min(_TOPICS_MAX, len(metadata)):
            return frozenset()
        topics = set()
        for _ in range(count):
            (size,) = _INT16.unpack_from(metadata, position)
            position += _INT16.size
            if size < 0 or position + size > len(metadata):
                return frozenset()
            topics.add(TopicName(metadata[position : position + size].decode()))
            position += size
    except (struct.error, UnicodeDecodeError):
        return frozenset()
    return frozenset(topics)
