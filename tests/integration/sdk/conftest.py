"""Fixtures: clusters of real processes, with one broker for the tests of a module, or three for one
test.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster


@pytest.fixture(scope="package")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a cluster of one broker and one controller."""
    plan = ClusterPlan(brokers=1, controllers=1, data_dir=tmp_path_factory.mktemp("one-broker"))
    with EmbeddedCluster(plan) as cluster:
        cluster.start()
        cluster.wait_ready()
        yield cluster.bootstrap


@pytest.fixture(scope="package")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield a cluster that removes a group member that is silent for one second."""
    plan = ClusterPlan(
        brokers=1,
        controllers=1,
        data_dir=tmp_path_factory.mktemp("impatient"),
        settings=(
            "group.consumer.session.timeout.ms=1000",
            "group.consumer.heartbeat.interval.ms=200",
        ),
    )
    with EmbeddedCluster(plan) as cluster:
        cluster.start()
        cluster.wait_ready()
        yield cluster.bootstrap


@pytest.fixture
async def impatient_client(impatient: str) -> AsyncIterator[Client]:
    async with Client(impatient) as client:
        yield client


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[Client]:
    async with Client(bootstrap) as client:
        yield client


@pytest.fixture
def three_brokers(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    """Yield a cluster of three brokers and one controller, for tests that kill processes."""
    with EmbeddedCluster(ClusterPlan(brokers=3, controllers=1, data_dir=tmp_path)) as cluster:
        cluster.start()
        cluster.wait_ready()
        yield cluster


@pytest.fixture
def topic() -> str:
    """Return a topic name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"
