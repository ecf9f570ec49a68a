"""ConsumerProtocolSubscription and ConsumerProtocolAssignment, which consumers exchange inside the classic protocol.

The coordinator of a classic group passes these messages on unchanged, and decodes subscriptions only to know the topics
of a group. For classic members of a consumer group, the coordinator decodes subscriptions and encodes assignments.
Newer versions of the messages only append fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from odradek_broker.groups.messages import Assignment, TopicCatalog
from odradek_protocol.identity import PartitionIndex, TopicId, TopicName
from odradek_protocol.primitives import (
    Malformed,
    read_array_count,
    read_bytes,
    read_string,
    write_array_count,
    write_bytes,
    write_string,
)

PROTOCOL_TYPE: Final = "consumer"
_OWNED_FROM: Final = 1
_GENERATION_FROM: Final = 2
_RACK_FROM: Final = 3
_VERSION_MAX: Final = 3
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
NamedAssignment = Mapping[TopicName, frozenset[PartitionIndex]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A member's subscription. `owned` is empty for a member with the eager rebalance protocol, which revokes all
    partitions before it joins.
    """

    version: int
    topics: tuple[TopicName, ...]
    owned: NamedAssignment = field(default_factory=dict)
    generation: int = -1
    rack_id: str | None = None


def read_subscription(metadata: bytes) -> Subscription:
    """Decode a subscription.

    Raises:
        Malformed: the bytes are not a consumer subscription (they may come from a Connect worker, for example).
    """
    version, position = _number(_INT16, metadata, 0)
    if version < 0:
        raise Malformed(f"a subscription has the unsupported version {version}")
    count, position = read_array_count(metadata, position, _INT16.size)
    topics = []
    for _ in range(count):
        topic, position = read_string(metadata, position)
        topics.append(TopicName(topic or ""))
    _, position = read_bytes(metadata, position)
    owned: NamedAssignment = {}
    generation, rack_id = -1, None
    if version >= _OWNED_FROM:
        owned, position = _read_partitions(metadata, position)
    if version >= _GENERATION_FROM:
        generation, position = _number(_INT32, metadata, position)
    if version >= _RACK_FROM:
        rack_id, position = read_string(metadata, position)
    return Subscription(
        version=version,
        topics=tuple(topics),
        owned=owned,
        generation=generation,
        rack_id=rack_id,
    )


def subscribed_topics(metadata: bytes) -> frozenset[TopicName] | None:
    """Return the topics of a subscription, or None if the bytes are not a consumer's subscription."""
    try:
        return frozenset(read_subscription(metadata).topics)
    except Malformed:
        return None


def read_assignment(assignment: bytes) -> NamedAssignment:
    """Decode the assignment of a member, as the group's leader encoded it. Empty bytes are an empty assignment.

    Raises:
        Malformed: the bytes are not a valid assignment.
    """
    if not assignment:
        return {}
    _, position = _number(_INT16, assignment, 0)
    return _read_partitions(assignment, position)[0]


def write_assignment(named: NamedAssignment, *, version: int) -> bytes:
    """Encode an assignment in the same format as a group's leader, for a member whose subscription has this version."""
    out = bytearray(_INT16.pack(min(version, _VERSION_MAX)))
    write_array_count(out, len(named))
    for topic, indexes in sorted(named.items()):
        write_string(out, topic)
        write_array_count(out, len(indexes))
        for index in sorted(indexes):
            out += _INT32.pack(index)
    write_bytes(out, None)  # no user data
    return bytes(out)


def by_id(named: NamedAssignment, catalog: TopicCatalog) -> Assignment:
    """Convert an assignment by topic name to one by topic id. Topics and partitions that do not exist are omitted."""
    return dict(_by_id(named, catalog))


def _by_id(
    named: NamedAssignment, catalog: TopicCatalog
) -> Iterator[tuple[TopicId, frozenset[PartitionIndex]]]:
    for topic, indexes in named.items():
        if topic in catalog.topics:
            topic_id, count = catalog.topics[topic]
            existing = frozenset(i for i in indexes if 0 <= i < count)
            if existing:
                yield topic_id, existing


def _read_partitions(buffer: bytes, position: int) -> tuple[NamedAssignment, int]:
    count, position = read_array_count(buffer, position, _INT16.size)
    named: dict[TopicName, frozenset[PartitionIndex]] = {}
    for _ in range(count):
        topic, position = read_string(buffer, position)
        inner, position = read_array_count(buffer, position, _INT32.size)
        indexes = []
        for _ in range(inner):
            index, position = _number(_INT32, buffer, position)
            indexes.append(PartitionIndex(index))
        if indexes:
            named[TopicName(topic or "")] = frozenset(indexes)
    return named, position


def _number(form: struct.Struct, buffer: bytes, position: int) -> tuple[int, int]:
    if position + form.size > len(buffer):
        raise Malformed(f"a subscription or assignment ends too early, at byte {len(buffer)}")
    return int(form.unpack_from(buffer, position)[0]), position + form.size
