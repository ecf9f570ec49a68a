"""Measures what the number of partitions costs the controllers: memory, bytes and CPU time.

    python -m tests.bench.bench_metadata [--partitions 10000,50000,200000] [--brokers 100]

The production controller runs without a network: one batch after the other is decided, encoded, and
replayed at an active and at a standby controller. Sizes are real. Times are CPU time of one core,
so they hold for a busy machine, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from odradek_metadata_quorum.controller import Controller, ControllerSettings, Decision
from odradek_metadata_quorum.controller.partitions import alter_partitions
from odradek_metadata_quorum.controller.registration import register
from odradek_metadata_quorum.controller.requests import (
    AlterPartitionItem,
    AlterPartitionRequest,
    CreateTopicsRequest,
    HeartbeatRequest,
    NewTopic,
    RegisterRequest,
)
from odradek_metadata_quorum.controller.topics import create_topics
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    IncarnationId,
    MetadataOffset,
    TopicIdPartition,
)
from odradek_protocol.metadata.codec import decode_batch
from odradek_protocol.metadata.features import OWN_MAXIMA, OWN_MINIMA
from odradek_protocol.metadata.records import NO_LEADER, Endpoint, RestartClass
from odradek_protocol.metadata.snapshot import SnapshotReader, write_snapshot

PARTITIONS_PER_TOPIC = 500
HEARTBEAT_INTERVAL_MS = 500
TICK_MS = 50
CHUNK_BYTES = 64 << 10
CLUSTER_ID = "bench"


class Cost:
    """The CPU time of pieces of work: their sum, and the longest one."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self.longest_s = 0.0

    @contextmanager
    def piece(self) -> Iterator[None]:
        began_s = time.process_time()
        yield
        taken_s = time.process_time() - began_s
        self.total_s += taken_s
        self.longest_s = max(self.longest_s, taken_s)


class Quorum:
    """An active controller whose decisions are committed at once, and a standby that replays the encoded records."""

    def __init__(self, partitions: int) -> None:
        settings = ControllerSettings(cluster_id=CLUSTER_ID, partitions_max=max(partitions, 1) + 1)
        self.active = Controller(settings, random.Random(1))
        self.standby = Controller(settings, random.Random(2))
        self.now_ms = self.offset = self.bytes = self.batches = 0
        self.epochs: dict[int, BrokerEpoch] = {}
        self.deciding, self.replaying = Cost(), Cost()
        self.elect(self.active)

    def elect(self, controller: Controller) -> None:
        epoch = max(self.active.committed.epoch, self.standby.committed.epoch) + 1
        with self.deciding.piece():
            decisions = controller.became_active(epoch, self.now_ms)
        for decision in decisions:
            self.commit(decision)

    def fail_over(self) -> None:
        self.active.resigned()
        self.active, self.standby = self.standby, self.active
        self.elect(self.active)

    def commit(self, decision: Decision[Any]) -> None:
        if not decision.records:
            return
        self.offset += 1
        self.bytes += len(decision.payload)
        self.batches += 1
        epoch = self.active.epoch
        assert epoch is not None
        for record in decision.records:
            self.active.replay(MetadataOffset(self.offset), epoch, record)
        with self.replaying.piece():
            for record in decode_batch(decision.payload).records:
                self.standby.replay(MetadataOffset(self.offset), epoch, record)

    def decide(self, handler: Any, request: Any) -> Any:
        with self.deciding.piece():
            decision = self.active.decide(self.now_ms, handler, request)
        self.commit(decision)
        return decision.response

    def beat(self, broker_ids: list[int]) -> None:
        for broker_id in broker_ids:
            request = HeartbeatRequest(
                broker_id=BrokerId(broker_id),
                broker_epoch=self.epochs[broker_id],
                image_offset=self.offset,
            )
            with self.deciding.piece():
                decision = self.active.heartbeat(self.now_ms, request)
            self.commit(decision)

    def tick(self) -> None:
        with self.deciding.piece():
            decisions = self.active.tick(self.now_ms)
        for decision in decisions:
            self.commit(decision)

    def settle(self) -> int:
        """Tick until the controller has nothing left to repair; return the number of ticks."""
        ticks = 0
        while ticks == 0 or self.active.is_repairing:
            self.tick()
            ticks += 1
        return ticks

    def measured(self) -> tuple[Cost, Cost]:
        """Start a measurement, and return the costs of deciding and of replaying, which are 0 now
        and grow with the work that follows.
        """
        self.bytes = self.batches = 0
        self.deciding, self.replaying = Cost(), Cost()
        return self.deciding, self.replaying

    def register(self, broker_id: int) -> None:
        request = RegisterRequest(
            cluster_id=CLUSTER_ID,
            broker_id=BrokerId(broker_id),
            incarnation_id=IncarnationId(broker_id.to_bytes(16, "big")),
            directory_ids=(DirectoryId(broker_id.to_bytes(16, "big")),),
            restart_class=RestartClass.POWER,
            endpoints=tuple(
                Endpoint(name=name, host=f"broker-{broker_id}.example.com", port=9090 + number)
                for number, name in enumerate(("KAFKA", "GRPC", "REPLICATION"))
            ),
            rack=f"r{broker_id % 3}",
            host_id=f"host-{broker_id // 4}",
            features=OWN_MAXIMA,
            feature_minima=OWN_MINIMA,
        )
        self.epochs[broker_id] = self.decide(register, request).broker_epoch


def measure(partitions: int, brokers: int) -> dict[str, Any]:
    """Return the figures of a cluster of this size."""
    quorum = Quorum(partitions)
    broker_ids = list(range(1, brokers + 1))
    for broker_id in broker_ids:
        quorum.register(broker_id)
        quorum.beat([broker_id])
    figures: dict[str, Any] = {"partitions": partitions, "brokers": brokers}

    deciding, replaying = quorum.measured()
    for first in range(0, partitions, PARTITIONS_PER_TOPIC):
        topic = NewTopic(
            name=f"topic-{first}",
            partition_count=min(PARTITIONS_PER_TOPIC, partitions - first),
            replication_factor=3,
        )
        (result,) = quorum.decide(create_topics, CreateTopicsRequest(topics=(topic,)))
        assert result.outcome.is_good, result
    figures["create_us_per_partition"] = round(deciding.total_s * 1e6 / partitions, 1)
    figures["replay_us_per_partition"] = round(replaying.total_s * 1e6 / partitions, 1)
    figures["log_bytes_per_partition"] = round(quorum.bytes / partitions, 1)

    image = quorum.active.committed
    gc.collect()
    began_s = time.process_time()
    gc.collect()
    figures["full_collection_ms"] = round((time.process_time() - began_s) * 1e3, 1)
    began_s = time.process_time()
    snapshot = b"".join(write_snapshot(image))
    figures["snapshot_mib"] = round(len(snapshot) / 2**20, 2)
    figures["snapshot_write_s"] = round(time.process_time() - began_s, 2)
    loading = Cost()
    reader = SnapshotReader()
    for start in range(0, len(snapshot), CHUNK_BYTES):
        with loading.piece():
            reader.add(snapshot[start : start + CHUNK_BYTES])
    loaded = reader.finish()
    assert sum(1 for _ in loaded.partitions()) == partitions
    figures["snapshot_load_s"] = round(loading.total_s, 2)
    figures["snapshot_load_longest_ms"] = round(loading.longest_s * 1e3, 1)
    del loaded, reader
    gc.collect()
    tracemalloc.start()
    reader = SnapshotReader()
    reader.add(snapshot)
    loaded = reader.finish()
    figures["image_mib"] = round(tracemalloc.get_traced_memory()[0] / 2**20, 1)
    copied = loaded.copy()
    figures["image_and_working_copy_mib"] = round(tracemalloc.get_traced_memory()[0] / 2**20, 1)
    tracemalloc.stop()
    del loaded, copied, reader, snapshot
    gc.collect()

    state = next(image.partitions())
    item = AlterPartitionItem(
        partition=TopicIdPartition(state.topic_id, state.partition),
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        isr=tuple((b, image.brokers[b].broker_epoch) for b in state.isr[:2]),
    )
    quorum.measured()
    quorum.decide(
        alter_partitions,
        AlterPartitionRequest(
            broker_id=state.leader,
            broker_epoch=image.brokers[state.leader].broker_epoch,
            partitions=(item,),
        ),
    )
    figures["isr_change_bytes"] = quorum.bytes

    # Measure the creation of one more topic, with one partition, after a change of an ISR.
    deciding, _ = quorum.measured()
    quorum.decide(
        create_topics, CreateTopicsRequest(topics=(NewTopic(name="last", partition_count=1),))
    )
    figures["create_one_topic_ms"] = round(deciding.total_s * 1e3, 1)

    quorum.settle()
    deciding, _ = quorum.measured()
    for _ in range(HEARTBEAT_INTERVAL_MS // TICK_MS * 4):
        quorum.now_ms += TICK_MS
        if quorum.now_ms % HEARTBEAT_INTERVAL_MS == 0:
            quorum.beat(broker_ids)
        quorum.tick()
    figures["idle_cpu_percent"] = round(
        deciding.total_s / (HEARTBEAT_INTERVAL_MS * 4 / 1e3) * 100, 1
    )
    figures["idle_longest_ms"] = round(deciding.longest_s * 1e3, 1)

    deciding, replaying = quorum.measured()
    victim = broker_ids.pop()
    quorum.active.stream_broken(BrokerId(victim), quorum.now_ms)
    while not quorum.active.image.brokers[BrokerId(victim)].fenced:
        quorum.now_ms += TICK_MS
        quorum.beat(broker_ids)
        deciding, replaying = quorum.measured()
        quorum.tick()
    ticks = 1 + (quorum.settle() if quorum.active.is_repairing else 0)
    figures["dead_broker"] = _failover(quorum, ticks, deciding, replaying)

    deciding, replaying = quorum.measured()
    for broker_id in broker_ids[-2:]:
        # Simulate that these brokers died with the active controller: the new controller ends their sessions.
        quorum.standby.stream_broken(BrokerId(broker_id), quorum.now_ms)
    dead, broker_ids = broker_ids[-2:], broker_ids[:-2]
    quorum.fail_over()
    figures["new_controller_opens_ms"] = round(replaying.longest_s * 1e3, 1)
    while not all(quorum.active.image.brokers[BrokerId(b)].fenced for b in dead):
        quorum.now_ms += TICK_MS
        quorum.beat(broker_ids)
        quorum.tick()
    ticks = quorum.settle()
    figures["dead_controller_and_two_brokers"] = _failover(quorum, ticks, deciding, replaying)
    return figures


def _failover(quorum: Quorum, ticks: int, deciding: Cost, replaying: Cost) -> dict[str, Any]:
    assert all(
        state.leader != NO_LEADER
        for state in quorum.active.committed.partitions()
        if len(state.replicas) > 1
    )
    return {
        "decide_s": round(deciding.total_s, 2),
        "longest_step_ms": round(deciding.longest_s * 1e3, 1),
        "replay_s": round(replaying.total_s, 2),
        "ticks": ticks,
        "batches": quorum.batches,
        "mib": round(quorum.bytes / 2**20, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--partitions", default="10000,50000,200000")
    parser.add_argument("--brokers", type=int, default=100)
    arguments = parser.parse_args()
    for partitions in map(int, arguments.partitions.split(",")):
        figures = measure(partitions, arguments.brokers)
        print(json.dumps({"bench": "metadata", **figures}), flush=True)


if __name__ == "__main__":
    main()
