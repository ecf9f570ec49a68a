"""Copiers of franz-go and of Apache Kafka's own system tests, killed with SIGKILL between and within transactions.

They copy exactly once, unmodified: each by its own implementation of transactions, and with aborts on purpose.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import confluent_kafka as ck
import pytest

from odradek.embedded import EmbeddedCluster
from tests.e2e.kafka.test_java_tools import jars
from tests.e2e.kafka.test_other_languages import go_clients
from tests.e2e.transactions.test_confluent_client import TIMEOUT_S, create, read

__all__ = ["go_clients", "jars"]  # fixtures
pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(900)]
RECORDS = 20_000
KILLS = 3
QUIET_S_MAX = 300.0
Start = Callable[[str, str], list[str]]


def feed(bootstrap: str, topic: str) -> None:
    filler = ck.Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        filler.produce(topic, b"%d" % number, partition=0)
        filler.poll(0)
    assert filler.flush(TIMEOUT_S) == 0


def copied(cluster: EmbeddedCluster, name: str, log: Path, command: Start) -> Counter[bytes]:
    """Copy all records by a process that is killed and started again; return how often each is in the output.

    With several brokers, one of them is killed as well.
    """
    bootstrap = cluster.kafka_bootstrap
    source, sink = f"{name}-in", f"{name}-out"
    create(bootstrap, source, partitions=1)
    create(bootstrap, sink, partitions=2)
    feed(bootstrap, source)
    seen: set[bytes] = set()
    rounds = kills = 0
    reader = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{name}-reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    reader.assign([ck.TopicPartition(sink, index, 0) for index in range(2)])

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(command(source, sink), stdout=output, stderr=output)

    copier, since_s = start(), time.monotonic()
    try:
        while len(seen) < RECORDS:
            messages = [m for m in reader.consume(500, 0.2) if m.error() is None]
            if messages:
                since_s = time.monotonic()
            seen.update(message.value() or b"" for message in messages)
            last_words = log.read_text(errors="replace")[-3000:]
            assert time.monotonic() - since_s < QUIET_S_MAX, f"{len(seen)} records: {last_words}"
            if rounds < KILLS and len(seen) > (rounds + 1) * RECORDS // (KILLS + 2):
                rounds += 1
                kills += copier.poll() is None
                copier.kill()
                copier.wait()
                if len(cluster.brokers) > 1 and rounds == KILLS:
                    cluster.brokers[2].kill()
                    cluster.brokers[2].start()
                    cluster.brokers[2].wait_ready(QUIET_S_MAX)
                copier = start()
            assert copier.poll() in (None, 0), last_words
    finally:
        copier.kill()
        copier.wait()
        reader.close()
    assert kills, "it was never killed while it ran"
    return Counter(read(bootstrap, sink, lambda values: False, isolation="read_committed"))


def once() -> Counter[bytes]:
    return Counter(b"%d" % number for number in range(RECORDS))


def test_franz_go_copies_exactly_once(
    cluster: EmbeddedCluster, go_clients: Path, name: str, tmp_path: Path
) -> None:
    def command(source: str, sink: str) -> list[str]:
        return [str(go_clients / "copier"), cluster.kafka_bootstrap, source, sink, name]

    assert copied(cluster, name, tmp_path / "log", command) == once()


@pytest.mark.parametrize("mode", ["assigned", "group"])
def test_the_copier_of_kafkas_system_tests_copies_exactly_once(
    cluster: EmbeddedCluster, jars: Path, name: str, tmp_path: Path, mode: str
) -> None:
    def command(source: str, sink: str) -> list[str]:
        options = {
            "broker-list": cluster.kafka_bootstrap,
            "input-topic": source,
            "input-partition": "0",
            "output-topic": sink,
            "consumer-group": name,
            "transactional-id": name,
            "transaction-size": "50",
            "transaction-timeout": "10000",
        }
        flags = ["--enable-random-aborts"]
        flags += ["--group-mode", "--use-group-metadata"] if mode == "group" else []
        java = ["java", "-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        main = "org.apache.kafka.tools.TransactionalMessageCopier"
        words = [word for key, value in options.items() for word in (f"--{key}", value)]
        return [*java, "-cp", f"{jars}/*", main, *words, *flags]

    assert copied(cluster, name, tmp_path / "log", command) == once()
