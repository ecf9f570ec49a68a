"""Copiers of five clients, killed with SIGKILL between and within transactions, while one broker after the other is
killed as well.

They copy exactly once, unmodified: each by its own implementation of transactions, and with aborts on purpose.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import confluent_kafka as ck
import pytest

from odradek.embedded import EmbeddedCluster
from tests.e2e.kafka.test_java_tools import jars
from tests.e2e.kafka.test_other_languages import go_clients
from tests.e2e.transactions.broker_kills import killing
from tests.e2e.transactions.python_copiers import GAVE_UP
from tests.e2e.transactions.rust_programs import rust_copier
from tests.e2e.transactions.test_confluent_client import TIMEOUT_S, create, read

__all__ = ["go_clients", "jars", "rust_copier"]  # fixtures
pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(900)]
RECORDS = 20_000
MORE_RECORDS = 5_000
KILLS = 3
QUIET_S_MAX = 300.0
Start = Callable[[str, str], list[str]]


def feed(bootstrap: str, topic: str, numbers: range) -> None:
    filler = ck.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in numbers:
        filler.produce(topic, b"%d" % number, partition=0)
        filler.poll(0)
    assert filler.flush(TIMEOUT_S) == 0


def assert_copied_once(cluster: EmbeddedCluster, name: str, log: Path, command: Start) -> None:
    """Copy all records by a process that is killed and started again; each must be in the output once.

    With several brokers, the copy continues until enough brokers were killed, one every 20 s.
    """
    bootstrap = cluster.kafka_bootstrap
    source, sink = f"{name}-in", f"{name}-out"
    create(bootstrap, source, partitions=1)
    create(bootstrap, sink, partitions=2)
    fed = RECORDS
    feed(bootstrap, source, range(fed))
    seen: set[bytes] = set()
    rounds = kills = starts = 0
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
        nonlocal starts
        starts += 1
        with log.open("ab") as output:
            return subprocess.Popen(command(source, sink), stdout=output, stderr=output)

    copier, since_s = start(), time.monotonic()
    try:
        with killing(cluster) as brokers:
            while len(seen) < fed or brokers.is_short:
                messages = [m for m in reader.consume(500, 0.2) if m.error() is None]
                if messages:
                    since_s = time.monotonic()
                seen.update(message.value() or b"" for message in messages)
                last_words = log.read_text(errors="replace")[-3000:]
                quiet_s = time.monotonic() - since_s
                assert quiet_s < QUIET_S_MAX, f"{len(seen)} of {fed} records: {last_words}"
                if len(seen) == fed and brokers.is_short:
                    feed(bootstrap, source, range(fed, fed + MORE_RECORDS))
                    fed += MORE_RECORDS
                if rounds < KILLS and len(seen) > (rounds + 1) * RECORDS // (KILLS + 2):
                    rounds += 1
                    kills += copier.poll() is None
                    copier.kill()
                    copier.wait()
                    copier = start()
                # Kafka's copier ends with 0 when it has copied the records that existed at its start.
                assert copier.poll() in (None, 0, GAVE_UP), last_words
                if copier.poll() is not None and len(seen) < fed:
                    copier = start()
    finally:
        copier.kill()
        copier.wait()
        reader.close()
    assert kills, "no copier was killed while it ran"
    print(f"{fed} records, {starts} processes, {kills} of them and {brokers.count} brokers killed")
    copied = Counter(read(bootstrap, sink, fed, isolation="read_committed"))
    assert copied == Counter(b"%d" % number for number in range(fed))


def test_franz_go_copies_exactly_once(
    cluster: EmbeddedCluster, go_clients: Path, name: str, tmp_path: Path
) -> None:
    def command(source: str, sink: str) -> list[str]:
        return [str(go_clients / "copier"), cluster.kafka_bootstrap, source, sink, name]

    assert_copied_once(cluster, name, tmp_path / "log", command)


def test_rdkafka_copies_exactly_once(
    cluster: EmbeddedCluster, rust_copier: Path, name: str, tmp_path: Path
) -> None:
    def command(source: str, sink: str) -> list[str]:
        return [str(rust_copier), cluster.kafka_bootstrap, source, sink, name]

    assert_copied_once(cluster, name, tmp_path / "log", command)


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

    assert_copied_once(cluster, name, tmp_path / "log", command)


@pytest.mark.parametrize("client", ["aiokafka", "kafka-python"])
def test_a_python_client_copies_exactly_once(
    cluster: EmbeddedCluster, name: str, tmp_path: Path, client: str
) -> None:
    def command(source: str, sink: str) -> list[str]:
        module = [sys.executable, "-m", "tests.e2e.transactions.python_copiers", client]
        return [*module, cluster.kafka_bootstrap, source, sink, name]

    assert_copied_once(cluster, name, tmp_path / "log", command)
