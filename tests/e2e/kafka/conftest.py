"""One cluster of processes for all of these tests, with listeners for everybody and for who logs in."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from odradek.embedded.embedded_cluster import ClusterPlan, EmbeddedCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    """One controller, one broker."""
    settings = ("group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=1000")
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, settings=settings)) as running:
        running.start()
        running.wait_ready()
        yield running


@pytest.fixture
def bootstrap(cluster: EmbeddedCluster) -> str:
    """host:port,... of the Kafka listeners."""
    return cluster.kafka_bootstrap


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"
