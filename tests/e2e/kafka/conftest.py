"""One cluster of processes for all of these tests."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest

from odradek.embedded.embedded_cluster import ClusterPlan, EmbeddedCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    """One controller, one broker."""
    settings = (
        "group.initial.rebalance.delay.ms=0",
        "group.min.session.timeout.ms=1000",
        "group.consumer.heartbeat.interval.ms=500",
    )
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


@pytest.fixture(scope="module")
def guarded_ports() -> Iterator[dict[str, int]]:
    """The ports of a broker where KAFKA_SASL wants a login and nobody may do what no entry allows."""
    settings = (
        "group.initial.rebalance.delay.ms=0",
        "listeners=KAFKA://127.0.0.1:0,KAFKA_SASL://127.0.0.1:0,"
        "GRPC://127.0.0.1:0,REPLICATION://127.0.0.1:0",
        "listener.security.protocol.map=KAFKA:PLAINTEXT,KAFKA_SASL:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name=acl",
        "super.users=User:ANONYMOUS",
    )
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, settings=settings)) as running:
        running.start()
        running.wait_ready()
        log = (running.data_dir / "broker-1.log").read_text()
        serving = [json.loads(line) for line in log.splitlines() if '"Serving"' in line]
        yield serving[-1]["ports"]
