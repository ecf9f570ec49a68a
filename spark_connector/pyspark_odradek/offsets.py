"""Positions in partitions, and the JSON in which Spark keeps them.

The JSON is that of Spark's Kafka source, `{"topic": {"0": 23, "1": -2}}`, so a checkpoint can be
read by a person and a starting position be copied from one. In options -2 is earliest, -1 latest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from odradek.partitions import TopicPartition

LATEST: Final = -1
EARLIEST: Final = -2

PartitionOffsets: TypeAlias = dict[TopicPartition, int]
OffsetsJson: TypeAlias = dict[str, dict[str, int]]

_OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMESTAMPS_EXAMPLE: Final = (
    '{"topicA": {"0": 123456789, "1": 123456789},\n"topicB": {"0": 123456789, "1": 123456789}}'
)
_PARTITIONS_EXAMPLE: Final = '{"topicA":[0,1],"topicB":[0,1]}'


def parse_offsets(text: str) -> PartitionOffsets:
    """Offsets per partition. Raises ValueError in the words of Spark's Kafka source."""
    return _parse(text, _OFFSETS_EXAMPLE)


def parse_timestamps(text: str) -> PartitionOffsets:
    """Milliseconds since the epoch per partition. Raises ValueError."""
    return _parse(text, _TIMESTAMPS_EXAMPLE)


def parse_partitions(text: str) -> list[TopicPartition]:
    """Partitions as option `assign` has them. Raises ValueError."""
    try:
        told = json.loads(text)
        return [
            TopicPartition(str(topic), _integer(partition))
            for topic, partitions in told.items()
            for partition in partitions
        ]
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"Expected e.g. {_PARTITIONS_EXAMPLE}, got {text}") from None


def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetsJson:
    """As Spark writes it to the checkpoint; sorted."""
    told: OffsetsJson = {}
    for name in sorted(offsets):
        told.setdefault(name.topic, {})[str(name.partition)] = offsets[name]
    return told


def from_json(told: Mapping[str, Mapping[str, int]]) -> PartitionOffsets:
    """What `to_json` made, after Spark's round trip."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in told.items()
        for partition, offset in partitions.items()
    }


def _parse(text: str, example: str) -> PartitionOffsets:
    try:
        told = json.loads(text)
        return {
            TopicPartition(str(topic), int(partition)): _integer(offset)
            for topic, partitions in told.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"Expected e.g. {example}, got {text}") from None


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no integer")
    return value
