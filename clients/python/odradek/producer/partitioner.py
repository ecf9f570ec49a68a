"""The choice of a partition for a record.

A record with a key goes to the partition that Kafka's murmur2 hash of the key determines, as in Kafka's own clients.
Records without a key go to one partition until its batch is full or sent, then to the next partition, so that batches
are filled and partitions get equal shares. Partitions without a leader are skipped for records without a key. A record
with a key waits for the leader of its partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from odradek.producer.partition_queue import PartitionQueue
from odradek_protocol.records.hashes import partition_for_key

Partitioner: TypeAlias = Callable[[bytes, int], int]
"""(key, number of partitions) -> partition, for records with a key."""


class TopicQueues:
    """The queues of the partitions of one topic. `sticky` is the queue for the next records without a key."""

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
        """Add the queues of new partitions."""
        self.queues.extend(queues)

    def set_available(self, partitions: Sequence[int]) -> None:
        """Set the partitions that have a leader. If `partitions` is empty, all partitions are used, and their records
        wait for leaders.
        """
        self._available = [self.queues[p] for p in partitions] or list(self.queues)

    def next_sticky(self) -> PartitionQueue:
        """Choose the next partition for records without a key, and return its queue."""
        self._turn += 1
        self.sticky = self._available[self._turn % len(self._available)]
        return self.sticky

    def of_key(self, key: bytes) -> PartitionQueue:
        """Return the queue of a key's partition. Raises ValueError if the partitioner returns a partition that does not
        exist.
        """
        partition = self._partitioner(key, len(self.queues))
        if not 0 <= partition < len(self.queues):
            raise ValueError(
                f"the partitioner chose partition {partition} of {self.topic!r},"
                f" which has only {len(self.queues)} partitions"
            )
        return self.queues[partition]
