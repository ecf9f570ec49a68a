"""Offsets of partitions: their JSON form, offset ranges and their division into tasks, and the report of data loss.

The JSON form is that of Spark's Kafka source: `{"topic": {"0": 23, "1": -2}}`. A person can read it in a checkpoint,
and can use it as a starting position. In options, -2 means earliest and -1 latest.

Each range becomes one task, or several if options require it. Ranges are split as by Spark's
KafkaOffsetRangeCalculator, so a job has the same tasks as with Spark's Kafka source.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

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
    """Parse a JSON text with an offset for each partition. Raises ValueError, worded as by Spark's Kafka source."""
    return _parse(text, _OFFSETS_EXAMPLE)


def parse_timestamps(text: str) -> PartitionOffsets:
    """Parse a JSON text with a timestamp (ms since the epoch) for each partition. Raises ValueError."""
    return _parse(text, _TIMESTAMPS_EXAMPLE)


def parse_partitions(text: str) -> list[TopicPartition]:
    """Parse the JSON text of the option `assign`. Raises ValueError."""
    try:
        by_topic = json.loads(text)
        return [
            TopicPartition(str(topic), _integer(partition))
            for topic, partitions in by_topic.items()
            for partition in partitions
        ]
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"Expected e.g. {_PARTITIONS_EXAMPLE}, got {text}") from None


def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetsJson:
    """Return offsets in the form that Spark writes to the checkpoint, sorted by topic and partition."""
    by_topic: OffsetsJson = {}
    for name in sorted(offsets):
        by_topic.setdefault(name.topic, {})[str(name.partition)] = offsets[name]
    return by_topic


def from_json(by_topic: Mapping[str, Mapping[str, int]]) -> PartitionOffsets:
    """Return offsets from the form that `to_json` makes. Spark passes this form back to the reader."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in by_topic.items()
        for partition, offset in partitions.items()
    }


def _parse(text: str, example: str) -> PartitionOffsets:
    try:
        by_topic = json.loads(text)
        return {
            TopicPartition(str(topic), int(partition)): _integer(offset)
            for topic, partitions in by_topic.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"Expected e.g. {example}, got {text}") from None


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not an integer")
    return value


class OffsetRange(NamedTuple):
    """A range of offsets in a partition: from `start_offset` to `end_offset` (exclusive)."""

    name: TopicPartition
    start_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        """The number of offsets. The number of records may be lower."""
        return self.end_offset - self.start_offset


def split_ranges(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[OffsetRange]:
    """Split ranges into one range for each task, in the same order. Empty ranges are left out.

    First, ranges with more than `max_records_per_partition` offsets are split. If there are then fewer ranges than
    `min_partitions`, large ranges are split further, until there are about `min_partitions`.
    """
    parts = [r for r in ranges if r.size > 0]
    if max_records_per_partition is not None:
        parts = [
            part for r in parts for part in _split(r, math.ceil(r.size / max_records_per_partition))
        ]
    if min_partitions is None or len(parts) >= min_partitions:
        return parts
    total = sum(r.size for r in parts)
    whole = {r for r in parts if _parts(r.size, total, min_partitions) == 1}
    split_total = total - sum(r.size for r in whole)
    split_parts = max(min_partitions - len(whole), 1)
    return [
        part
        for r in parts
        for part in (_split(r, _parts(r.size, split_total, split_parts)) if r not in whole else [r])
    ]


def _parts(size: int, total: int, total_parts: int) -> int:
    return max(math.floor(size / total * total_parts + 0.5), 1)


def _split(r: OffsetRange, parts: int) -> list[OffsetRange]:
    made: list[OffsetRange] = []
    start, rest = r.start_offset, r.size
    for part in range(parts):
        size = rest // (parts - part)  # rounded down, so later parts may be larger by one
        rest -= size
        if size:
            made.append(OffsetRange(r.name, start, start + size))
        start += size
    return made


_log = logging.getLogger(__name__)

_LOST: Final = (
    "Some data may have been lost because they are not available in Kafka any more; either the data"
    " was aged out by Kafka or the topic may have been deleted before all the data in the topic was"
    " processed."
)
_DO_NOT_FAIL: Final = (
    " If you don't want your streaming query to fail on such cases, set the source option"
    " failOnDataLoss to false."
)
_DO_FAIL: Final = (
    " If you want your streaming query to fail on such cases, set the source option"
    ' "failOnDataLoss" to "true".'
)


class DataLoss(RuntimeError):
    """Records that the query should have read were deleted before it read them."""


def report_data_loss(reason: str, *, is_fatal: bool) -> None:
    """Raise DataLoss if `is_fatal` (the option failOnDataLoss), otherwise log a warning."""
    if is_fatal:
        raise DataLoss(f"{_LOST}{_DO_NOT_FAIL} Reason: {reason}")
    _log.warning("Streaming query may have lost data. %s %s%s", reason, _LOST, _DO_FAIL)
