"""The example that copies records exactly once is killed with SIGKILL several times, and still copies
each record once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.client import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster

pytestmark = pytest.mark.timeout(300)
EXAMPLE = Path(__file__).parents[3] / "clients/python/examples/transactional_copy.py"
ORDERS = 6_000
KILLS = 3


@pytest.fixture(scope="module")
def impatient() -> Iterator[EmbeddedCluster]:
    """Yield a cluster that removes a silent member from its group after a second."""
    settings = (
        "transaction.state.log.num.partitions=5",
        "offsets.topic.num.partitions=5",
        "group.consumer.session.timeout.ms=1000",
        "group.consumer.heartbeat.interval.ms=200",
    )
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, settings=settings)) as running:
        running.start()
        running.wait_ready()
        yield running


def started(cluster: EmbeddedCluster, source: str, sink: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "ODRADEK_BOOTSTRAP": cluster.bootstrap}
    return subprocess.Popen([sys.executable, str(EXAMPLE), "1", source, sink], env=environment)


async def test_a_copier_that_is_killed_copies_each_order_once(
    impatient: EmbeddedCluster, name: str
) -> None:
    source, sink = f"{name}-in", f"{name}-out"
    async with Client(impatient.bootstrap) as client:
        for topic in (source, sink):
            await client.admin.create_topic(topic, partitions=1, replication_factor=1)
        async with client.producer() as producer:
            for number in range(ORDERS):
                await producer.send(source, json.dumps({"quantity": number}).encode())
        copied: Counter[int] = Counter()
        copier, kills = started(impatient, source, sink), 0
        try:
            async with client.consumer(
                sink, isolation_level="read_committed", auto_offset_reset="earliest"
            ) as reader:
                while len(copied) < ORDERS:
                    for record in await reader.getmany(timeout_ms=100):
                        copied[json.loads(record.value)["quantity"]] += 1
                    assert copier.poll() is None, f"the copier ended with {copier.returncode}"
                    if kills < KILLS and len(copied) > (kills + 1) * ORDERS // (KILLS + 2):
                        copier.kill()
                        copier.wait()
                        copier, kills = started(impatient, source, sink), kills + 1
                (end,) = (await reader.end_offsets([(sink, 0)])).values()
                while await reader.position((sink, 0)) < end:
                    for record in await reader.getmany(timeout_ms=100):
                        copied[json.loads(record.value)["quantity"]] += 1
        finally:
            copier.kill()
            copier.wait()
    assert kills == KILLS
    assert set(copied.values()) == {1}
