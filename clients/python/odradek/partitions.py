"""Partitions and offsets as values. A plain tuple (topic, partition) is accepted wherever a TopicPartition is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias, TypeVar

LATEST: Final = -1
EARLIEST: Final = -2
LARGEST_TIMESTAMP: Final = -3
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
"""The largest offset, and the largest timestamp in ms."""


class TopicPartition(NamedTuple):
    """A partition of a topic. It equals the tuple (topic, partition)."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


V = TypeVar("V")
PartitionLike: TypeAlias = TopicPartition | tuple[str, int]
ByPartition: TypeAlias = Mapping[TopicPartition, V] | Mapping[tuple[str, int], V]
"""A mapping from partitions to values. It is a union, because type checkers treat the keys of a mapping as
invariant.
"""


def as_partition(partition: PartitionLike) -> TopicPartition:
    return partition if type(partition) is TopicPartition else TopicPartition(*partition)


def as_partitions(partitions: Iterable[PartitionLike]) -> list[TopicPartition]:
    """Return the pairs as TopicPartitions, in the same order. Raises ValueError for a negative partition."""
    names = [as_partition(partition) for partition in partitions]
    for name in names:
        if name.partition < 0:
            raise ValueError(f"partition {name.partition} of topic {name.topic!r} is negative")
    return names


def require_offset(offset: int, name: object) -> None:
    """Raise ValueError if `offset` cannot be an offset. `name` is the partition, for the message."""
    if not 0 <= offset <= INT64_MAX:
        wrong = "negative" if offset < 0 else "of more than 64 bits"
        raise ValueError(
            f"offset {offset} of {name} is {wrong}; use seek_to_beginning or seek_to_end to seek without an offset"
        )


class OffsetAndTimestamp(NamedTuple):
    """The result of a search for an offset by timestamp. If no record was found, all fields are -1."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
