"""The smoke test of Kafka's system tests for Streams, with `exactly_once_v2`: two of its three workers are killed, and,
where there are several, a broker every 20 s.

Its programs come with Kafka Streams, in the jar of tests. The driver writes 20,000 records in 90 s. A worker counts
them, adds them up, joins and windows them, in fourteen topics; the driver checks each topic's result, that no record
was processed twice, and that no transaction is left open. `streams_smoke_test.py` of Kafka's system tests says when
which program starts, and with which configuration.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from subprocess import Popen

import pytest
from confluent_kafka.admin import AdminClient

from odradek.embedded import EmbeddedCluster
from tests.e2e.kafka.access import make_topic
from tests.e2e.kafka.test_java_frameworks import java, until
from tests.e2e.kafka.test_java_tools import ROOT, fetched
from tests.e2e.transactions.broker_kills import killing

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(1200)]
TOPICS = (
    *("data", "echo", "max", "min", "min-suppressed", "min-raw", "dif", "sum", "sws-raw"),
    *("sws-suppressed", "cnt", "avg", "tagg", "fk"),
)
PROGRAM = "org.apache.kafka.streams.tests.StreamsSmokeTest"
VERIFIED_S_MAX = 800


@pytest.fixture(scope="session")
def streams_jars() -> Path:
    """Return the folder with the jars of the system tests' programs, which are fetched once and kept under build/."""
    folder = ROOT / "build" / "kafka-streams-tests"
    return fetched("streams_tests.xml", folder, "kafka-streams-*-test.jar")


def test_the_smoke_test_of_streams_finds_each_record_once(
    cluster: EmbeddedCluster, streams_jars: Path, tmp_path: Path
) -> None:
    bootstrap, brokers = cluster.kafka_bootstrap, len(cluster.brokers)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for topic in TOPICS:
        make_topic(admin, topic, 5)
    guarantee = {"bootstrap.servers": bootstrap, "processing.guarantee": "exactly_once_v2"}
    config = guarantee | {
        "num.stream.threads": 3,
        "replication.factor": brokers,
        "num.standby.replicas": 2,
        "buffered.records.per.partition": 100,
        "commit.interval.ms": 1000,
        "auto.offset.reset": "earliest",
        "acceptable.recovery.lag": (1 << 63) - 1,
        "session.timeout.ms": 10_000,
    }

    def worker(number: int) -> AbstractContextManager[Popen[bytes]]:
        own = config | {"state.dir": tmp_path / f"state-{number}"}
        return java(streams_jars, tmp_path, f"worker-{number}", PROGRAM, own, "process")

    def output(name: str) -> str:
        return (tmp_path / f"{name}.log").read_text(errors="replace")

    def wait_until_printed(name: str, text: str) -> None:
        until(lambda: text in output(name), f"{name} prints {text!r}", tmp_path)

    with killing(cluster) as kills, ExitStack() as until_the_end:
        with worker(1):
            wait_until_printed("worker-1", "REBALANCING -> RUNNING")
            driver = until_the_end.enter_context(
                java(streams_jars, tmp_path, "driver", PROGRAM, guarantee, "run")
            )
            wait_until_printed("worker-1", "processed")
        with worker(2):
            wait_until_printed("worker-2", "REBALANCING -> RUNNING")
            wait_until_printed("worker-2", "processed")
            assert "Result Verification" not in output("driver"), "worker 3 has nothing to do"
        with worker(3):
            wait_until_printed("worker-3", "REBALANCING -> RUNNING")
            wait_until_printed("worker-3", "processed")
            assert driver.wait(VERIFIED_S_MAX) == 0, output("driver")[-5_000:]
    verdict = output("driver")
    assert "\nSUCCESS\n" in verdict, verdict[-10_000:]
    assert not kills.is_short, "the driver ended before enough brokers were killed"
    print(f"{kills.count} brokers killed")
