"""Fixtures: clusters of one and of three brokers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from odradek.embedded import ClusterPlan, EmbeddedCluster


def pytest_configure(config: pytest.Config) -> None:
    # The Java tools come from a module of tests/e2e/kafka, whose conftest declares this mark.
    config.addinivalue_line("markers", "scenario(client, *scenarios): a cell of docs/clients.md")


SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=1000",
    "transaction.state.log.num.partitions=5",
    "offsets.topic.num.partitions=5",
)


@pytest.fixture(scope="session", params=[1, 3], ids=["one broker", "three brokers"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    """Yield a cluster with as many brokers and replicas as the parameter says."""
    brokers: int = request.param
    settings = (*SETTINGS, f"default.replication.factor={brokers}")
    plan = ClusterPlan(brokers=brokers, controllers=1, settings=settings)
    with EmbeddedCluster(plan) as running:
        running.start()
        running.wait_ready()
        yield running


@pytest.fixture
def bootstrap(cluster: EmbeddedCluster) -> str:
    """Return the addresses host:port,... of the Kafka listeners."""
    return cluster.kafka_bootstrap


@pytest.fixture
def name() -> str:
    """Return a name that no other test uses, for topics, groups and transactional ids."""
    return f"x-{uuid.uuid4().hex[:12]}"
