"""How long clients wait while the processes of a cluster are upgraded or restarted one by one under
load.
"""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from odradek import Client, OdradekError
from odradek.embedded import ChildProcess, ClusterPlan, EmbeddedCluster
from tests.e2e.faults.cluster_faults import new_topic, wait_for_full_isr
from tests.e2e.faults.conftest import Report
from tests.e2e.faults.first_release import first_release
from tests.e2e.faults.workload import SETTLE_S_MAX, Workload, under_load, verify

PAUSE_BAR_S = 1.0
WAIT_S_MAX = 20.0  # so high that a slow machine does not exceed it
REGISTRATION_POLL_S = 0.1
EXIT_FATAL = 70  # exit status of a controller that cannot continue


class Roll:
    """Stops and starts the processes of a cluster one by one, and measures the pause of clients for
    each.
    """

    def __init__(
        self, cluster: EmbeddedCluster, client: Client, topic: str, load: Workload
    ) -> None:
        self.cluster = cluster
        self.client = client
        self.topic = topic
        self.load = load
        self.pauses_s: dict[str, float] = {}

    async def restart(self, child: ChildProcess) -> None:
        """Restart one process as in a rolling upgrade, and wait until it is ready and all replicas
        are in sync.
        """
        self.load.begin_gap()
        child.signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.wait, SETTLE_S_MAX), f"{child.name} does not stop"
        child.start()
        await asyncio.to_thread(child.wait_ready, SETTLE_S_MAX)
        await wait_for_full_isr(self.client, self.topic)
        await self.load.progress(100)
        pause_s = max(self.load.longest_gap_s, self.pauses_s.get(child.name, 0.0))
        self.pauses_s[child.name] = round(pause_s, 3)

    async def upgrade(self, child: ChildProcess) -> None:
        child.environment = {}
        await self.restart(child)

    async def downgrade(self, child: ChildProcess, environment: dict[str, str]) -> None:
        """Restart a process with an older program, which is possible until a feature level is
        raised.
        """
        child.environment = environment
        await self.restart(child)

    async def refuses(self, child: ChildProcess, environment: dict[str, str]) -> int | None:
        """Restart a process with an older program, which must end; return its exit status."""
        child.signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.wait, SETTLE_S_MAX)
        child.environment = environment
        child.start()
        assert await asyncio.to_thread(child.wait, SETTLE_S_MAX), (
            f"{child.name} runs the old program"
        )
        return child.exit_status()

    @property
    def worst_s(self) -> float:
        return max(self.pauses_s.values())


@asynccontextmanager
async def rolling(cluster: EmbeddedCluster) -> AsyncIterator[Roll]:
    """Yield a rolling upgrade under acks=all load; afterwards no record may be lost, duplicated or
    out of order.
    """
    async with Client(cluster.bootstrap) as client:
        topic = await new_topic(client)
        await wait_for_full_isr(client, topic)
        async with under_load(client, topic, partitions=3) as load:
            yield Roll(cluster, client, topic, load)
        await verify(client, topic, load)


async def level(client: Client) -> int:
    features = await client.admin.describe_features()
    return next(feature.level for feature in features if feature.name == "metadata.version")


async def raise_level(client: Client) -> str:
    """Raise metadata.version to 2; return the error text, or an empty text."""
    try:
        await client.admin.update_feature("metadata.version", 2)
    except OdradekError as error:
        return str(error)
    return ""


def topics_by_rest(cluster: EmbeddedCluster) -> str:
    """Return the gateway's list of topics."""
    url = f"{cluster.describe()['gateway']}/topics"
    with urllib.request.urlopen(url, timeout=SETTLE_S_MAX) as response:
        text: str = response.read().decode()
    return text


@pytest.fixture(scope="module")
def old_program(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return first_release(tmp_path_factory.mktemp("first-release"))


@pytest.fixture
def old_cluster(old_program: dict[str, str], tmp_path: Path) -> Iterator[EmbeddedCluster]:
    plan = ClusterPlan(brokers=3, controllers=3, gateways=1, data_dir=tmp_path)
    with EmbeddedCluster(plan) as running:
        for child in running.children():
            child.environment = old_program
        running.start()
        running.wait_ready()
        yield running


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_cluster_of_the_first_release_is_upgraded_under_load(
    old_cluster: EmbeddedCluster, old_program: dict[str, str], report: Report
) -> None:
    cluster = old_cluster
    async with rolling(cluster) as roll:
        client = roll.client
        assert "has the levels 1 to 1" in await raise_level(client)
        *first, last = cluster.controllers.values()
        for controller in first:
            await roll.upgrade(controller)
        await roll.downgrade(first[0], old_program)
        await roll.upgrade(first[0])
        assert await raise_level(client), "an older controller would end at the first new record"
        await roll.upgrade(last)
        assert roll.topic in await asyncio.to_thread(topics_by_rest, cluster)
        refused = await raise_level(client)
        for broker_id in cluster.brokers:
            assert f"broker {broker_id} (up to 1)" in refused
        for broker in cluster.brokers.values():
            await roll.upgrade(broker)
        await roll.downgrade(cluster.brokers[1], old_program)
        assert "broker 1 (up to 1)" in await raise_level(client)
        await roll.upgrade(cluster.brokers[1])
        for gateway in cluster.gateways.values():
            await roll.upgrade(gateway)
        await raised_without_a_way_back(roll, old_program, report)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_cluster_of_the_first_release_is_upgraded_brokers_first(
    old_cluster: EmbeddedCluster, old_program: dict[str, str], report: Report
) -> None:
    """The documentation says to upgrade controllers first; nothing is lost in the other order
    either.
    """
    cluster = old_cluster
    async with rolling(cluster) as roll:
        client = roll.client
        for broker in cluster.brokers.values():
            await roll.upgrade(broker)
        await client.admin.create_topic(f"{roll.topic}-new", partitions=3, replication_factor=3)
        await roll.downgrade(cluster.brokers[1], old_program)
        await roll.upgrade(cluster.brokers[1])
        assert "has the levels 1 to 1" in await raise_level(client)
        for gateway in cluster.gateways.values():
            await roll.upgrade(gateway)
        topics = await asyncio.to_thread(topics_by_rest, cluster)
        assert {roll.topic, f"{roll.topic}-new"} <= set(json.loads(topics))
        for controller in cluster.controllers.values():
            assert await raise_level(client), (
                "an older controller would end at the first new record"
            )
            await roll.upgrade(controller)
        await raised_without_a_way_back(roll, old_program, report)


async def raised_without_a_way_back(
    roll: Roll, old_program: dict[str, str], report: Report
) -> None:
    """Raise the metadata level of a completely upgraded cluster; from then on older programs are
    refused.
    """
    cluster, client = roll.cluster, roll.client
    assert await level(client) == 1, "a level is raised by command only"
    roll.load.begin_gap()
    async with asyncio.timeout(SETTLE_S_MAX):
        # A controller registers with the first active controller of the new release within seconds.
        while "has not registered" in (refused := await raise_level(client)):  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(REGISTRATION_POLL_S)
    assert refused == ""
    assert await level(client) == 2
    await roll.load.progress(100)
    roll.pauses_s["level"] = round(roll.load.longest_gap_s, 3)
    assert roll.topic in await asyncio.to_thread(topics_by_rest, cluster)
    report(pauses_s=roll.pauses_s, worst_s=roll.worst_s, bar_s=PAUSE_BAR_S)
    assert roll.worst_s < WAIT_S_MAX

    broker = cluster.brokers[3]
    assert await roll.refuses(broker, old_program) == 1
    assert "this cluster uses metadata.version at level 2" in broker.log_tail()
    assert "upgrade the broker" in broker.log_tail()
    await roll.upgrade(broker)
    controller = cluster.controllers[3]
    assert await roll.refuses(controller, old_program) == EXIT_FATAL
    assert "unknown record type" in controller.log_tail()
    await roll.upgrade(controller)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_rolling_restart_keeps_clients_waiting_for_a_moment(
    cluster: EmbeddedCluster, report: Report
) -> None:
    async with rolling(cluster) as roll:
        for child in (*cluster.controllers.values(), *cluster.brokers.values()):
            await roll.restart(child)
        report(pauses_s=roll.pauses_s, worst_s=roll.worst_s, bar_s=PAUSE_BAR_S)
        assert roll.worst_s < WAIT_S_MAX
