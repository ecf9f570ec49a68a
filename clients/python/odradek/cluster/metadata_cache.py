"""The metadata of the cluster that this client has received: brokers, topics, leaders.

Metadata comes from three sources: the WatchMetadata stream of one broker, responses to Metadata requests, and hints in
the error of a broker that is no longer the leader. Newer metadata from one source may arrive before older metadata from
another, and brokers learn of changes at different times. So each item is compared with the cache separately:

- The leader of a partition is replaced only by one with an equal or higher **leader epoch** for the same topic id, so
  leader epochs in the cache never decrease. With an equal epoch, replicas and ISR are replaced, too.
- A topic is removed, or replaced by one with another id (it was deleted and created again), only by metadata whose
  metadata offset is not lower than the offset of the cached topic.
- The list of brokers is replaced as a whole, if the metadata offset of the new list is not lower.

This module does no I/O. `apply`, `remove` and `hint` return the partitions whose leader changed, and the caller acts on
them. `apply_in_steps` yields after each partition, so that a caller on an event loop can let other tasks run. A topic
is replaced as a whole, so no reader sees only some of its partitions. Other changes may be applied between two steps,
because each item is compared separately.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable
from dataclasses import dataclass, field, replace

from odradek.partitions import TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import common_pb2

NO_LEADER = -1
PARTITIONS_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A live broker with its addresses. An address is "" if the broker has no such listener."""

    broker_id: int
    grpc_endpoint: str
    kafka_endpoint: str = ""
    rack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition in the latest metadata. `leader_id` is -1 while the partition has no leader."""

    partition: int
    leader_id: int = NO_LEADER
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The brokers that will have a replica when the move in progress has ended; without a move, `replicas`."""
        return tuple(broker for broker in self.replicas if broker not in self.removing_replicas)


@dataclass(slots=True)
class Topic:
    """A topic in the latest metadata. Its partitions are sorted by index, without gaps."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: list[Partition]
    metadata_offset: int
    problem: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class Change:
    """The changes that new metadata made to the cache."""

    leaders: set[TopicPartition] = field(default_factory=set)
    """Partitions that were created or deleted, or whose leader, leader epoch or leader address changed."""
    topics: set[str] = field(default_factory=set)
    """Topics that were created, deleted, created again, or got more partitions."""


class MetadataCache:
    """The latest metadata of one cluster that this client has received."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.controller_id = -1
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, Topic] = {}
        self._brokers_offset = -1
        self._hinted_endpoints: dict[int, str] = {}

    def apply(self, response: pb.MetadataResponse) -> Change:
        """Apply the parts of the response that are newer than the cache, and return the changes."""
        change = Change()
        for _ in self.apply_in_steps(response, change):
            pass
        return change

    def apply_in_steps(
        self, response: pb.MetadataResponse, change: Change
    ) -> Generator[None, None, None]:
        """Like `apply`, but yield after each partition and topic. The changes made so far are in `change`."""
        if response.cluster_id:
            self.cluster_id = response.cluster_id
        if response.brokers and response.metadata_offset >= self._brokers_offset:
            self._brokers_offset = response.metadata_offset
            self.controller_id = response.controller_id
            before = {**self._hinted_endpoints, **_endpoints(self.brokers)}
            self.brokers = {
                b.broker_id: Broker(
                    broker_id=b.broker_id,
                    grpc_endpoint=b.grpc_endpoint,
                    kafka_endpoint=b.kafka_endpoint,
                    rack=b.rack,
                )
                for b in response.brokers
            }
            self._hinted_endpoints.clear()
            moved = dict(_endpoints(self.brokers).items() - before.items())
            if moved:
                self._note_moved(moved, change)
        for update in response.topics:
            yield from self._apply_topic(update, response.metadata_offset, change)
            yield

    def remove(self, names: Iterable[str], *, as_of: int) -> Change:
        """Remove topics that were deleted at or before the metadata offset `as_of`."""
        change = Change()
        for name in names:
            topic = self.topics.get(name)
            if topic is not None and topic.metadata_offset <= as_of:
                del self.topics[name]
                change.topics.add(name)
                change.leaders.update(TopicPartition(name, p.partition) for p in topic.partitions)
        return change

    def hint(self, partition: TopicPartition, hint: common_pb2.LeaderHint) -> Change:
        """Use the leader that an error response named, if its leader epoch is newer."""
        change = Change()
        cached = self.partition(partition)
        if cached is None or hint.leader_id < 0 or hint.leader_epoch <= cached.leader_epoch:
            return change
        if hint.endpoint and hint.leader_id not in self.brokers:
            self._hinted_endpoints[hint.leader_id] = hint.endpoint
        self.topics[partition.topic].partitions[partition.partition] = replace(
            cached, leader_id=hint.leader_id, leader_epoch=hint.leader_epoch
        )
        change.leaders.add(partition)
        return change

    def topic(self, name: str) -> Topic | None:
        """Return the topic. None: the topic is not in the cache, or has no partitions."""
        topic = self.topics.get(name)
        return topic if topic is not None and topic.partitions else None

    def topic_id(self, name: str) -> bytes:
        """Return the id of the topic; b"" if the topic is not in the cache."""
        topic = self.topics.get(name)
        return b"" if topic is None else topic.topic_id

    def partition(self, partition: TopicPartition) -> Partition | None:
        """Return the partition; None if it is not in the cache."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return topic.partitions[partition.partition]

    def leader_endpoint(self, partition: TopicPartition) -> tuple[int, str] | None:
        """Return (broker id, host:port) of the leader. None: there is no leader, or its address is not known."""
        cached = self.partition(partition)
        if cached is None or cached.leader_id < 0:
            return None
        endpoint = self.endpoint(cached.leader_id)
        return None if endpoint is None else (cached.leader_id, endpoint)

    def endpoint(self, broker_id: int) -> str | None:
        """Return host:port of a broker's gRPC listener; None if it is not known."""
        broker = self.brokers.get(broker_id)
        if broker is not None:
            return broker.grpc_endpoint or None
        return self._hinted_endpoints.get(broker_id)

    def broker_at(self, endpoint: str) -> int | None:
        """Return the id of the broker that advertises this gRPC endpoint; None if no broker does."""
        for broker in self.brokers.values():
            if broker.grpc_endpoint == endpoint:
                return broker.broker_id
        return None

    def endpoints(self) -> list[str]:
        """Return the gRPC endpoints of the live brokers."""
        return [b.grpc_endpoint for b in self.brokers.values() if b.grpc_endpoint]

    def _note_moved(self, brokers: Container[int], change: Change) -> None:
        """Add the partitions that these brokers lead to `change`, because the addresses of these brokers are new."""
        for topic in self.topics.values():
            for partition in topic.partitions:
                if partition.leader_id in brokers:
                    change.leaders.add(TopicPartition(topic.name, partition.partition))

    def _apply_topic(
        self, update: pb.TopicInfo, metadata_offset: int, change: Change
    ) -> Generator[None, None, None]:
        if update.error_code != ErrorCode.NONE:
            if update.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                removed = self.remove([update.name], as_of=metadata_offset)
                change.topics |= removed.topics
                change.leaders |= removed.leaders
            return
        partitions = yield from partitions_of(update)
        # The cache is read after the last step, because another response may have changed the topic between two steps.
        cached = self.topics.get(update.name)
        if cached is None or cached.topic_id != update.topic_id:
            if cached is not None and metadata_offset < cached.metadata_offset:
                return
            self.topics[update.name] = Topic(
                update.name, update.topic_id, update.is_internal, partitions, metadata_offset
            )
            change.topics.add(update.name)
            change.leaders.update(TopicPartition(update.name, p.partition) for p in partitions)
            return
        cached.metadata_offset = max(cached.metadata_offset, metadata_offset)
        if len(partitions) > len(cached.partitions):
            change.topics.add(update.name)
        for partition in partitions:
            self._apply_partition(cached, partition, change)

    def _apply_partition(self, topic: Topic, update: Partition, change: Change) -> None:
        name = TopicPartition(topic.name, update.partition)
        if update.partition >= len(topic.partitions):
            topic.partitions.append(update)
            change.leaders.add(name)
            return
        cached = topic.partitions[update.partition]
        if update.leader_epoch < cached.leader_epoch:
            return
        topic.partitions[update.partition] = update
        if (update.leader_epoch, update.leader_id) != (cached.leader_epoch, cached.leader_id):
            change.leaders.add(name)


def _endpoints(brokers: dict[int, Broker]) -> dict[int, str]:
    return {b.broker_id: b.grpc_endpoint for b in brokers.values() if b.grpc_endpoint}


def partitions_of(update: pb.TopicInfo) -> Generator[None, None, list[Partition]]:
    """Return a topic's partitions, sorted by index. This generator yields after each partition. A partition that is
    missing in the message gets no leader.
    """
    by_index = {info.partition: info for info in update.partitions if info.partition >= 0}
    partitions: list[Partition] = []
    for index in range(min(max(by_index, default=-1) + 1, PARTITIONS_MAX)):
        info = by_index.get(index)
        partitions.append(Partition(partition=index) if info is None else _partition_of(info))
        yield
    return partitions


def _partition_of(info: pb.PartitionInfo) -> Partition:
    return Partition(
        partition=info.partition,
        leader_id=info.leader_id,
        leader_epoch=info.leader_epoch,
        replicas=tuple(info.replicas),
        isr=tuple(info.isr),
        elr=tuple(info.elr),
        offline_replicas=tuple(info.offline_replicas),
        adding_replicas=tuple(info.adding_replicas),
        removing_replicas=tuple(info.removing_replicas),
    )
