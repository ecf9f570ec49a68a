"""With three brokers and three replicas, records acknowledged to unmodified clients survive the
death of any broker.
"""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

from odradek.embedded import EmbeddedCluster

TIMEOUT_S = 60.0  # so high that a slow machine does not exceed it


def create(cluster: EmbeddedCluster, topic: str, partitions: int) -> admin.AdminClient:
    client = admin.AdminClient({"bootstrap.servers": cluster.kafka_bootstrap})
    new = admin.NewTopic(topic, partitions, 3, config={"min.insync.replicas": "2"})
    client.create_topics([new])[topic].result(TIMEOUT_S)
    return client


def leader_of(client: admin.AdminClient, topic: str) -> int:
    leader: int = client.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[0].leader
    return leader


class Ledger:
    """An idempotent producer with acks=all that sends numbers, and remembers which were
    acknowledged.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.acknowledged: set[int] = set()
        self.failed: list[Any] = []
        self.sent = 0
        self._producer = ck.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 60_000,
                "reconnect.backoff.max.ms": 500,
            }
        )

    def send_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            number = self.sent
            self.sent += 1
            self._producer.produce(
                self.topic,
                b"%d" % number,
                on_delivery=lambda error, _, n=number: self._told(n, error),
            )
            self._producer.poll(0.001)

    def finish(self) -> None:
        assert self._producer.flush(60) == 0
        assert not self.failed, self.failed[:3]

    def _told(self, number: int, error: Any) -> None:
        if error is None:
            self.acknowledged.add(number)
        else:
            self.failed.append(error)


def read_all(bootstrap: str, topic: str, count: int) -> list[int]:
    consumer = ck.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"g-{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[int] = []
    deadline = time.monotonic() + 60
    try:
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.5):
                if message.error() is None:
                    found.append(int(message.value() or b"-1"))
    finally:
        consumer.close()
    return found


def kill_rounds(cluster: EmbeddedCluster, topic: str, rounds: int, pause_s: float) -> None:
    client = create(cluster, topic, 1)
    ledger = Ledger(cluster.kafka_bootstrap, topic)
    ledger.send_for(1)
    for _ in range(rounds):
        leader = cluster.brokers[leader_of(client, topic)]
        leader.kill()
        ledger.send_for(pause_s)
        leader.start()
        leader.wait_ready(TIMEOUT_S)
        ledger.send_for(pause_s)
    ledger.finish()
    found = read_all(cluster.kafka_bootstrap, topic, len(ledger.acknowledged))
    assert set(found) == ledger.acknowledged
    assert found == sorted(found), "reordered"
    assert len(found) == len(set(found)), "repeated"


@pytest.mark.timeout(180)
def test_the_leader_dies_and_comes_back(three: EmbeddedCluster, topic: str) -> None:
    kill_rounds(three, topic, rounds=2, pause_s=2)


@pytest.mark.long
@pytest.mark.scenario("confluent-kafka", "broker killed")
@pytest.mark.timeout(900)
def test_a_broker_dies_every_20_seconds(three: EmbeddedCluster, topic: str) -> None:
    kill_rounds(three, topic, rounds=10, pause_s=10)


@pytest.mark.timeout(180)
def test_a_group_survives_its_coordinator(three: EmbeddedCluster, topic: str) -> None:
    create(three, topic, 3)
    ledger = Ledger(three.kafka_bootstrap, topic)
    ledger.send_for(1)
    ledger.finish()
    config = {
        "bootstrap.servers": three.kafka_bootstrap,
        "group.id": f"g-{topic}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 10_000,
    }
    consumer = ck.Consumer(config)
    consumer.subscribe([topic])
    found: set[int] = set()
    deadline = time.monotonic() + 90
    killed = False
    while len(found) < len(ledger.acknowledged) and time.monotonic() < deadline:
        for message in consumer.consume(50, 0.2):
            if message.error() is None:
                found.add(int(message.value() or b"-1"))
        if found and not killed:
            consumer.commit(asynchronous=False)
            described = admin.AdminClient({"bootstrap.servers": three.kafka_bootstrap})
            groups = described.describe_consumer_groups([f"g-{topic}"])
            coordinator = groups[f"g-{topic}"].result(TIMEOUT_S).coordinator.id
            three.brokers[coordinator].kill()
            killed = True
    assert found == ledger.acknowledged
    assert killed
    consumer.commit(asynchronous=False)
    consumer.close()
