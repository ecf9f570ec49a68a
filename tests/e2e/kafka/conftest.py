"""One cluster of processes for all of these tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def three() -> Iterator[EmbeddedCluster]:
    """Three controllers, three brokers, three replicas."""
    settings = ("group.initial.rebalance.delay.ms=0", "default.replication.factor=3")
    with EmbeddedCluster(ClusterPlan(brokers=3, controllers=3, settings=settings)) as running:
        running.start()
        running.wait_ready()
        yield running


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
        yield running.brokers[1].ready_line["ports"]


# --- the table of clients and scenarios: pytest tests/e2e/kafka --scenario-table=PATH -------------

_CLIENTS = {
    "test_confluent_client": "confluent-kafka (librdkafka)",
    "test_security": "confluent-kafka (librdkafka)",
    "test_three_brokers": "confluent-kafka (librdkafka)",
    "test_java_tools": "Apache Kafka 4.3.1 (Java)",
    "test_aiokafka": "aiokafka",
    "test_kafka_python": "kafka-python",
    "test_kcat": "kcat",
}
_results: dict[tuple[str, str], list[bool]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scenario-table", help="write a Markdown table of clients and scenarios")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path, _, test = report.nodeid.partition("::")
    module, function = Path(path).stem, test.partition("[")[0].rpartition("::")[2]
    client = next((c for prefix, c in _CLIENTS.items() if prefix == module), None)
    prefix = next((p for p in _CLIENTS if function.startswith(f"{p}_")), None)
    if prefix is not None:
        client, function = _CLIENTS[prefix], function.removeprefix(f"{prefix}_")
    if client is not None and (report.when == "call" or report.failed):
        scenario = function.removeprefix("test_").replace("_", " ")
        _results.setdefault((client, scenario), []).append(report.passed)


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--scenario-table", None)
    if not path:
        return
    lines = ["| client | scenario | variants | result |", "|---|---|---|---|"]
    for (client, scenario), passed in sorted(_results.items()):
        told = "passes" if all(passed) else f"{passed.count(False)} fail"
        lines.append(f"| {client} | {scenario} | {len(passed)} | {told} |")
    Path(path).write_text("\n".join(lines) + "\n")
