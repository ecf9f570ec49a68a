"""Banks and copiers with confluent-kafka run under SIGKILL and SIGSTOP in each role, and the
history checker checks what they did.

The long tests run exactly the same against Apache Kafka, where the checker must find nothing
either.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from odradek.client import Client
from odradek.embedded import ChildProcess, ClusterPlan, EmbeddedCluster
from odradek_broker.coordination.placement import absolute_java_hash
from tests.bench.comparisons.kafka_cluster import KafkaCluster, fetch_jars
from tests.e2e.faults.cluster_faults import active_controller, leader_of
from tests.e2e.transactions.recorded_run import ROLES, RecordedRun, recording

ROOT: Final = Path(__file__).parents[3]
INTERNAL_PARTITIONS: Final = 5
LONG_ROUNDS: Final = 20
STOPS_S: Final = (1, 15, 60)
READY_S_MAX: Final = 180.0


@pytest.fixture(scope="module")
def replicated() -> Iterator[EmbeddedCluster]:
    """Yield three brokers and three controllers."""
    settings = (
        f"transaction.state.log.num.partitions={INTERNAL_PARTITIONS}",
        f"offsets.topic.num.partitions={INTERNAL_PARTITIONS}",
        "group.initial.rebalance.delay.ms=0",
    )
    with EmbeddedCluster(ClusterPlan(brokers=3, controllers=3, settings=settings)) as running:
        running.start()
        running.wait_ready()
        yield running


class Victims:
    """The processes that have a role in a run."""

    def __init__(self, cluster: EmbeddedCluster, run: RecordedRun) -> None:
        self.cluster = cluster
        self.run = run

    def _leader(self, topic: str, partition: int) -> ChildProcess:
        async def find() -> int:
            async with Client(self.cluster.bootstrap) as client:
                return await leader_of(client, topic, partition)

        return self.cluster.brokers[asyncio.run(find())]

    def transaction_coordinator(self) -> ChildProcess:
        partition = absolute_java_hash(f"{self.run.name}-bank1") % INTERNAL_PARTITIONS
        return self._leader("__transaction_state", partition)

    def group_coordinator(self) -> ChildProcess:
        partition = absolute_java_hash(self.run.name) % INTERNAL_PARTITIONS
        return self._leader("__consumer_offsets", partition)

    def leader(self) -> ChildProcess:
        return self._leader(f"{self.run.name}-in", 0)

    def controller(self) -> ChildProcess:
        async def find() -> ChildProcess:
            async with Client(self.cluster.bootstrap) as client:
                return await active_controller(client, self.cluster)

        return asyncio.run(find())


SERVERS: Final[tuple[Callable[[Victims], ChildProcess], ...]] = (
    Victims.transaction_coordinator,
    Victims.leader,
    Victims.group_coordinator,
    Victims.controller,
)


def kill_client(run: RecordedRun, client: str) -> None:
    run.kill(client)
    run.start(client)


def kill_server(server: ChildProcess) -> None:
    server.kill()
    server.start()
    server.wait_ready(READY_S_MAX)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.timeout(600)
def test_no_anomaly_whatever_is_killed(
    replicated: EmbeddedCluster, name: str, tmp_path: Path
) -> None:
    with recording(replicated.kafka_bootstrap, name, tmp_path) as run:
        victims = Victims(replicated, run)
        for server in SERVERS:
            kill_client(run, random.choice([*ROLES]))
            kill_server(server(victims))
            run.wait_for_progress()


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_no_anomaly_in_twenty_rounds_of_kills(
    replicated: EmbeddedCluster, name: str, tmp_path: Path
) -> None:
    with recording(replicated.kafka_bootstrap, name, tmp_path) as run:
        victims = Victims(replicated, run)
        for number in range(LONG_ROUNDS):
            kill_client(run, random.choice([*ROLES]))
            kill_server(SERVERS[number % len(SERVERS)](victims))
            run.wait_for_progress()


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("stop_s", STOPS_S)
def test_no_anomaly_whatever_stands_still(
    replicated: EmbeddedCluster, name: str, tmp_path: Path, stop_s: int
) -> None:
    with recording(replicated.kafka_bootstrap, name, tmp_path) as run:
        victims = Victims(replicated, run)
        for server in (Victims.transaction_coordinator, Victims.leader):
            with stopped(server(victims).pid):
                time.sleep(stop_s)
            run.wait_for_progress()
        for client in ("bank1", "copier1"):
            with stopped(run.processes[client].pid):
                time.sleep(stop_s)
            run.wait_for_progress()


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.timeout(3_600)
def test_apache_kafka_has_no_anomaly_either(name: str, tmp_path: Path) -> None:
    """An anomaly that the checker reported for a correct cluster would be an error of the
    checker.
    """
    jars = fetch_jars(ROOT / "build" / "kafka-server")
    histories = tmp_path / "histories"
    histories.mkdir()
    with KafkaCluster(jars, tmp_path / "cluster", nodes=3) as kafka:
        kafka.start()
        wait_for_brokers(kafka.bootstrap, 3)
        with recording(kafka.bootstrap, name, histories) as run:
            for number in range(6):
                kill_client(run, random.choice([*ROLES]))
                kafka.kill(number % 3)
                kafka.start_again(number % 3)
                wait_for_brokers(kafka.bootstrap, 3)
                run.wait_for_progress()


def wait_for_brokers(bootstrap: str, count: int) -> None:
    from confluent_kafka import KafkaException, admin

    client = admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline_s = time.monotonic() + READY_S_MAX
    while True:
        try:
            if len(client.list_topics(timeout=5).brokers) == count:
                return
        except KafkaException:
            pass
        assert time.monotonic() < deadline_s, f"{bootstrap} has not {count} brokers"
        time.sleep(0.5)
