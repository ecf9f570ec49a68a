"""Kafka's kafka-replica-verification reads all replicas of a partition, and continues to read new records.

The tool reports the partition that is furthest behind, which may be an empty partition at offset 0.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek import sync
from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.e2e.kafka.test_java_tools import jars

__all__ = ["jars"]
pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(300)]
TOOL = "org.apache.kafka.tools.ReplicaVerificationTool"


@pytest.fixture
def pair() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(ClusterPlan(brokers=2, controllers=1)) as running:
        running.start()
        running.wait_ready()
        yield running


def test_both_replicas_are_read_to_their_end(jars: Path, pair: EmbeddedCluster) -> None:
    with sync.Client(pair.bootstrap) as client, client.producer() as producer:
        client.admin.create_topic("pair", partitions=1, replication_factor=2)

        def write(count: int) -> None:
            for number in range(count):
                producer.send("pair", b"%d" % number)
            producer.flush()

        write(1_000)
        java = [
            "java",
            "-Xmx200M",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{jars}/*",
        ]
        options = ["--topics-include", "pair", "--time", "-2", "--report-interval-ms", "200"]
        command = [*java, TOOL, "--broker-list", pair.kafka_bootstrap, *options]
        said: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tool:
            assert tool.stdout is not None
            try:
                for end in (1_000, 1_300):
                    wanted = f"max lag is 0 for partition pair-0 at offset {end} among 1 partitions"
                    for line in tool.stdout:
                        said.append(line)
                        if wanted in line:
                            break
                    assert wanted in "".join(said[-1:]), said
                    write(300)
            finally:
                tool.kill()
