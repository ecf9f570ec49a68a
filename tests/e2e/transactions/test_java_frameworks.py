"""Kafka Streams and Kafka Connect write exactly once while their processes are killed, and, where there are several, a
broker every 20 s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from odradek.embedded import EmbeddedCluster, free_ports
from tests.e2e.kafka.access import make_topic
from tests.e2e.kafka.test_java_frameworks import call, java, read_all, until
from tests.e2e.kafka.test_java_tools import jars
from tests.e2e.transactions.broker_kills import killing

__all__ = ["jars"]  # a fixture
pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(1200)]
ROUNDS = 4
LINES_A_ROUND = 1_000
Start = Callable[[int], AbstractContextManager[Popen[bytes]]]


class Workers:
    """Two processes of one program, by their numbers 0 and 1."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._running: dict[int, ExitStack] = {}

    def start(self, number: int) -> None:
        """Start a process."""
        stack = self._running[number] = ExitStack()
        stack.enter_context(self._start(number))

    def restart(self, number: int) -> None:
        """Kill a process with SIGKILL and start it again."""
        self._running.pop(number).close()
        self.start(number)

    def kill(self) -> None:
        """Kill the processes that run."""
        for stack in self._running.values():
            stack.close()


@contextmanager
def two(start: Start) -> Iterator[Workers]:
    workers = Workers(start)
    try:
        workers.start(0)
        workers.start(1)
        yield workers
    finally:
        workers.kill()


def test_streams_counts_each_word_exactly_once(
    cluster: EmbeddedCluster, jars: Path, name: str, tmp_path: Path
) -> None:
    """Every new count of a word is one record of the output, so a word that was processed twice is seen."""
    bootstrap = cluster.kafka_bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    source, sink = "streams-plaintext-input", "streams-wordcount-output"  # the demo's own names
    for topic in (source, sink):
        make_topic(admin, topic, 3)
    config = {
        "application.id": name,
        "bootstrap.servers": bootstrap,
        "processing.guarantee": "exactly_once_v2",
        "replication.factor": len(cluster.brokers),
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 1_000,
    }
    main_class = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"

    def start(number: int) -> AbstractContextManager[Popen[bytes]]:
        own = config | {"state.dir": tmp_path / f"state-{number}"}
        return java(jars, tmp_path, f"streams-{number}", main_class, own)

    lines = [f"every word of line {number % 50} counts" for number in range(LINES_A_ROUND)]
    words = Counter(word for line in lines for word in line.split())
    producer = ck.Producer({"bootstrap.servers": bootstrap})

    def counts() -> list[tuple[str, int]]:
        return [
            (key.decode(), int.from_bytes(value, "big"))
            for key, value in read_all(bootstrap, sink)
            if key is not None and value is not None
        ]

    number = 0
    with killing(cluster) as brokers, two(start) as workers:
        while number < ROUNDS or brokers.is_short:
            number += 1
            for index, line in enumerate(lines):
                producer.produce(source, line.encode(), partition=index % 3)
            assert producer.flush(60) == 0
            before = words.total() * (number - 1)
            until(lambda seen=before: len(counts()) > seen, "new counts", tmp_path)  # type: ignore[misc]
            workers.restart(number % 2)
            due = words.total() * number
            until(lambda due=due: len(counts()) >= due, f"counts of round {number}", tmp_path)  # type: ignore[misc]
    once = [(word, n) for word, total in words.items() for n in range(1, total * number + 1)]
    assert Counter(counts()) == Counter(once)


def test_a_source_of_connect_writes_each_line_exactly_once(
    cluster: EmbeddedCluster, jars: Path, name: str, tmp_path: Path
) -> None:
    bootstrap = cluster.kafka_bootstrap
    source = tmp_path / "in.txt"
    source.touch()
    make_topic(AdminClient({"bootstrap.servers": bootstrap}), name, 1)
    ports = free_ports(2)
    urls = [f"http://127.0.0.1:{port}/connectors" for port in ports]
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": name,
        "exactly.once.source.support": "enabled",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "scheduled.rebalance.max.delay.ms": 500,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 500,
        "plugin.path": jars,
        "plugin.discovery": "service_load",
    }
    for topic in ("offset", "config", "status"):
        config[f"{topic}.storage.topic"] = f"{name}-{topic}"
        config[f"{topic}.storage.replication.factor"] = len(cluster.brokers)
    connector = {
        "name": name,
        "config": {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": "1",
            "file": str(source),
            "topic": name,
            "exactly.once.support": "required",
            "transaction.boundary": "poll",
        },
    }

    def start(number: int) -> AbstractContextManager[Popen[bytes]]:
        own = config | {"listeners": f"http://127.0.0.1:{ports[number]}"}
        main_class = "org.apache.kafka.connect.cli.ConnectDistributed"
        return java(jars, tmp_path, f"worker-{number}", main_class, own)

    def worker_of_task() -> int | None:
        """Return the number of the worker that runs the connector's task."""
        for url in urls:
            status = call(f"{url}/{name}/status")
            for task in status["tasks"] if status else ():
                if task["state"] == "RUNNING":
                    return ports.index(int(task["worker_id"].rpartition(":")[2]))
        return None

    def values() -> list[str]:
        return [(value or b"").decode() for _, value in read_all(bootstrap, name)]

    lines: list[str] = []

    def append(count: int) -> None:
        new = [str(line) for line in range(len(lines), len(lines) + count)]
        lines.extend(new)
        with source.open("a") as more:
            more.write("".join(f"{line}\n" for line in new))

    number = 0
    with killing(cluster) as brokers, two(start) as workers:
        until(lambda: call(urls[0]) is not None, "a worker", tmp_path)
        until(lambda: call(urls[0], connector), "the connector", tmp_path)
        while number < ROUNDS or brokers.is_short:
            number += 1
            before = len(lines)
            append(LINES_A_ROUND // 2)
            until(lambda seen=before: len(values()) > seen, "new lines", tmp_path)  # type: ignore[misc]
            running = worker_of_task()
            append(LINES_A_ROUND // 2)
            workers.restart(number % 2 if running is None else running)
            due = len(lines)
            until(lambda due=due: len(values()) >= due, f"lines of round {number}", tmp_path)  # type: ignore[misc]
    assert values() == lines
