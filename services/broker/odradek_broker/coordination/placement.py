"""Determines which broker coordinates a group or a transactional id.

The name is hashed to a partition of an internal topic, and the leader of that partition is the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from odradek_broker.cluster.topic_creation import TopicCreation
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.outcomes import LeaderNow
from odradek_protocol.identity import NO_BROKER, BrokerId, PartitionIndex, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The internal topic of the group or the transaction coordinator. It is created at the first lookup of a name."""

    topic: TopicName
    partitions: LocalPartitions
    creation: TopicCreation
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str]
    min_isr: int = 1  # lowered if the topic gets fewer replicas

    async def ensure_topic(self) -> ErrorCode:
        """Create the topic if it does not exist."""
        return await self.creation.ensure_internal(
            self.topic,
            partition_count=self.partition_count,
            replication_factor=self.replication_factor,
            configs=self.configs,
            min_isr=self.min_isr,
        )

    def coordinator_of(self, name: str) -> LeaderNow | None:
        """Return the leader of the name's partition, or None if the topic does not exist yet."""
        partition = self.partition_of(name)
        return None if partition is None else self.partitions.leader_of(self.topic, partition)

    def leader_of(self, partition: PartitionIndex | None) -> BrokerId | None:
        """Return the broker that leads a partition of the topic, or None if the partition has no leader."""
        if partition is None:
            return None
        leader = self.partitions.leader_of(self.topic, partition).broker_id
        return None if leader == NO_BROKER else leader

    def partition_of(self, name: str) -> PartitionIndex | None:
        """Return the partition that stores the state of the name (`abs(hashCode) % count`, as in Kafka).

        The result is None if the topic does not exist yet.
        """
        topic = self.partitions.image.topic(self.topic)
        if topic is None or not topic.partitions:
            return None
        return PartitionIndex(absolute_java_hash(name) % len(topic.partitions))


@lru_cache(maxsize=4096)  # the same groups commit again and again
def absolute_java_hash(text: str) -> int:
    """Return the absolute value of Java's `String.hashCode()`, by which Kafka assigns names to partitions.

    As with Kafka's `Utils.abs`, the result is 0 for the lowest int, which has no positive counterpart.
    """
    value = 0
    units = text.encode("latin-1") if text.isascii() else _utf_16_units(text)
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    if value >= 1 << 31:
        value = (1 << 32) - value
    return value if value < 1 << 31 else 0


def _utf_16_units(text: str) -> Iterable[int]:
    units = text.encode("utf-16-be")
    return (units[index] << 8 | units[index + 1] for index in range(0, len(units), 2))
