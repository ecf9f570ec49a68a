"""Brokers die or hang under load: the client continues, and no record is lost or duplicated."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from odradek import Client, DeliveryFuture
from odradek.embedded import EmbeddedCluster

PARTITIONS = 6
GAP_S_MAX = 15.0  # so high that a slow machine does not exceed it; usually at most 3 s
RATE = 2_000


@dataclass(slots=True)
class Load:
    """Sends numbered records with acks=all, and records when each was acknowledged."""

    client: Client
    topic: str
    sent: int = 0
    acknowledged: int = 0
    acknowledged_s: dict[int, list[float]] = field(default_factory=dict)  # by partition
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    failures: list[BaseException] = field(default_factory=list)
    is_over: bool = False

    async def run(self) -> None:
        async with self.client.producer() as producer:
            began_s = time.monotonic()
            while not self.is_over:
                while self.sent < (time.monotonic() - began_s) * RATE:
                    future = await producer.send(
                        self.topic, b"%d" % self.sent, key=b"%d" % (self.sent % 50)
                    )
                    future.add_done_callback(self._note)
                    self.sent += 1
                await asyncio.sleep(0.005)
            await producer.flush(60)

    async def progress(self, seconds: float, timeout_s: float = 30.0) -> None:
        """Wait until the records of the next `seconds` are acknowledged."""
        goal = self.sent + int(seconds * RATE)
        async with asyncio.timeout(timeout_s + seconds):
            while self.acknowledged + len(self.failures) < goal:
                self.changed.clear()
                await self.changed.wait()

    @property
    def longest_gap_s(self) -> float:
        """Return the longest time between two acknowledgements of one partition."""
        return max(
            later - earlier
            for times in self.acknowledged_s.values()
            for earlier, later in itertools.pairwise(times)
        )

    def _note(self, future: DeliveryFuture) -> None:
        self.changed.set()
        error = future.exception()
        if error is None:
            self.acknowledged += 1
            times = self.acknowledged_s.setdefault(future.result().partition, [])
            times.append(time.monotonic())
        else:
            self.failures.append(error)


async def busiest_leader(client: Client, topic: str) -> int:
    described = await client.admin.describe_topic(topic)
    return Counter(p.leader_id for p in described.partitions).most_common(1)[0][0]


async def verify(client: Client, topic: str, load: Load) -> None:
    assert load.failures == []
    assert load.acknowledged == load.sent
    seen: dict[bytes, list[int]] = {}
    read = 0
    async with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        while read < load.sent:
            records = await consumer.getmany(20_000)
            assert records, f"{read} of {load.sent} came"
            read += len(records)
            for record in records:
                seen.setdefault(record.key, []).append(int(record.value))
    for key, numbers in seen.items():
        assert numbers == list(range(int(key), load.sent, 50)), f"key {key!r}"


@contextlib.asynccontextmanager
async def under_load(cluster: EmbeddedCluster, topic: str) -> AsyncIterator[Load]:
    """Produce for the length of the `with` block.

    All records must be written once and in order, and no pause may be long.
    """
    async with Client(cluster.bootstrap) as client:
        await client.admin.create_topic(
            topic,
            partitions=PARTITIONS,
            replication_factor=3,
            configs={"min.insync.replicas": "2"},
        )
        load = Load(client, topic)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run())
            yield load
            load.is_over = True
        await verify(client, topic, load)
    print(f"longest gap between acknowledgements: {load.longest_gap_s:.2f} s")
    assert load.longest_gap_s < GAP_S_MAX


async def test_a_leader_killed_under_load_costs_a_pause_and_nothing_else(
    three_brokers: EmbeddedCluster, topic: str
) -> None:
    read = 0
    async with under_load(three_brokers, topic) as load:

        async def follow() -> None:
            nonlocal read
            async with load.client.consumer(topic, auto_offset_reset="earliest") as consumer:
                while not load.is_over or read < load.sent:
                    read += len(await consumer.getmany(500))

        async with asyncio.TaskGroup() as readers:
            readers.create_task(follow())
            await load.progress(1)
            leader = await busiest_leader(load.client, topic)
            three_brokers.brokers[leader].kill()
            await load.progress(2)
            three_brokers.brokers[leader].start()
            await asyncio.to_thread(three_brokers.brokers[leader].wait_ready, 30)
            await load.progress(1)
            load.is_over = True
    assert read == load.sent


async def test_a_leader_that_is_stopped_is_left_and_wakes_harmless(
    three_brokers: EmbeddedCluster, topic: str
) -> None:
    async with under_load(three_brokers, topic) as load:
        await load.progress(1)
        leader = await busiest_leader(load.client, topic)
        three_brokers.brokers[leader].signal(signal.SIGSTOP)
        try:
            await load.progress(2)
        finally:
            three_brokers.brokers[leader].signal(signal.SIGCONT)
        await load.progress(2)


async def test_every_broker_is_restarted_in_turn_under_load(
    three_brokers: EmbeddedCluster, topic: str
) -> None:
    async with under_load(three_brokers, topic) as load:
        for broker in three_brokers.brokers.values():
            await load.progress(0.5)
            broker.signal(signal.SIGTERM)
            assert await asyncio.to_thread(broker.wait, 20)
            broker.start()
            await asyncio.to_thread(broker.wait_ready, 30)
            await in_sync(load.client, topic)
        await load.progress(0.5)


async def in_sync(client: Client, topic: str) -> None:
    """Wait until every replica is in sync again, so that the next broker can be stopped safely."""
    async with asyncio.timeout(60):
        while True:
            described = await client.admin.describe_topic(topic)
            if all(len(p.isr) == 3 for p in described.partitions):
                return
            await asyncio.sleep(0.05)
