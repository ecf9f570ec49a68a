"""A consumer that sets client.rack reads from the in-sync replica in its rack (KIP-392)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

from odradek.embedded import ChildProcess, ClusterPlan, EmbeddedCluster
from tests.e2e.kafka.access import produce

pytestmark = pytest.mark.timeout(180)
RECORDS = 300
TIMEOUT_S = 60.0  # so high that a slow machine does not exceed it


class RackedCluster(EmbeddedCluster):
    """A cluster in which broker N is in rack N."""

    def _child(self, name: str, module: str, settings: dict[str, Any], *more: str) -> ChildProcess:
        if name.startswith("broker-"):
            settings = {**settings, "broker.rack": name.removeprefix("broker-")}
        return super()._child(name, module, settings, *more)


@pytest.fixture(scope="module")
def racked() -> Iterator[EmbeddedCluster]:
    plan = ClusterPlan(brokers=2, controllers=1, settings=("replica.selector.class=rack",))
    with RackedCluster(plan) as running:
        running.start()
        running.wait_ready()
        yield running


def fetches_by_broker(bootstrap: str, topic: str, rack: str) -> dict[int, int]:
    """Read all of the topic, and a while longer; return how many fetches each broker got."""
    statistics: list[str] = []
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "none",
        "client.rack": rack,
        "fetch.wait.max.ms": 50,
        "statistics.interval.ms": 200,
        "stats_cb": statistics.append,
    }
    consumer = ck.Consumer(config)
    try:
        consumer.assign([ck.TopicPartition(topic, 0, 0)])
        found: list[bytes | None] = []
        deadline = time.monotonic() + TIMEOUT_S
        told_after = 0
        while len(found) < RECORDS or told_after < 3:
            assert time.monotonic() < deadline, f"{len(found)} records"
            told = len(statistics)
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message.value())
            told_after += len(found) >= RECORDS and len(statistics) > told
        assert found == [b"%d" % n for n in range(RECORDS)]
    finally:
        consumer.close()
    brokers = json.loads(statistics[-1])["brokers"].values()
    return {one["nodeid"]: one["req"].get("Fetch", 0) for one in brokers if one["nodeid"] in (1, 2)}


def test_reading_from_the_replica_in_the_consumers_rack(
    racked: EmbeddedCluster, topic: str
) -> None:
    client = admin.AdminClient({"bootstrap.servers": racked.kafka_bootstrap})
    new = admin.NewTopic(topic, 1, replica_assignment=[[1, 2]])
    client.create_topics([new])[topic].result(TIMEOUT_S)
    values = [b"%d" % n for n in range(RECORDS)]
    produce(racked.kafka_bootstrap, topic, values, timestamps_ms=[1] * RECORDS)
    deadline = time.monotonic() + TIMEOUT_S
    while len(client.list_topics(topic).topics[topic].partitions[0].isrs) < 2:
        assert time.monotonic() < deadline, "the follower is not in sync"
    near_follower = fetches_by_broker(racked.kafka_bootstrap, topic, "2")
    assert near_follower[2] > near_follower[1]
    near_leader = fetches_by_broker(racked.kafka_bootstrap, topic, "1")
    assert near_leader.get(2, 0) == 0
    elsewhere = fetches_by_broker(racked.kafka_bootstrap, topic, "moon")
    assert elsewhere.get(2, 0) == 0
