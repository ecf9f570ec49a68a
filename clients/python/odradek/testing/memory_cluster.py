"""A cluster in memory, for tests: brokers, leaders, offsets and faults, without a process or a port.

    cluster = MemoryCluster(brokers=3)
    cluster.create_topic("orders", partitions=2)
    async with cluster.client() as client:
        ...

It speaks the SDK's wire messages, and is honest where clients depend on it: batches are checked and
read, offsets assigned, producers' repeats recognized and gaps refused, leaders fenced by epoch, fetches
bounded by credit, topics identified by id. Consumer groups share partitions, rebalance, and fence
members (`groups`). It does not replicate: all brokers share one truth, so killing one loses nothing,
unless `lose_records` says so.

Faults: `kill`, `start`, `freeze`, `thaw`, `move_leader`, `fail_next` (error codes for a partition's next
produces or fetches), `lose_next_answers` (the broker writes, the answer never comes), `lose_records`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from odradek.partitions import TopicPartition
from odradek.testing.memory_groups import MemoryGroups
from odradek.testing.memory_log import MemoryLog
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import common_pb2

if TYPE_CHECKING:
    from odradek.client import Client
    from odradek.testing.memory_transport import MemoryTransport

KEEPALIVE_S = 2.0  # how soon a connection to a broker that hangs breaks, as over gRPC
DEFAULT_CONFIGS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
}


@dataclass(slots=True)
class MemoryPartition:
    """Who leads it, and its log."""

    leader_id: int
    replicas: list[int]
    leader_epoch: int = 0
    log: MemoryLog = field(default_factory=MemoryLog)
    is_open: bool = True


@dataclass(slots=True)
class MemoryTopic:
    """A topic; another one under the same name has another id."""

    name: str
    topic_id: bytes
    partitions: list[MemoryPartition]
    configs: dict[str, str]


class MemoryCluster:
    """The state that all brokers of this cluster share, and the levers for faults."""

    def __init__(
        self, *, brokers: int = 1, auto_create_topics: bool = False, default_partitions: int = 1
    ) -> None:
        self.cluster_id = str(uuid.uuid4())
        self.auto_create_topics = auto_create_topics
        self.default_partitions = default_partitions
        self.topics: dict[str, MemoryTopic] = {}
        self.endpoints = {
            broker_id: f"memory-{broker_id}:9090" for broker_id in range(1, brokers + 1)
        }
        self.alive = set(self.endpoints)
        self.frozen: set[int] = set()
        self.metadata_offset = 0
        self.groups = MemoryGroups(self)
        self.requests: list[str] = []
        """Names of the calls and streams that clients made, in order."""
        self._next_producer_id = 1000
        self._changed = asyncio.Event()
        self._faults: dict[tuple[str, TopicPartition], deque[ErrorCode]] = defaultdict(deque)
        self._answers_to_lose: dict[TopicPartition, int] = defaultdict(int)
        self._disconnect: dict[int, list[Callable[[], None]]] = defaultdict(list)

    # --- for tests --------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """Endpoints of all brokers."""
        return ",".join(self.endpoints.values())

    def transport(self) -> MemoryTransport:
        """A new way in; give it to `Client(transport=...)`."""
        from odradek.testing.memory_transport import MemoryTransport

        return MemoryTransport(self)

    def client(self) -> Client:
        """A client of this cluster."""
        from odradek.client import Client

        return Client(self.bootstrap, transport=self.transport())

    def create_topic(
        self, name: str, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> MemoryTopic:
        """Create it, leaders in turn over the brokers."""
        assert name not in self.topics, name
        topic = MemoryTopic(name, uuid.uuid4().bytes, [], dict(configs or {}))
        self.topics[name] = topic
        self.add_partitions(name, partitions)
        return topic

    def add_partitions(self, name: str, count: int) -> None:
        """Add so many."""
        topic = self.topics[name]
        ids = sorted(self.endpoints)
        for _ in range(count):
            turn = len(topic.partitions) % len(ids)
            replicas = ids[turn:] + ids[:turn]
            leader = next((i for i in replicas if i in self.alive), -1)
            topic.partitions.append(MemoryPartition(leader, replicas))
        self.changed()

    def delete_topic(self, name: str) -> None:
        """Delete it with its records."""
        for partition in self.topics.pop(name).partitions:
            partition.is_open = False
        self.changed()

    def partition(self, name: str, index: int) -> MemoryPartition | None:
        """The partition, if it exists."""
        topic = self.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def log(self, name: str, index: int = 0) -> MemoryLog:
        """The log of a partition that exists."""
        return self.topics[name].partitions[index].log

    def move_leader(self, name: str, index: int, to: int, *, tell: bool = True) -> None:
        """Make another broker lead; with `tell=False` nobody is told, as in a slow metadata feed."""
        partition = self.topics[name].partitions[index]
        partition.leader_id = to
        partition.leader_epoch += 1
        if tell:
            self.changed()

    def kill(self, broker_id: int, *, elect: bool = True) -> None:
        """Break its connections; others lead what it led, unless `elect=False`."""
        self.alive.discard(broker_id)
        self._break_connections(broker_id)
        if elect:
            self.elect()

    def elect(self) -> None:
        """Give each partition whose leader is dead another one, or none."""
        for topic in self.topics.values():
            for partition in topic.partitions:
                if partition.leader_id not in self.alive:
                    partition.leader_id = next(
                        (i for i in partition.replicas if i in self.alive), -1
                    )
                    partition.leader_epoch += 1
        self.changed()

    def start(self, broker_id: int) -> None:
        """Start it again; it leads what has no leader."""
        self.alive.add(broker_id)
        self.elect()

    def freeze(self, broker_id: int) -> None:
        """It hangs, as with SIGSTOP: nothing is answered, until keepalive breaks its connections."""
        self.frozen.add(broker_id)
        asyncio.get_running_loop().call_later(KEEPALIVE_S, self._break_if_frozen, broker_id)

    def thaw(self, broker_id: int) -> None:
        """It goes on."""
        self.frozen.discard(broker_id)
        self.changed()

    def disconnect(self, broker_id: int) -> None:
        """Break its connections only: what was sent may have been written."""
        self._break_connections(broker_id)

    def fail_next(self, kind: str, name: str, index: int, *codes: ErrorCode) -> None:
        """Answer the next requests of `kind` ("produce", "fetch", "offsets") with these codes.

        `ErrorCode.NONE` lets one through.
        """
        self._faults[kind, TopicPartition(name, index)].extend(codes)

    def lose_next_answers(self, name: str, index: int, count: int = 1) -> None:
        """Write the next produces, then break the connection instead of answering."""
        self._answers_to_lose[TopicPartition(name, index)] += count

    def lose_records(self, name: str, index: int, from_offset: int) -> None:
        """An unclean election: what is at and after the offset is gone, another epoch begins."""
        partition = self.topics[name].partitions[index]
        partition.log.truncate_to(from_offset)
        self.move_leader(name, index, partition.leader_id)

    # --- for brokers ------------------------------------------------------------------------------

    def take_fault(self, kind: str, partition: TopicPartition) -> ErrorCode:
        """The code to answer with, once."""
        faults = self._faults.get((kind, partition))
        return faults.popleft() if faults else ErrorCode.NONE

    def takes_answer_away(self, partition: TopicPartition) -> bool:
        """Whether this answer is to be lost."""
        if self._answers_to_lose.get(partition, 0) > 0:
            self._answers_to_lose[partition] -= 1
            return True
        return False

    def new_producer_id(self) -> int:
        """The next one."""
        self._next_producer_id += 1
        return self._next_producer_id

    def changed(self) -> None:
        """Metadata changed: tell the watchers."""
        self.metadata_offset += 1
        self.wake()

    def wake(self) -> None:
        """Something changed that streams wait for: records, leaders, life."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_change(self) -> None:
        """Wait for the next `wake`."""
        await self._changed.wait()

    def on_disconnect(self, broker_id: int, callback: Callable[[], None]) -> None:
        """Call it when the broker's connections break."""
        self._disconnect[broker_id].append(callback)

    def forget_disconnect(self, broker_id: int, callback: Callable[[], None]) -> None:
        """Call it no more."""
        if callback in self._disconnect[broker_id]:
            self._disconnect[broker_id].remove(callback)

    def metadata(self, names: list[str] | None) -> pb.MetadataResponse:
        """The cluster and these topics (None: all)."""
        response = pb.MetadataResponse(
            cluster_id=self.cluster_id, controller_id=1, metadata_offset=self.metadata_offset
        )
        for broker_id in sorted(self.alive):
            response.brokers.add(broker_id=broker_id, grpc_endpoint=self.endpoints[broker_id])
        for name in sorted(self.topics) if names is None else names:
            topic = self.topics.get(name)
            if topic is None:
                response.topics.add(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            told = response.topics.add(name=name, topic_id=topic.topic_id)
            for index, partition in enumerate(topic.partitions):
                alive = [i for i in partition.replicas if i in self.alive]
                told.partitions.add(
                    partition=index,
                    leader_id=partition.leader_id,
                    leader_epoch=partition.leader_epoch,
                    replicas=partition.replicas,
                    isr=alive,
                    offline_replicas=[i for i in partition.replicas if i not in self.alive],
                )
        return response

    def leader_hint(self, partition: MemoryPartition) -> common_pb2.LeaderHint:
        """Who leads, to be sent along with an error."""
        return common_pb2.LeaderHint(
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            endpoint=self.endpoints.get(partition.leader_id, ""),
        )

    def _break_if_frozen(self, broker_id: int) -> None:
        if broker_id in self.frozen:
            self._break_connections(broker_id)

    def _break_connections(self, broker_id: int) -> None:
        for callback in self._disconnect.pop(broker_id, []):
            callback()
        self.wake()
