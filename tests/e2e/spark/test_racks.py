"""Tasks with a rack read from the replica in that rack, and not from the leader."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from odradek.embedded import ChildProcess, ClusterPlan, EmbeddedCluster
from tests.e2e.spark.topics import Output, Topics

RECORDS = 2_000


class RackedCluster(EmbeddedCluster):
    """A cluster in which broker N is in rack-N."""

    def _child(self, name: str, module: str, settings: dict[str, Any], *more: str) -> ChildProcess:
        if module == "odradek_broker":
            rack = {"broker.rack": f"rack-{settings['node.id']}", "replica.selector.class": "rack"}
            settings = settings | rack
        return super()._child(name, module, settings, *more)

    def bytes_read(self) -> dict[int, int]:
        """Return the bytes that consumers have read, by broker."""
        return {broker_id: self._bytes_of(broker_id) for broker_id in self.brokers}

    def _bytes_of(self, broker_id: int) -> int:
        address = self.describe()["metrics"][f"broker-{broker_id}"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
            text = response.read().decode()
        match = re.search(r"^odradek_broker_bytes_out_total (\S+)$", text, re.MULTILINE)
        assert match is not None, text[:2000]
        return int(float(match[1]))


@pytest.fixture(scope="module")
def racked(spark_works: None) -> Iterator[RackedCluster]:
    with RackedCluster(ClusterPlan(brokers=2, controllers=1)) as running:
        running.start()
        running.wait_ready()
        yield running


@pytest.mark.parametrize("broker_id", [1, 2])
def test_records_come_from_the_replica_in_the_readers_rack(
    spark: SparkSession, racked: RackedCluster, broker_id: int
) -> None:
    topics, name = Topics(racked.bootstrap), f"racked-{broker_id}"
    topics.create(name, partitions=4, replicas=2, min_insync_replicas="2")
    assert len(set(topics.leaders(name).values())) == 2, "each of them leads some"
    value = b"x" * 1000
    topics.send(name, [Output(value, partition=i % 4) for i in range(RECORDS)])
    before = racked.bytes_read()
    frame = spark.read.format("odradek").schema("partition int, offset bigint, value binary")
    options = {"kafka.bootstrap.servers": racked.bootstrap, "rack": f"rack-{broker_id}"}
    rows = frame.options(subscribe=name, **options).load().collect()
    assert len({(row.partition, row.offset) for row in rows}) == len(rows) == RECORDS
    after = racked.bytes_read()
    other = 3 - broker_id
    assert after[broker_id] - before[broker_id] >= RECORDS * len(value)
    assert after[other] - before[other] < len(value) * RECORDS / 10
