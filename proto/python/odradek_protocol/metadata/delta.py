"""What a stretch of replaying changed, so that a broker applies differences and not images.

Pass one `MetadataDelta` to any number of `MetadataImage.replay` calls, then act on it with the
image beside it: the delta says *what* changed and how it was before, the image how it is now. A
thing that is in no field here is as it was. `differences` gives the same for two whole images, in
slices, which is how a snapshot is applied without holding the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from odradek_protocol.identity import BrokerId, PartitionIndex, TopicId
from odradek_protocol.metadata.records import ConfigResourceType

if TYPE_CHECKING:
    from odradek_protocol.metadata.image import (
        BrokerState,
        MetadataImage,
        PartitionState,
        QuotaEntity,
        TopicState,
    )


@dataclass(slots=True, kw_only=True)
class MetadataDelta:
    """Changes since it was made; the values are the states before (None: was not there).

    `is_of_snapshot`: the image was replaced by a snapshot's. What it lacks was taken away by records that
    nobody here has seen, if it is of the same history.
    """

    is_of_snapshot: bool = False
    topics_created: set[TopicId] = field(default_factory=set)
    topics_removed: dict[TopicId, TopicState] = field(default_factory=dict)
    partitions: dict[tuple[TopicId, PartitionIndex], PartitionState | None] = field(
        default_factory=dict
    )
    brokers: dict[BrokerId, BrokerState | None] = field(default_factory=dict)
    configs: set[tuple[ConfigResourceType, str]] = field(default_factory=set)
    acls: set[bytes] = field(default_factory=set)
    scram_users: set[str] = field(default_factory=set)
    quotas: set[QuotaEntity] = field(default_factory=set)
    features: set[str] = field(default_factory=set)

    @property
    def topics(self) -> set[TopicId]:
        """Topics that were created, removed or changed in any partition."""
        return self.topics_created | set(self.topics_removed) | {tid for tid, _ in self.partitions}

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__ if name != "is_of_snapshot")

    def topic_removed(self, topic: TopicState) -> None:
        """Note that a topic went; what was noted of its partitions no longer matters."""
        if topic.topic_id in self.topics_created:
            self.topics_created.discard(topic.topic_id)
        else:
            self.topics_removed[topic.topic_id] = topic
        for partition in topic.partitions:
            self.partitions.pop((topic.topic_id, partition.partition), None)

    def partition_changed(
        self, key: tuple[TopicId, PartitionIndex], before: PartitionState | None
    ) -> None:
        """Note a partition; only the first state before is kept."""
        self.partitions.setdefault(key, before)

    def broker_changed(self, broker_id: BrokerId, before: BrokerState | None) -> None:
        """Note a broker; only the first state before is kept."""
        self.brokers.setdefault(broker_id, before)


def differences(
    before: MetadataImage, after: MetadataImage, *, items_max: int = 1000
) -> Iterator[MetadataDelta]:
    """Deltas that together lead from one image to the other: brokers and configs, then topics.

    Each looks at no more than about `items_max` partitions and may be empty: give the event loop a
    turn between two of them. The images must not change meanwhile.
    """
    yield _difference_without_topics(before, after)
    delta, seen = MetadataDelta(is_of_snapshot=True), 0
    for topic in before.topics.values():
        if topic.topic_id not in after.topics:
            delta.topic_removed(topic)
            seen += 1
            if seen >= items_max:
                yield delta
                delta, seen = MetadataDelta(is_of_snapshot=True), 0
    for topic in after.topics.values():
        old = before.topics.get(topic.topic_id)
        if old is None:
            delta.topics_created.add(topic.topic_id)
        for state in topic.partitions:
            index = state.partition
            was = old.partitions[index] if old and index < len(old.partitions) else None
            if was is not state and was != state:
                delta.partition_changed((topic.topic_id, index), was)
            seen += 1
            if seen >= items_max:
                yield delta
                delta, seen = MetadataDelta(is_of_snapshot=True), 0
    yield delta


def _difference_without_topics(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    delta = MetadataDelta(is_of_snapshot=True)
    for broker_id in before.brokers.keys() | after.brokers.keys():
        if before.brokers.get(broker_id) != after.brokers.get(broker_id):
            delta.broker_changed(broker_id, before.brokers.get(broker_id))
    for resource in before.configs.keys() | after.configs.keys():
        if before.configs.get(resource) != after.configs.get(resource):
            delta.configs.add(resource)
    delta.acls = {
        acl_id
        for acl_id in before.acls.keys() | after.acls.keys()
        if before.acls.get(acl_id) != after.acls.get(acl_id)
    }
    delta.scram_users = {
        user
        for user, mechanism in before.scram.keys() | after.scram.keys()
        if before.scram.get((user, mechanism)) != after.scram.get((user, mechanism))
    }
    delta.quotas = {
        entity
        for entity in before.quotas.keys() | after.quotas.keys()
        if before.quotas.get(entity) != after.quotas.get(entity)
    }
    delta.features = {
        name
        for name in before.features.keys() | after.features.keys()
        if before.features.get(name) != after.features.get(name)
    }
    return delta
