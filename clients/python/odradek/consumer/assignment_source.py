"""Who says which partitions a consumer reads.

`FixedPartitions` and `WholeTopics` decide alone; a group's member is a third kind of source that plugs
in here: it changes the assignment whenever its coordinator says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from odradek.cluster.metadata_cache import MetadataCache
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
        self.topics = frozenset(topics)

    def partitions(self, cache: MetadataCache) -> list[TopicPartition]:
        """All that are known."""
        return [
            TopicPartition(name, partition.partition)
            for name in sorted(self.topics)
            if (topic := cache.topic(name)) is not None
            for partition in topic.partitions
        ]
