"""Brokers that replicate to each other in one process: the production code's table, hosts,
sessions, links and streams.

Only their surroundings are replaced: directories are in memory (`MemoryStorage`), the disk's pool
has no threads and may be paused (`StepPool`), a stream is two queues, and the controller is a list of
metadata records that each broker replays, at once or when a test says so. Tests may read, change or
drop a follower's requests and a leader's responses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from odradek_broker.cluster.heartbeat import Lease
from odradek_broker.log.log_config import LogConfig
from odradek_broker.partition.effects import ProposeIsr
from odradek_broker.partition.settings import ReplicaSettings
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.outcomes import ProduceOutcome
from odradek_broker.replication.partition import Partition as ServedPartition
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.partition_table import PartitionTable
from odradek_broker.replication.streams.follower_links import FollowerLinks
from odradek_broker.replication.streams.follower_sessions import FollowerSessions
from odradek_broker.replication.streams.follower_stream import FollowerIdentity, StreamBroken
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    MetadataOffset,
    Offset,
    PartitionIndex,
    TopicIdPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataDelta, MetadataImage
from odradek_protocol.metadata.records import (
    Config,
    ConfigResourceType,
    Partition,
    PartitionChange,
    RegisterBroker,
    RestartClass,
    Topic,
)
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from odradek_runtime.clock import boottime_ms
from tests.unit.log.material import TOPIC, TOPIC_ID, batch, memory_broker

CLUSTER_ID = ClusterId("memory")
CONFIG = LogConfig(segment_bytes=1 << 20)
PARTITION = PartitionIndex(0)
WAIT_S = 20.0
_HOUR_MS = 3_600_000


class StepPool:
    """The pool of disk work, without threads: work runs in a later iteration of the event loop.

    While `is_held` is set, work waits until the test calls `begin`, which does the work, and
    `finish`, which reports its end. Between these calls the disk is working, as far as the broker
    knows.
    """

    def __init__(self) -> None:
        self.is_held = False
        self._waiting: deque[tuple[Callable[[], Any], Callable[[], None]]] = deque()
        self._done: deque[Callable[[], None]] = deque()

    def run(self, work: Callable[[], Any], on_done: Callable[[], None]) -> None:
        self._waiting.append((work, on_done))
        if not self.is_held:
            asyncio.get_running_loop().call_soon(self._turn)

    async def call(self, work: Callable[[], Any]) -> Any:
        return work()

    def begin(self) -> None:
        """Do the oldest work that waits."""
        work, on_done = self._waiting.popleft()
        work()
        self._done.append(on_done)

    def finish(self) -> None:
        """Report the end of the oldest work that has begun."""
        self._done.popleft()()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _turn(self) -> None:
        if self._waiting and not self.is_held:
            self.begin()
            self.finish()


class MemoryStream:
    """One stream between two brokers: the follower's connection and, as `leader_end`, the leader's."""

    def __init__(self, cluster: MemoryCluster, leader: MemoryBroker) -> None:
        self._cluster = cluster
        self.requests: asyncio.Queue[pb.ReplicateRequest] = asyncio.Queue()
        self.responses: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.is_accepted = asyncio.Event()
        self._serving = asyncio.create_task(leader.followers.serve(LeaderEnd(self, cluster)))
        self._serving.add_done_callback(self._served)
        self.follower = 0

    def _served(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()
        self.is_accepted.set()
        self.responses.put_nowait(None)

    async def write(self, request: pb.ReplicateRequest) -> None:
        if self._serving.done():
            raise StreamBroken("the leader ended the stream")
        if request.HasField("hello"):
            self.follower = request.hello.broker_id
        received = pb.ReplicateRequest.FromString(request.SerializeToString())
        self._cluster.requests.append((self.follower, received))
        if self._cluster.passes_request(self.follower, received):
            self.requests.put_nowait(received)

    async def accepted(self) -> None:
        await self.is_accepted.wait()

    async def read(self) -> bytes:
        response = await self.responses.get()
        if response is None:
            raise StreamBroken("the leader ended the stream")
        return response

    async def close(self) -> None:
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)


class LeaderEnd:
    """The leader's end of a MemoryStream."""

    def __init__(self, stream: MemoryStream, cluster: MemoryCluster) -> None:
        self._stream = stream
        self._cluster = cluster

    def is_from(self, broker_id: int) -> bool:
        return True

    async def read(self) -> pb.ReplicateRequest:
        return await self._stream.requests.get()

    async def write(self, message: bytes) -> None:
        message = self._cluster.changes_response(self._stream.follower, message)
        self._cluster.responses.append((self._stream.follower, message))
        self._stream.responses.put_nowait(message)

    async def accept(self) -> None:
        self._stream.is_accepted.set()


class MemoryBroker:
    """One broker: the objects that the class `Broker` creates for replication, with a directory in memory."""

    def __init__(self, cluster: MemoryCluster, broker_id: int, settings: ReplicaSettings) -> None:
        self.broker_id = BrokerId(broker_id)
        self.disk = memory_broker(CONFIG)
        self.pool = StepPool()
        self.lease = Lease(_HOUR_MS)
        self.lease.renew(boottime_ms())
        self.image = MetadataImage()
        self.is_deaf = False  # whether the broker replays no metadata records until `hear`
        self.offline: list[str] = []
        self._cluster = cluster
        self.table = PartitionTable(
            broker_id=self.broker_id,
            directory=self.disk.directory,
            defaults=CONFIG,
            settings=settings,
            pool=self.pool,  # type: ignore[arg-type]
            proposals=self,  # type: ignore[arg-type]
            on_offline=self.offline.append,
            on_broken=lambda broken: self.offline.extend(map(str, broken)),
        )
        self.followers = FollowerSessions(
            cluster_id=CLUSTER_ID,
            table=self.table,
            partition_bytes_max=1 << 20,
            message_bytes_max=1 << 20,
        )
        self.links = FollowerLinks(
            identity=FollowerIdentity(
                cluster_id=CLUSTER_ID,
                broker_id=self.broker_id,
                broker_epoch=BrokerEpoch(broker_id),
                directory_id=DirectoryId(bytes([broker_id]) * 16),
                credit_bytes=1 << 20,
            ),
            endpoint_of=lambda leader: ("memory", leader),
            is_live=lambda peer: self.image.brokers[peer].is_live,
            dial=cluster.dial,
        )
        self.table.links = self.links
        self.partitions = LocalPartitions(
            self.table, self.lease, broker_id=self.broker_id, reads_by_rack=False
        )

    def hear(self) -> None:
        """Replay the records of the metadata log that this broker does not have yet."""
        for offset, record in self._cluster.metadata[self.image.offset :]:
            delta = MetadataDelta()
            self.image.replay(MetadataOffset(offset), 1, record, delta)
            if self.table.is_active:
                for _ in self.table.apply(self.image, delta):
                    pass
        if not self.table.is_active and self._cluster.is_described:
            self.table.activate(self.image)

    def propose(
        self,
        partition: TopicIdPartition,
        proposal: ProposeIsr,
        *,
        is_urgent: bool,
        on_response: Callable[[ErrorCode], None],
    ) -> None:
        """Record an ISR proposal, as IsrProposals would send it to the controller, and apply it if
        the cluster accepts proposals.
        """
        self._cluster.proposals.append(proposal)
        if self._cluster.takes_proposals:
            isr = tuple(broker_id for broker_id, _ in proposal.isr)
            asyncio.get_running_loop().call_soon(
                self._cluster.record,
                PartitionChange(topic_id=TOPIC_ID, partition=PARTITION, isr=isr),
            )

    @property
    def host(self) -> PartitionHost:
        return self.table.by_id[TOPIC_ID, PARTITION]

    @property
    def partition(self) -> ServedPartition:
        """Return the partition as clients of this broker use it."""
        partition = self.partitions.find(TOPIC, PARTITION)
        assert isinstance(partition, ServedPartition), partition
        return partition

    @property
    def values(self) -> bytes:
        """Return all bytes of the partition that clients may read from this broker."""
        host = self.host
        end = host.replica.high_watermark
        if end == 0:
            return b""
        plan = host.log.plan_read(Offset(0), bytes_max=1 << 30, end_offset=end)
        return b"".join(bytes(piece) for piece in plan.run().slices)

    def produce(self, records: int = 1, *, acks: int = -1) -> list[ProduceOutcome]:
        """Append one batch; the outcome is added to the returned list when it is known."""
        outcomes: list[ProduceOutcome] = []
        self.partition.produce(
            batch(0, count=records),
            acks=acks,
            timeout_ms=60_000,
            on_done=outcomes.append,
        )
        return outcomes


class MemoryCluster:
    """Brokers 1 to n, and the metadata records that the controller has committed."""

    def __init__(self, brokers: int, settings: ReplicaSettings | None = None) -> None:
        self.metadata: list[tuple[int, Any]] = []  # (offset, record); offsets from 1 on
        self.is_described = False
        self.takes_proposals = True
        self.proposals: list[ProposeIsr] = []
        self.requests: list[tuple[int, pb.ReplicateRequest]] = []  # (follower, what it sent)
        self.responses: list[tuple[int, bytes]] = []  # (follower, what its leader sent)
        self.passes_request: Callable[[int, pb.ReplicateRequest], bool] = lambda *_: True
        self.changes_response: Callable[[int, bytes], bytes] = lambda _, response: response
        self.brokers = {
            broker_id: MemoryBroker(self, broker_id, settings or ReplicaSettings())
            for broker_id in range(1, brokers + 1)
        }
        for broker_id in self.brokers:
            self.record(
                RegisterBroker(
                    broker_id=BrokerId(broker_id),
                    incarnation_id=IncarnationId(bytes([broker_id]) * 16),
                    directory_ids=(),
                    restart_class=RestartClass.CLEAN,
                    endpoints=(),
                    fenced=False,
                    broker_epoch=BrokerEpoch(broker_id),
                )
            )

    def __getitem__(self, broker_id: int) -> MemoryBroker:
        return self.brokers[broker_id]

    def __iter__(self) -> Iterator[MemoryBroker]:
        return iter(self.brokers.values())

    def record(self, record: Any) -> None:
        """Commit a metadata record, and let every broker that is not deaf replay it."""
        self.metadata.append((len(self.metadata) + 1, record))
        for broker in self.brokers.values():
            if not broker.is_deaf:
                broker.hear()

    def describe(
        self, *, replicas: tuple[int, ...], isr: tuple[int, ...], leader: int = 1, **configs: str
    ) -> None:
        """Define the topic with one partition and these configs (`_` in a name means `.`); then start the brokers."""
        self.record(Topic(topic_id=TOPIC_ID, name=TOPIC))
        for name, value in configs.items():
            self.config(name.replace("_", "."), value)
        self.is_described = True
        self.record(
            Partition(
                topic_id=TOPIC_ID,
                partition=PARTITION,
                replicas=tuple(map(BrokerId, replicas)),
                isr=tuple(map(BrokerId, isr)),
                leader=BrokerId(leader),
            )
        )

    def config(self, name: str, value: str) -> None:
        self.record(
            Config(
                resource_type=ConfigResourceType.TOPIC, resource_name=TOPIC, name=name, value=value
            )
        )

    def lead(self, leader: int) -> None:
        """Elect the broker `leader`."""
        self.record(
            PartitionChange(topic_id=TOPIC_ID, partition=PARTITION, leader=BrokerId(leader))
        )

    def acks_of(self, follower: int) -> list[pb.ReplicaAckPartition]:
        """Return what a follower acknowledged, in order."""
        return [
            ack
            for broker_id, request in self.requests
            if broker_id == follower
            for ack in request.ack.partitions
        ]

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the brokers work until the condition holds."""
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110  a poll of what several brokers do
                await asyncio.sleep(0.001)

    def dial(self, leader: BrokerId, _host: str, _port: int) -> MemoryStream:
        return MemoryStream(self, self.brokers[leader])


@asynccontextmanager
async def memory_cluster(
    brokers: int, settings: ReplicaSettings | None = None
) -> AsyncIterator[MemoryCluster]:
    """Yield a cluster of this many brokers, which are closed at the end."""
    cluster = MemoryCluster(brokers, settings)
    ticking = [asyncio.create_task(b.table.tick()) for b in cluster.brokers.values()]
    try:
        yield cluster
    finally:
        for task in ticking:
            task.cancel()
        await asyncio.gather(*ticking, return_exceptions=True)
        for broker in cluster.brokers.values():
            await broker.links.close()
