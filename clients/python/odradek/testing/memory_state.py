"""The state that all brokers of an in-memory cluster share: topics, leaders, groups, planned faults."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import defaultdict, deque
from collections.abc import Callable

from odradek.partitions import TopicPartition
from odradek.testing.memory_groups import MemoryGroups
from odradek.testing.memory_log import MemoryPartition, MemoryTopic
from odradek.testing.memory_staged_writes import MemoryStagedWrites
from odradek.testing.memory_transactions import MemoryTransactions
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.topic_names import INTERNAL_TOPICS, topic_name_error


class MemoryState:
    """The state that the brokers and the transport of an in-memory cluster read and change. They use this class instead
    of its subclass `MemoryCluster`, which adds the methods for tests.
    """

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
        self.groups = MemoryGroups(self.topics, self.alive)
        self.transactions = MemoryTransactions(
            self.topics,
            self.groups,
            new_producer_id=self.new_producer_id,
            wake=self.wake,
            live_brokers=self.alive,
        )
        self.staged_writes = MemoryStagedWrites(
            self.transactions, new_producer_id=self.new_producer_id
        )
        self.requests: list[str] = []
        """The names of the methods that clients called, in order."""
        self._next_producer_id = 1000
        self._waiting: set[asyncio.Future[None]] = set()
        self._faults: dict[tuple[str, TopicPartition], deque[ErrorCode]] = defaultdict(deque)
        self._responses_to_lose: dict[TopicPartition, int] = defaultdict(int)
        self._disconnect: dict[int, list[Callable[[], None]]] = defaultdict(list)

    def create_topic(
        self, name: str, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> MemoryTopic:
        """Create a topic. The leaders of its partitions are distributed across the brokers."""
        assert name not in self.topics, name
        topic = MemoryTopic(name, uuid.uuid4().bytes, [], dict(configs or {}))
        self.topics[name] = topic
        self.add_partitions(name, partitions)
        return topic

    def add_partitions(self, name: str, count: int) -> None:
        topic = self.topics[name]
        ids = sorted(self.endpoints)
        for _ in range(count):
            turn = len(topic.partitions) % len(ids)
            replicas = ids[turn:] + ids[:turn]
            leader = next((i for i in replicas if i in self.alive), -1)
            topic.partitions.append(MemoryPartition(leader, replicas))
        self.changed()

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records."""
        for partition in self.topics.pop(name).partitions:
            partition.is_open = False
        self.changed()

    def end_moves(self) -> None:
        """End the moves of partitions whose new replicas are all on live brokers."""
        for topic in self.topics.values():
            for partition in topic.partitions:
                partition.end_move(self.alive)
        self.changed()

    def partition(self, name: str, index: int) -> MemoryPartition | None:
        """Return the partition; None if it does not exist."""
        topic = self.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def take_fault(self, kind: str, partition: TopicPartition) -> ErrorCode:
        """Remove and return the planned error code for the next response; NONE if no fault is planned."""
        faults = self._faults.get((kind, partition))
        return faults.popleft() if faults else ErrorCode.NONE

    def takes_answer_away(self, partition: TopicPartition) -> bool:
        """Return whether the response must be lost. Each response that is lost uses up one of the planned losses."""
        if self._responses_to_lose.get(partition, 0) > 0:
            self._responses_to_lose[partition] -= 1
            return True
        return False

    def new_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id

    def changed(self) -> None:
        """Record a change of the metadata, and wake the streams."""
        self.metadata_offset += 1
        self.wake()

    def wake(self) -> None:
        """Wake the streams that wait for records, leaders or brokers."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            # A client in another thread has its own event loop, which may already be closed.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_end_wait, future)

    async def wait_change(self) -> None:
        """Wait for the next call of `wake`."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    def on_disconnect(self, broker_id: int, callback: Callable[[], None]) -> None:
        """Call `callback` when the connections of a broker break."""
        self._disconnect[broker_id].append(callback)

    def forget_disconnect(self, broker_id: int, callback: Callable[[], None]) -> None:
        if callback in self._disconnect[broker_id]:
            self._disconnect[broker_id].remove(callback)

    def metadata(self, names: list[str] | None) -> pb.MetadataResponse:
        """Return the metadata of the cluster and of these topics (None: all topics)."""
        response = pb.MetadataResponse(
            cluster_id=self.cluster_id, controller_id=1, metadata_offset=self.metadata_offset
        )
        for broker_id in sorted(self.alive):
            response.brokers.add(broker_id=broker_id, grpc_endpoint=self.endpoints[broker_id])
        for name in sorted(self.topics) if names is None else names:
            topic = self.topics.get(name)
            if topic is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if topic_name_error(name):
                    code = ErrorCode.INVALID_TOPIC_EXCEPTION
                response.topics.add(name=name, error_code=code)
                continue
            topic_info = response.topics.add(
                name=name, topic_id=topic.topic_id, is_internal=name in INTERNAL_TOPICS
            )
            for index, partition in enumerate(topic.partitions):
                alive = [i for i in partition.replicas if i in self.alive]
                topic_info.partitions.add(
                    partition=index,
                    leader_id=partition.leader_id,
                    leader_epoch=partition.leader_epoch,
                    replicas=partition.replicas,
                    isr=alive,
                    adding_replicas=partition.adding,
                    removing_replicas=partition.removing,
                    offline_replicas=[i for i in partition.replicas if i not in self.alive],
                )
        return response

    def leader_hint(self, partition: MemoryPartition) -> common_pb2.LeaderHint:
        """Return the leader of a partition, to be sent with an error."""
        return common_pb2.LeaderHint(
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            endpoint=self.endpoints.get(partition.leader_id, ""),
        )


def _end_wait(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
