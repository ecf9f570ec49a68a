"""Who says which partitions a consumer reads.

`FixedPartitions` and `WholeTopics` decide alone. In a group the coordinator does: see `group_membership`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from odradek.cluster.metadata_cache import MetadataCache
from odradek.errors import InvalidRequest
from odradek.partitions import TopicPartition


class AssignmentSource(Protocol):
    """Tells the present assignment; asked again whenever the metadata changed."""

    @property
    def topics(self) -> frozenset[str]:
        """Topics whose metadata it needs."""

    def partitions(self, cache: MetadataCache) -> list[TopicPartition]:
        """What to read now, as far as the metadata is known."""


class FixedPartitions:
    """Exactly these."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self._partitions = list(dict.fromkeys(partitions))
        self.topics = frozenset(p.topic for p in self._partitions)

    def partitions(self, cache: MetadataCache) -> list[TopicPartition]:
        """They never change."""
        return self._partitions


class WholeTopics:
    """All partitions of these topics, those to come included."""

    def __init__(self, topics: Iterable[str]) -> None:
        names = list(topics)
        for name in names:
            if not isinstance(name, str):
                raise InvalidRequest(
                    f"{name!r} is no topic's name",
                    hint="name topics one by one: 'orders', 'payments'",
                )
        self.topics = frozenset(names)

    def partitions(self, cache: MetadataCache) -> list[TopicPartition]:
        """All that are known."""
        return [
            TopicPartition(name, partition.partition)
            for name in sorted(self.topics)
            if (topic := cache.topic(name)) is not None
            for partition in topic.partitions
        ]
