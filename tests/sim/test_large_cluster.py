"""A cluster of 100 brokers and 2,000 partitions: one broker dies, then the active controller and another broker.

Times are simulated: they show the cost of the protocol, not the speed of a machine. Sizes are real, both of the
metadata in memory and of each batch that would be sent.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from odradek_broker.partition.effects import Role
from odradek_metadata_quorum.controller.requests import NewTopic
from odradek_protocol.identity import TopicIdPartition
from odradek_protocol.metadata.codec import encode_batch
from odradek_protocol.metadata.features import METADATA_VERSION_MAX
from odradek_protocol.metadata.records import MetadataBatch, PartitionChange
from odradek_protocol.metadata.snapshot import read_snapshot, snapshot_bytes
from tests.sim.cluster import Cluster
from tests.sim.metadata_log import Entry
from tests.sim.scheduler import MS, SECOND, Scheduler

BROKERS = 100
TOPICS = 4
PARTITIONS_PER_TOPIC = 500
FAILOVER_MS_MAX = 5_000
IMAGE_MIB_MAX = 20
ENTRY_BYTES_MAX = 1 << 20
CHANGES_PER_ENTRY_MAX = 500


class LargeCluster:
    """The cluster, and the sizes of the entries in its metadata log."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(seed=1)
        self.cluster = Cluster(
            self.scheduler, broker_count=BROKERS, tick_ms=1_000, credit_bytes=1 << 20
        )
        self.entry_bytes_max = 0
        self.changes_max = 0
        self.cluster.log.on_committed.append(self._committed)
        self.cluster.start()
        self.cluster.create_topics(
            *(
                NewTopic(
                    name=f"topic-{number}",
                    partition_count=PARTITIONS_PER_TOPIC,
                    replication_factor=3,
                    configs=(("min.insync.replicas", "2"),),
                )
                for number in range(TOPICS)
            )
        )
        self.until(self._all_attached, limit_ms=60_000)

    def _committed(self, offset: int, entry: Entry) -> None:
        payload = encode_batch(
            MetadataBatch(controller_epoch=entry.term, records=entry.records),
            level=METADATA_VERSION_MAX,
        )
        self.entry_bytes_max = max(self.entry_bytes_max, len(payload))
        changes = sum(isinstance(record, PartitionChange) for record in entry.records)
        self.changes_max = max(self.changes_max, changes)

    def until(self, condition: Callable[[], bool], *, limit_ms: int) -> int:
        """Run until the condition is true. Return how many simulated ms that took."""
        began = self.scheduler.now_us
        while not condition():
            passed_ms = (self.scheduler.now_us - began) // MS
            assert passed_ms < limit_ms, f"not within {limit_ms} simulated ms"
            self.scheduler.run(self.scheduler.now_us + 50 * MS)
        return (self.scheduler.now_us - began) // MS

    def _all_attached(self) -> bool:
        states = list(self.cluster.log.image.partitions())
        if len(states) < TOPICS * PARTITIONS_PER_TOPIC:
            return False
        for state in states:
            partition = TopicIdPartition(state.topic_id, state.partition)
            for broker_id in state.replicas:
                life = self.cluster.brokers[broker_id].life
                hosted = life.host(partition) if life is not None else None
                if hosted is None:
                    return False
                replica = hosted.replica
                if replica.role is not Role.LEADER and not replica.is_streaming:
                    return False
        return True

    def all_led(self) -> bool:
        """Return whether each partition has a live leader that knows that it is the leader."""
        for state in self.cluster.log.image.partitions():
            node = self.cluster.brokers.get(state.leader)
            if node is None or node.life is None or not node.is_up:
                return False
            hosted = node.life.host(TopicIdPartition(state.topic_id, state.partition))
            if hosted is None or hosted.replica.role is not Role.LEADER:
                return False
        return True


@pytest.mark.timeout(300)
def test_failovers_are_quick_and_everything_is_bounded() -> None:
    large = LargeCluster()
    try:
        _fail_over(large)
    finally:
        large.cluster.close()


def _fail_over(large: LargeCluster) -> None:
    cluster = large.cluster
    assert large.all_led()

    cluster.brokers[7].crash()
    assert not large.all_led()
    assert large.until(large.all_led, limit_ms=FAILOVER_MS_MAX) <= FAILOVER_MS_MAX

    assert cluster.log.leader_id is not None
    cluster.controllers[cluster.log.leader_id].crash()
    cluster.brokers[8].crash()
    assert large.until(large.all_led, limit_ms=FAILOVER_MS_MAX) <= FAILOVER_MS_MAX

    assert large.entry_bytes_max <= ENTRY_BYTES_MAX
    assert large.changes_max <= CHANGES_PER_ENTRY_MAX

    snapshot = snapshot_bytes(cluster.log.image)
    gc.collect()
    tracemalloc.start()
    image = read_snapshot(snapshot)
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"image: {size_bytes / 1e6:.1f} MB")
    assert sum(1 for _ in image.partitions()) == TOPICS * PARTITIONS_PER_TOPIC
    assert size_bytes <= IMAGE_MIB_MAX << 20
    assert len(snapshot) <= size_bytes
    assert large.scheduler.now_us < 120 * SECOND
