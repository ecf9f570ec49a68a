"""Which partition a record goes to.

With a key: Kafka's murmur2, so that all clients of a topic agree, whatever they are written in. Without
one: sticky round robin, that is all records go to one partition until its batch leaves, then to the
next; batches get full and partitions get their equal share. Partitions without a leader are passed
over meanwhile, but not by keys: those records wait for theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from odradek.producer.partition_queue import PartitionQueue
from odradek_protocol.records.hashes import partition_for_key

Partitioner: TypeAlias = Callable[[bytes, int], int]
"""(key, how many partitions) -> partition, for records that have a key."""


class TopicLanes:
    """The queues of one topic's partitions, and whose turn it is."""

    __slots__ = ("_available", "_partitioner", "_turn", "queues", "sticky", "topic")

    def __init__(
        self,
        topic: str,
        queues: Sequence[PartitionQueue],
        *,
        partitioner: Partitioner = partition_for_key,
        first_turn: int = 0,
    ) -> None:
        assert queues, topic
        self.topic = topic
        self.queues = list(queues)
        self._partitioner = partitioner
        self._available = list(self.queues)
        self._turn = first_turn
        self.sticky = self._available[first_turn % len(self._available)]

    def extend(self, queues: Sequence[PartitionQueue]) -> None:
        """The topic got more partitions."""
        self.queues.extend(queues)

    def set_available(self, partitions: Sequence[int]) -> None:
        """Only these have a leader; none at all: they all wait alike."""
        self._available = [self.queues[p] for p in partitions] or list(self.queues)

    def next_sticky(self) -> PartitionQueue:
        """The next partition's turn, for records without a key."""
        self._turn += 1
        self.sticky = self._available[self._turn % len(self._available)]
        return self.sticky

    def of_key(self, key: bytes) -> PartitionQueue:
        """Where records with this key go. Raises ValueError for a partitioner's bad answer."""
        partition = self._partitioner(key, len(self.queues))
        if not 0 <= partition < len(self.queues):
            raise ValueError(
                f"the partitioner chose partition {partition} of {self.topic!r},"
                f" which has {len(self.queues)}"
            )
        return self.queues[partition]
