"""Fixtures: one cluster of processes for all tests of unmodified Kafka clients."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from odradek.cli.certificate_authority import CertificateAuthority
from odradek.embedded import ChildProcess, ClusterPlan, EmbeddedCluster
from tests.e2e.kafka import scenarios
from tests.e2e.kafka.lines import releases


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    """Yield a cluster of one controller and one broker."""
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
    """Return the addresses host:port,... of the Kafka listeners."""
    return cluster.kafka_bootstrap


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a topic name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def three() -> Iterator[EmbeddedCluster]:
    """Yield a cluster of three controllers and three brokers, whose topics have three replicas."""
    settings = ("group.initial.rebalance.delay.ms=0", "default.replication.factor=3")
    with EmbeddedCluster(ClusterPlan(brokers=3, controllers=3, settings=settings)) as running:
        running.start()
        running.wait_ready()
        yield running


@dataclass(frozen=True, slots=True)
class Guarded:
    """A broker with ACLs and two listeners that require a login."""

    # KAFKA: without login, as super user; KAFKA_SASL: login; KAFKA_TLS: login over TLS.
    ports: dict[str, int]
    ca: Path


class GuardedCluster(EmbeddedCluster):
    """A cluster whose processes all have certificates."""

    def __init__(self, directory: Path, plan: ClusterPlan) -> None:
        self._authority = CertificateAuthority(directory)
        self.ca = self._authority.create(common_name="test", days=1)
        super().__init__(plan)

    def _child(self, name: str, module: str, settings: dict[str, Any], *more: str) -> ChildProcess:
        hosts = ["127.0.0.1", "localhost"]
        certificate, key = self._authority.issue(name, hosts=hosts, days=1)
        files = {
            "ssl.certificate.location": certificate,
            "ssl.key.location": key,
            "ssl.ca.location": self.ca,
        }
        return super()._child(name, module, {**settings, **files}, *more)


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Start a broker as `Guarded` describes it."""
    settings = (
        "group.initial.rebalance.delay.ms=0",
        "listeners=KAFKA://127.0.0.1:0,KAFKA_SASL://127.0.0.1:0,KAFKA_TLS://127.0.0.1:0,"
        "GRPC://127.0.0.1:0,REPLICATION://127.0.0.1:0",
        "listener.security.protocol.map=KAFKA:PLAINTEXT,KAFKA_SASL:SASL_PLAINTEXT,"
        "KAFKA_TLS:SASL_SSL",
        "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
        "authorizer.class.name=acl",
        "super.users=User:ANONYMOUS",
    )
    plan = ClusterPlan(brokers=1, controllers=1, settings=settings)
    with GuardedCluster(tmp_path_factory.mktemp("tls"), plan) as running:
        running.start()
        running.wait_ready()
        yield Guarded(running.brokers[1].ready_line["ports"], running.ca)


@pytest.fixture
def guarded_ports(guarded: Guarded) -> dict[str, int]:
    """Return the guarded broker's ports by the names of its listeners."""
    return guarded.ports


@pytest.fixture
def open_admin(guarded: Guarded) -> AdminClient:
    """Return an admin client of the guarded broker that needs no login."""
    return AdminClient({"bootstrap.servers": f"127.0.0.1:{guarded.ports['KAFKA']}"})


# --- the tables of clients and scenarios, and of releases: make scenario-table --------------------


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "scenario(client, *scenarios): a cell, or some, of the table in docs/clients.md"
    )
    config.addinivalue_line(
        "markers", "release(client, release): of the table of clients' releases in docs/clients.md"
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scenario-table", help="write the tables of clients into it")


_results = scenarios.Results()
_outcomes = releases.Outcomes()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[misc, assignment]  # pluggy sends the report
    if report.when == "call" or not report.passed:
        for mark in item.iter_markers("scenario"):
            _results.add(mark.args[0], mark.args[1:], passed=report.passed)
        for mark in item.iter_markers("release"):
            _outcomes.add(*mark.args, passed=report.passed)
    return report  # type: ignore[return-value]


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--scenario-table", None)
    if path:
        readme = Path(path)
        scenarios.put_in(readme, scenarios.BEGIN, scenarios.table(_results), scenarios.END)
        scenarios.put_in(readme, releases.BEGIN, releases.table(_outcomes), releases.END)
