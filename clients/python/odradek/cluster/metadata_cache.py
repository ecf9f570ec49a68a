"""What this client knows of the cluster: brokers, topics, who leads what.

News comes from three sides: the stream of one broker (WatchMetadata), answers to questions
(Metadata), and hints that come along with an error of a broker that leads no longer. They may
overtake each other, and the brokers themselves learn of a change at different moments. So each piece is
weighed alone:

- A partition's leader is replaced only by one of an equal or higher **leader epoch** of the same
  topic id: leader epochs never go back here. An equal epoch replaces replicas and ISR, too.
- A topic's id changes (deleted and created again), or goes, only by news that is no older, by metadata
  offset, than what the present id came with.
- Brokers come whole: the newest list by metadata offset wins.

Sans-IO: `apply`, `remove` and `hint` return the partitions whose leader changed, and the caller acts on them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field, replace

from odradek.partitions import TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import common_pb2

NO_LEADER = -1
PARTITIONS_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A live broker and where it listens."""

    broker_id: int
    grpc_endpoint: str
    kafka_endpoint: str = ""
    rack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition as last told. `leader_id` is -1 while it has none."""

    partition: int
    leader_id: int = NO_LEADER
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


@dataclass(slots=True)
class Topic:
    """A topic as last told; partitions by index, without gaps."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: list[Partition]
    metadata_offset: int
    problem: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class Change:
    """What a piece of news changed."""

    leaders: set[TopicPartition] = field(default_factory=set)
    """Partitions with another leader, leader epoch or address of the leader than before, new ones too."""
    topics: set[str] = field(default_factory=set)
    """Topics that appeared, went, were created anew, or grew."""


class MetadataCache:
    """The cluster as this client knows it."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.controller_id = -1
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, Topic] = {}
        self._brokers_offset = -1
        self._hinted_endpoints: dict[int, str] = {}

    def apply(self, news: pb.MetadataResponse) -> Change:
        """Take over what is newer than what is known."""
        change = Change()
        if news.cluster_id:
            self.cluster_id = news.cluster_id
        if news.brokers and news.metadata_offset >= self._brokers_offset:
            self._brokers_offset = news.metadata_offset
            self.controller_id = news.controller_id
            before = {**self._hinted_endpoints, **_endpoints(self.brokers)}
            self.brokers = {
                b.broker_id: Broker(
                    broker_id=b.broker_id,
                    grpc_endpoint=b.grpc_endpoint,
                    kafka_endpoint=b.kafka_endpoint,
                    rack=b.rack,
                )
                for b in news.brokers
            }
            self._hinted_endpoints.clear()
            moved = dict(_endpoints(self.brokers).items() - before.items())
            if moved:
                self._note_moved(moved, change)
        for told in news.topics:
            self._apply_topic(told, news.metadata_offset, change)
        return change

    def remove(self, names: Iterable[str], *, as_of: int) -> Change:
        """Forget topics that are gone as of this metadata offset."""
        change = Change()
        for name in names:
            topic = self.topics.get(name)
            if topic is not None and topic.metadata_offset <= as_of:
                del self.topics[name]
                change.topics.add(name)
                change.leaders.update(TopicPartition(name, p.partition) for p in topic.partitions)
        return change

    def hint(self, partition: TopicPartition, hint: common_pb2.LeaderHint) -> Change:
        """Take over who leads, as told along with an error, if that is news."""
        change = Change()
        known = self.partition(partition)
        if known is None or hint.leader_id < 0 or hint.leader_epoch <= known.leader_epoch:
            return change
        if hint.endpoint and hint.leader_id not in self.brokers:
            self._hinted_endpoints[hint.leader_id] = hint.endpoint
        self.topics[partition.topic].partitions[partition.partition] = replace(
            known, leader_id=hint.leader_id, leader_epoch=hint.leader_epoch
        )
        change.leaders.add(partition)
        return change

    def topic(self, name: str) -> Topic | None:
        """The topic, if it is known to exist and has partitions."""
        topic = self.topics.get(name)
        return topic if topic is not None and topic.partitions else None

    def partition(self, partition: TopicPartition) -> Partition | None:
        """The partition, if known."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return topic.partitions[partition.partition]

    def leader_endpoint(self, partition: TopicPartition) -> tuple[int, str] | None:
        """(broker id, host:port) of the leader, or None when there is none that can be dialled."""
        known = self.partition(partition)
        if known is None or known.leader_id < 0:
            return None
        endpoint = self.endpoint(known.leader_id)
        return None if endpoint is None else (known.leader_id, endpoint)

    def endpoint(self, broker_id: int) -> str | None:
        """host:port of a broker's gRPC listener."""
        broker = self.brokers.get(broker_id)
        if broker is not None:
            return broker.grpc_endpoint or None
        return self._hinted_endpoints.get(broker_id)

    def broker_at(self, endpoint: str) -> int | None:
        """Id of the broker that advertises this endpoint."""
        for broker in self.brokers.values():
            if broker.grpc_endpoint == endpoint:
                return broker.broker_id
        return None

    def endpoints(self) -> list[str]:
        """Where the live brokers listen."""
        return [b.grpc_endpoint for b in self.brokers.values() if b.grpc_endpoint]

    def _note_moved(self, brokers: Container[int], change: Change) -> None:
        """These brokers can be reached now, or elsewhere than before."""
        for topic in self.topics.values():
            for partition in topic.partitions:
                if partition.leader_id in brokers:
                    change.leaders.add(TopicPartition(topic.name, partition.partition))

    def _apply_topic(self, told: pb.TopicInfo, metadata_offset: int, change: Change) -> None:
        known = self.topics.get(told.name)
        if told.error_code != ErrorCode.NONE:
            if told.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                gone = self.remove([told.name], as_of=metadata_offset)
                change.topics |= gone.topics
                change.leaders |= gone.leaders
            return
        partitions = list(_partitions(told))
        if known is None or known.topic_id != told.topic_id:
            if known is not None and metadata_offset < known.metadata_offset:
                return
            self.topics[told.name] = Topic(
                told.name, told.topic_id, told.is_internal, partitions, metadata_offset
            )
            change.topics.add(told.name)
            change.leaders.update(TopicPartition(told.name, p.partition) for p in partitions)
            return
        known.metadata_offset = max(known.metadata_offset, metadata_offset)
        if len(partitions) > len(known.partitions):
            change.topics.add(told.name)
        for partition in partitions:
            self._apply_partition(known, partition, change)

    def _apply_partition(self, topic: Topic, told: Partition, change: Change) -> None:
        name = TopicPartition(topic.name, told.partition)
        if told.partition >= len(topic.partitions):
            topic.partitions.append(told)
            change.leaders.add(name)
            return
        known = topic.partitions[told.partition]
        if told.leader_epoch < known.leader_epoch:
            return
        topic.partitions[told.partition] = told
        if (told.leader_epoch, told.leader_id) != (known.leader_epoch, known.leader_id):
            change.leaders.add(name)


def _endpoints(brokers: dict[int, Broker]) -> dict[int, str]:
    return {b.broker_id: b.grpc_endpoint for b in brokers.values() if b.grpc_endpoint}


def _partitions(told: pb.TopicInfo) -> Iterator[Partition]:
    """By index; one that was not told is there without a leader."""
    by_index = {info.partition: info for info in told.partitions if info.partition >= 0}
    for index in range(min(max(by_index, default=-1) + 1, PARTITIONS_MAX)):
        info = by_index.get(index)
        if info is None:
            yield Partition(partition=index)
            continue
        yield Partition(
            partition=index,
            leader_id=info.leader_id,
            leader_epoch=info.leader_epoch,
            replicas=tuple(info.replicas),
            isr=tuple(info.isr),
            elr=tuple(info.elr),
            offline_replicas=tuple(info.offline_replicas),
            adding_replicas=tuple(info.adding_replicas),
            removing_replicas=tuple(info.removing_replicas),
        )
