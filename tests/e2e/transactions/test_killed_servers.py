"""The example copies records exactly once, while SIGKILL hits brokers and controllers in each of
their roles for the copy.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from odradek.client import Client
from odradek.embedded import ChildProcess, ClusterPlan, EmbeddedCluster
from odradek_broker.coordination.placement import absolute_java_hash
from tests.e2e.faults.cluster_faults import active_controller, leader_of, restart

EXAMPLE = Path(__file__).parents[3] / "clients/python/examples/transactional_copy.py"
INTERNAL_PARTITIONS = 5
PARTITIONS = 3
ROUND_ORDERS = 300  # copied after a kill before the next
BATCH = 20
QUIET_S_MAX = 90.0  # longest time without a copied order: the longest time-out and 30 s


@pytest.fixture(scope="module")
def replicated() -> Iterator[EmbeddedCluster]:
    """Yield three brokers and three controllers, which remove a silent member from its group after
    a second.
    """
    settings = (
        f"transaction.state.log.num.partitions={INTERNAL_PARTITIONS}",
        f"offsets.topic.num.partitions={INTERNAL_PARTITIONS}",
        "group.consumer.session.timeout.ms=1000",
        "group.consumer.heartbeat.interval.ms=200",
    )
    with EmbeddedCluster(ClusterPlan(brokers=3, controllers=3, settings=settings)) as running:
        running.start()
        running.wait_ready()
        yield running


@dataclass
class Copy:
    """A running copier, the records that it is given, and those that readers of its output have
    seen.
    """

    cluster: EmbeddedCluster
    client: Client
    source: str
    sink: str
    copier: subprocess.Popen[bytes] | None = None
    fed: int = 0
    copied: Counter[int] = field(default_factory=Counter)

    def start_copier(self) -> None:
        environment = {**os.environ, "ODRADEK_BOOTSTRAP": self.cluster.bootstrap}
        command = [sys.executable, str(EXAMPLE), "1", self.source, self.sink]
        self.copier = subprocess.Popen(command, env=environment)

    def kill_copier(self) -> None:
        assert self.copier is not None
        self.copier.kill()
        self.copier.wait()

    async def feed(self) -> None:
        async with self.client.producer() as producer:
            while True:
                numbers = range(self.fed, self.fed + BATCH)
                sent = [
                    await producer.send(self.source, json.dumps({"quantity": number}).encode())
                    for number in numbers
                ]
                await asyncio.gather(*sent)
                self.fed += BATCH
                while self.fed - len(self.copied) > 2 * ROUND_ORDERS:  # noqa: ASYNC110  a bound
                    await asyncio.sleep(0.05)

    async def read(self) -> None:
        async with self.client.consumer(
            self.sink, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as reader:
            while True:
                for record in await reader.getmany(timeout_ms=200):
                    self.copied[json.loads(record.value)["quantity"]] += 1

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition; fail if the copy makes no progress for too long or the copier
        ends by itself.
        """
        count, since_s = -1, time.monotonic()
        while not condition():
            assert self.copier is not None
            assert self.copier.poll() is None, f"the copier ended with {self.copier.returncode}"
            if len(self.copied) != count:
                count, since_s = len(self.copied), time.monotonic()
            assert time.monotonic() - since_s < QUIET_S_MAX, f"no progress at {count} orders"
            await asyncio.sleep(0.05)

    async def broker_of_coordinator(self, topic: str, name: str) -> ChildProcess:
        partition = absolute_java_hash(name) % INTERNAL_PARTITIONS
        return self.cluster.brokers[await leader_of(self.client, topic, partition)]


async def kill_copier(copy: Copy) -> None:
    copy.kill_copier()
    copy.start_copier()


async def kill_and_restart(victim: ChildProcess) -> None:
    victim.kill()
    await restart([victim])


async def kill_transaction_coordinator(copy: Copy) -> None:
    name = f"transactional-copy.{copy.source}.1"
    await kill_and_restart(await copy.broker_of_coordinator("__transaction_state", name))


async def kill_group_coordinator(copy: Copy) -> None:
    name = f"transactional-copy.{copy.source}"
    await kill_and_restart(await copy.broker_of_coordinator("__consumer_offsets", name))


async def kill_leader_of_output(copy: Copy) -> None:
    await kill_and_restart(copy.cluster.brokers[await leader_of(copy.client, copy.sink)])


async def kill_controller(copy: Copy) -> None:
    await kill_and_restart(await active_controller(copy.client, copy.cluster))


FAULTS: tuple[Callable[[Copy], Awaitable[None]], ...] = (
    kill_transaction_coordinator,
    kill_copier,
    kill_group_coordinator,
    kill_leader_of_output,
    kill_controller,
)


@asynccontextmanager
async def copying(cluster: EmbeddedCluster, name: str) -> AsyncIterator[Copy]:
    """Run a copy; at the end it must have copied each order once."""
    async with Client(cluster.bootstrap) as client:
        copy = Copy(cluster, client, f"{name}-in", f"{name}-out")
        for topic in (copy.source, copy.sink):
            await client.admin.create_topic(
                topic,
                partitions=PARTITIONS,
                replication_factor=3,
                configs={"min.insync.replicas": "2"},
            )
        copy.start_copier()
        try:
            reading = asyncio.create_task(copy.read())
            feeding = asyncio.create_task(copy.feed())
            await copy.until(lambda: len(copy.copied) >= ROUND_ORDERS)
            yield copy
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            await copy.until(lambda: len(copy.copied) >= copy.fed)
            # A second copy of a record could still arrive, so read everything again.
            copy.kill_copier()
            await read_to_the_end(copy)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        finally:
            copy.kill_copier()
        twice = [number for number, count in copy.copied.items() if count > 1]
        assert not twice
        assert set(range(copy.fed)) <= set(copy.copied)


async def read_to_the_end(copy: Copy) -> None:
    """Compare the copy with what a second reader gets, which reads everything from the start."""
    again: Counter[int] = Counter()
    async with copy.client.consumer(
        copy.sink, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as reader:
        partitions = [(copy.sink, partition) for partition in range(PARTITIONS)]
        deadline_s = time.monotonic() + QUIET_S_MAX
        for partition, end in (await reader.end_offsets(partitions)).items():
            while await reader.position(partition) < end:
                assert time.monotonic() < deadline_s, f"{partition} cannot be read up to {end}"
                for record in await reader.getmany(timeout_ms=200):
                    again[json.loads(record.value)["quantity"]] += 1
    assert not [number for number, count in again.items() if count > 1]
    assert set(range(copy.fed)) <= set(again)


@pytest.mark.timeout(400)
async def test_each_order_is_copied_once_whatever_is_killed(
    replicated: EmbeddedCluster, name: str
) -> None:
    async with copying(replicated, name) as copy:
        for fault in FAULTS:
            before = len(copy.copied)
            await fault(copy)
            await copy.until(lambda before=before: len(copy.copied) >= before + ROUND_ORDERS)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_twenty_rounds_of_kills(replicated: EmbeddedCluster, name: str) -> None:
    async with copying(replicated, name) as copy:
        for number in range(20):
            before = len(copy.copied)
            await FAULTS[number % len(FAULTS)](copy)
            await copy.until(lambda before=before: len(copy.copied) >= before + ROUND_ORDERS)
