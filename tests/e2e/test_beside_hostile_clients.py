"""Runs one hostile client of each kind together with an honest one, and measures the honest client's
latency and the broker's resources.

`pytest -s -m long` prints the table. The latencies are valid only on a machine with a spare core
for the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psutil  # type: ignore[import-untyped]
import pytest

from odradek.admin.access import Acl, AclOperation, PatternType, ResourceType
from odradek.embedded import ClusterPlan
from tests.e2e.hostile_clients import KINDS, make_inputs
from tests.e2e.hostile_target import MALLORY, PASSWORD, Target
from tests.e2e.secure_cluster import SecureCluster

P99_MS_MAX = 50.0
GROWTH_BYTES_MAX = 64 << 20
WINDOW_S = 8.0
ATTEMPTS_MAX = 3  # another process may need the cores
SAMPLE_S = 0.02
HONEST, TOPIC = "alice", "orders"


@dataclass
class Line:
    """The effects of one kind of hostile client."""

    kind: str
    figures: dict[str, float]
    growth_bytes: int
    outcomes: dict[str, int]

    def __str__(self) -> str:
        figures = self.figures
        return (
            f"{self.kind:48} | {figures['produce_p99_ms']:7.1f} | {figures['consume_p99_ms']:7.1f}"
            f" | {figures['produce_max_ms']:7.0f} | {self.growth_bytes / (1 << 20):+7.1f}"
            f" | {self.outcomes}"
        )

    @property
    def broken(self) -> list[str]:
        """Return the limits that were exceeded."""
        what = []
        if self.figures["failed"] or not 0 <= self.figures["produce_p99_ms"] <= P99_MS_MAX:
            what.append(f"{self.kind}: {self.figures}")
        if self.growth_bytes > GROWTH_BYTES_MAX:
            what.append(f"{self.kind}: {self.growth_bytes >> 20} MiB")
        return what


class HonestClient:
    """A process of `honest_client`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def window(self) -> dict[str, float]:
        """Return the latencies since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        figures: dict[str, float] = json.loads(await self._process.stdout.readline())
        return figures


@contextlib.asynccontextmanager
async def honest_client(cluster: SecureCluster) -> AsyncIterator[HonestClient]:
    settings = {
        "topic": TOPIC,
        "bootstrap.servers": cluster.kafka_bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(cluster.ca),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": HONEST,
        "sasl.password": PASSWORD,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.e2e.honest_client", json.dumps(settings)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    client = HonestClient(process)
    try:
        async with asyncio.timeout(60):
            while (await client.window())["consume_count"] < 100:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.2)
        yield client
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def prepare(cluster: SecureCluster) -> None:
    """Create the users, topics and rights."""
    async with cluster.admin() as admin:
        for user in (HONEST, MALLORY):
            await admin.admin.set_scram_password(user, PASSWORD, iterations=4096)
        await admin.admin.create_topic(TOPIC, partitions=3, replication_factor=1)
        await admin.admin.create_topic("mallory-topic", partitions=1, replication_factor=1)
        await admin.admin.create_topic(
            "mallory-compacted",
            partitions=1,
            replication_factor=1,
            configs={"cleanup.policy": "compact"},
        )

        def entry(user: str, kind: ResourceType, name: str, what: AclOperation) -> Acl:
            return Acl(
                resource_type=kind,
                resource_name=name,
                principal=f"User:{user}",
                operation=what,
                pattern_type=PatternType.PREFIXED,
            )

        topic, group = ResourceType.TOPIC, ResourceType.GROUP
        await admin.admin.create_acls(
            [
                *(entry(HONEST, topic, TOPIC, w) for w in (AclOperation.READ, AclOperation.WRITE)),
                entry(HONEST, group, "honest", AclOperation.READ),
                *(
                    entry(user, kind, "mallory-", AclOperation.ALL)
                    for user in (MALLORY, f"CN={MALLORY}")
                    for kind in (topic, group)
                ),
            ]
        )


def target_in(cluster: SecureCluster) -> Target:
    described = cluster.describe()
    certificate, key = cluster.certificate(MALLORY)
    strangers = ssl.create_default_context(cafile=str(cluster.ca))
    mallory = ssl.create_default_context(cafile=str(cluster.ca))
    mallory.load_cert_chain(certificate, key)
    mallory.set_alpn_protocols(["h2"])
    credentials = grpc.ssl_channel_credentials(
        cluster.ca.read_bytes(), key.read_bytes(), certificate.read_bytes()
    )

    def channel() -> grpc.aio.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(described["grpc"], credentials, options=options)

    return Target(
        kafka=int(described["kafka"].rpartition(":")[2]),
        grpc=int(described["grpc"].rpartition(":")[2]),
        gateway=int(described["gateway"].rpartition(":")[2]),
        strangers=strangers,
        mallory=mallory,
        channel=channel,
    )


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_an_honest_client_hardly_notices_a_hostile_one(tmp_path: Path) -> None:
    plan = ClusterPlan(brokers=1, controllers=1, gateways=1, data_dir=tmp_path / "data")
    lines: list[Line] = []
    make_inputs()
    with SecureCluster(tmp_path, plan) as cluster:
        cluster.start()
        cluster.wait_ready()
        await prepare(cluster)
        broker = psutil.Process(cluster.brokers[1].pid)
        async with honest_client(cluster) as honest:
            lines.append(await measured("nobody", honest, broker, asyncio.Event().wait(), {}))
            print(
                f"\n{'kind':48} | p99 ms | to consumer | max ms | RSS MiB | what it got\n{lines[0]}"
            )
            for kind, attack in KINDS.items():
                for _ in range(ATTEMPTS_MAX):
                    target = target_in(cluster)
                    line = await measured(kind, honest, broker, attack(target), target.outcomes)
                    print(line, flush=True)
                    if not line.broken:
                        break
                lines.append(line)
        assert all(child.is_running for child in cluster.children())
    assert not [what for line in lines for what in line.broken]


async def measured(
    kind: str, honest: HonestClient, broker: Any, attack: Any, outcomes: dict[str, int]
) -> Line:
    """Run a hostile client for a while, and return its effects."""
    before = peak = broker.memory_info().rss
    await honest.window()
    attacking = asyncio.ensure_future(attack)
    loop = asyncio.get_running_loop()
    end_s = loop.time() + WINDOW_S
    while loop.time() < end_s:
        await asyncio.wait([attacking], timeout=SAMPLE_S)
        assert not attacking.done(), attacking
        peak = max(peak, broker.memory_info().rss)
    figures = await honest.window()
    attacking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await attacking
    return Line(kind, figures, peak - before, dict(outcomes))
