"""How this SDK names a partition: a pair, so that a plain tuple works wherever one is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias, TypeVar

LATEST: Final = -1
EARLIEST: Final = -2
LARGEST_TIMESTAMP: Final = -3


class TopicPartition(NamedTuple):
    """Partition `partition` of topic `topic`; equal to the tuple of both."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


V = TypeVar("V")
PartitionLike: TypeAlias = TopicPartition | tuple[str, int]
ByPartition: TypeAlias = Mapping[TopicPartition, V] | Mapping[tuple[str, int], V]
"""Something per partition, under either kind of name: a mapping's keys are invariant to a type checker."""


def as_partition(partition: PartitionLike) -> TopicPartition:
    """The pair under its own name; a TopicPartition is itself."""
    return partition if type(partition) is TopicPartition else TopicPartition(*partition)


def as_partitions(partitions: Iterable[PartitionLike]) -> list[TopicPartition]:
    """Each of them under its own name, in order."""
    return [as_partition(partition) for partition in partitions]


class OffsetAndTimestamp(NamedTuple):
    """An offset that was looked up. All are -1 where there is no such record."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
