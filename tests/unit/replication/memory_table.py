"""A broker's table of replicas over logs in memory, with metadata in which two brokers have
replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from odradek_broker.cluster.heartbeat import Lease
from odradek_broker.log.log_config import LogConfig
from odradek_broker.partition.settings import ReplicaSettings
from odradek_broker.replication.disk.disk_pool import DiskPool, disk_threads
from odradek_broker.replication.disk.full_disk import FullDisk
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.partition import Partition as ServedPartition
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.partition_table import PartitionTable
from odradek_protocol.identity import (
    BrokerId,
    MetadataOffset,
    PartitionIndex,
    TopicIdPartition,
    TopicName,
)
from odradek_protocol.metadata.image import MetadataDelta, MetadataImage
from odradek_protocol.metadata.records import Partition, Topic
from odradek_runtime.clock import SYSTEM_CLOCK, Clock
from tests.unit.log.material import PARTITION, TOPIC, TOPIC_ID, Broker

CONFIG = LogConfig(segment_bytes=1 << 20)
OWN, OTHER = BrokerId(1), BrokerId(2)
FOR_EVER_MS = 1 << 60


@dataclass
class NoLinks:
    """Replication streams that reach no leader; they record which leader each partition wants to
    follow.
    """

    followed: list[tuple[PartitionHost, int]] = field(default_factory=list)
    changed_brokers: list[BrokerId] = field(default_factory=list)

    def follow(self, host: PartitionHost, leader: int) -> None:
        self.followed.append((host, leader))

    def stream(self, session_id: int) -> None:
        return None

    def share(self, replicas: Sequence[BrokerId]) -> None: ...

    def broker_changed(self, broker_id: BrokerId) -> None:
        self.changed_brokers.append(broker_id)


def image_of(partitions: int, *, leader: BrokerId) -> MetadataImage:
    """Return metadata with the topic, whose replicas on this broker and on another one are both in
    sync.
    """
    image, delta = MetadataImage(), MetadataDelta()
    offset = MetadataOffset(1)
    image.replay(offset, 1, Topic(topic_id=TOPIC_ID, name=TopicName(TOPIC)), delta)
    for index in range(partitions):
        record = Partition(
            topic_id=TOPIC_ID,
            partition=PartitionIndex(index),
            replicas=(OTHER, OWN),
            isr=(OTHER, OWN),
            leader=leader,
        )
        image.replay(offset, 1, record, delta)
    return image


@asynccontextmanager
async def table_of(
    broker: Broker,
    partitions: int,
    *,
    leader: BrokerId = OTHER,
    settings: ReplicaSettings | None = None,
    proposals: Any = None,
    is_active: bool = True,
    on_offline: Callable[[str], None] = pytest.fail,
    on_broken: Callable[[tuple[TopicIdPartition, ...]], None] = lambda broken: pytest.fail(
        f"internal errors took replicas offline: {broken}"
    ),
    clock: Clock = SYSTEM_CLOCK,
) -> AsyncIterator[tuple[PartitionTable, Any]]:
    """Yield the replicas of a directory, and the list of reports about its disk space to the
    controller.
    """
    told: list[bool] = []
    pool = DiskPool(disk_threads(1))
    table = PartitionTable(
        broker_id=OWN,
        directory=broker.directory,
        defaults=CONFIG,
        settings=settings or ReplicaSettings(),
        pool=pool,
        proposals=proposals,
        on_offline=on_offline,
        on_broken=on_broken,
        clock=clock,
    )
    links: Any = NoLinks()
    table.links = links
    full_disk = FullDisk(table=table, directory=broker.directory, on_change=told.append)
    watching = asyncio.create_task(full_disk.run())
    if is_active:
        table.activate(image_of(partitions, leader=leader))
    try:
        yield table, told
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await pool.idle()
        pool.close()


def held_lease() -> Lease:
    """Return a lease that never expires."""
    lease = Lease(FOR_EVER_MS)
    lease.renew(0)
    return lease


def served(partitions: LocalPartitions) -> ServedPartition:
    """Return the first partition of the topic, which has a replica on this broker."""
    partition = partitions.find(TOPIC, PARTITION)
    assert isinstance(partition, ServedPartition), partition
    return partition


def partition_of(table: PartitionTable) -> ServedPartition:
    """Return the first partition of the topic, as clients use it while the broker's lease is valid."""
    return served(LocalPartitions(table, held_lease(), broker_id=OWN, reads_by_rack=False))
