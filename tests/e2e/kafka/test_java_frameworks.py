"""Tests with unmodified frameworks on Kafka's Java client: Streams, Connect and MirrorMaker."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from odradek.embedded import ClusterPlan, EmbeddedCluster, free_ports
from tests.e2e.kafka.access import make_topic
from tests.e2e.kafka.test_java_tools import Tools, jars

__all__ = ["jars"]  # a fixture

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(600)]
SETTLED_S = 120
LOGGING = """status = error
appender.file.type = Console
appender.file.name = FILE
rootLogger.level = warn
rootLogger.appenderRef.file.ref = FILE
"""


@contextmanager
def java(
    jars: Path, folder: Path, name: str, main_class: str, config: dict[str, Any], *arguments: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `main_class` with that configuration file, and with more arguments, until the end of the
    `with` block; its log is in the same folder.
    """
    properties = folder / f"{name}.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    (folder / "log4j2.properties").write_text(LOGGING)
    options = ["-Xmx512M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "java",
                *options,
                "-cp",
                f"{folder}:{jars}/*",
                main_class,
                str(properties),
                *arguments,
            ],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def until(condition: Callable[[], object], what: str, folder: Path) -> None:
    """Wait until the condition holds; a failure shows the logs of the Java processes."""
    deadline = time.monotonic() + SETTLED_S
    while not condition():
        if time.monotonic() > deadline:
            logs = "\n".join(f"{p.name}: {p.read_text()[-3000:]}" for p in folder.glob("*.log"))
            raise AssertionError(f"{what}: not within {SETTLED_S} s\n{logs}")
        time.sleep(0.2)


def write(bootstrap: str, topic: str, values: list[str]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value.encode(), key=value.encode(), partition=0)
    assert producer.flush(60) == 0


def read_all(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Return keys and values of all partitions, in order within each partition."""
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reads-{topic}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: list[tuple[bytes | None, bytes | None]] = []
    partitions = reader.list_topics(topic, timeout=30).topics[topic].partitions
    reader.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in partitions])
    ends = 0
    while ends < len(partitions):
        record = reader.poll(30)
        assert record is not None, topic
        if (error := record.error()) is None:
            found.append((record.key(), record.value()))
        else:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
            ends += 1
    reader.close()
    return found


def test_kafka_streams_counts_words(three: EmbeddedCluster, jars: Path, tmp_path: Path) -> None:
    """The framework creates a repartition topic, a changelog topic and a group."""
    bootstrap = three.kafka_bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for topic in ("streams-plaintext-input", "streams-wordcount-output"):
        make_topic(admin, topic, 3)
    lines = [f"all streams lead to kafka number {number % 7}" for number in range(2000)]
    expected = Counter(word for line in lines for word in line.split())
    config = {
        "bootstrap.servers": bootstrap,
        "state.dir": tmp_path / "state",
        "replication.factor": 3,
        "commit.interval.ms": 200,
        "auto.offset.reset": "earliest",
    }
    main_class = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"

    def counts() -> dict[str, int]:
        return {
            key.decode(): int.from_bytes(value, "big")
            for key, value in read_all(bootstrap, "streams-wordcount-output")
            if key is not None and value is not None
        }

    with java(jars, tmp_path, "streams", main_class, config) as process:
        write(bootstrap, "streams-plaintext-input", lines[:1000])
        until(lambda: len(counts()) == len(expected), "first counts", tmp_path)
        write(bootstrap, "streams-plaintext-input", lines[1000:])
        until(lambda: counts() == expected, "all counts", tmp_path)
        assert process.poll() is None


def call(url: str, document: dict[str, Any] | None = None) -> Any:
    """Return the JSON of Connect's response; None if Connect does not respond, or refuses the
    request for now.
    """
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


def test_connect_goes_on_without_a_worker_and_a_broker(
    three: EmbeddedCluster, jars: Path, tmp_path: Path
) -> None:
    """Connect's workers form a group of type `connect`, and keep their state in compacted
    topics.
    """
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
    lines = [str(number) for number in range(1000)]
    source.write_text("".join(f"{line}\n" for line in lines[:500]))
    make_topic(AdminClient({"bootstrap.servers": three.kafka_bootstrap}), "lines", 1)
    ports = free_ports(2)
    config = {
        "bootstrap.servers": three.kafka_bootstrap,
        "group.id": "connect",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.flush.interval.ms": 500,
        "scheduled.rebalance.max.delay.ms": 500,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
        "plugin.path": jars,
        "plugin.discovery": "service_load",
    }
    for name in ("offset", "config", "status"):
        config[f"{name}.storage.topic"] = f"connect-{name}"
        config[f"{name}.storage.replication.factor"] = 3
    main_class = "org.apache.kafka.connect.cli.ConnectDistributed"
    first_url, second_url = (f"http://127.0.0.1:{port}/connectors" for port in ports)

    def worker(number: int) -> Any:
        own = config | {"listeners": f"http://127.0.0.1:{ports[number]}"}
        return java(jars, tmp_path, f"worker-{number}", main_class, own)

    def connector(kind: str, **more: str) -> dict[str, Any]:
        name = f"org.apache.kafka.connect.file.FileStream{kind}Connector"
        return {"name": kind, "config": {"connector.class": name, "tasks.max": "1", **more}}

    def has_arrived() -> bool:
        return sink.exists() and set(lines) <= set(sink.read_text().split())

    with worker(0):
        with worker(1) as second:
            for url in (first_url, second_url):
                until(lambda url=url: call(url) is not None, "a worker", tmp_path)  # type: ignore[misc]
            until(
                lambda: call(first_url, connector("Source", file=str(source), topic="lines")),
                "the source",
                tmp_path,
            )
            until(
                lambda: call(second_url, connector("Sink", file=str(sink), topics="lines")),
                "the sink",
                tmp_path,
            )
            until(
                lambda: sink.exists() and sink.read_text().split() == lines[:500],
                "the first half, once and in order",
                tmp_path,
            )
            second.kill()
            three.brokers[1].kill()
        with source.open("a") as more:
            more.write("".join(f"{line}\n" for line in lines[500:]))
        until(has_arrived, "the second half", tmp_path)


def test_mirror_maker_copies_records_and_the_offsets_of_groups(
    three: EmbeddedCluster, jars: Path, tmp_path: Path
) -> None:
    settings = ("group.initial.rebalance.delay.ms=0",)
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, settings=settings)) as other:
        other.start()
        other.wait_ready()
        make_topic(AdminClient({"bootstrap.servers": three.kafka_bootstrap}), "orders", 4)
        tools = Tools(jars, three.kafka_bootstrap)
        tools.run("ConsoleProducer", "--topic", "orders", stdin="\n".join(map(str, range(1000))))
        tools.consume("orders", 700, "--group", "readers")
        config = {
            "clusters": "here,there",
            "here.bootstrap.servers": three.kafka_bootstrap,
            "there.bootstrap.servers": other.kafka_bootstrap,
            "here->there.enabled": "true",
            "here->there.topics": "orders",
            "replication.factor": 1,
            "refresh.topics.interval.seconds": 1,
            "refresh.groups.interval.seconds": 1,
            "emit.checkpoints.interval.seconds": 1,
            "sync.group.offsets.interval.seconds": 1,
            "sync.group.offsets.enabled": "true",
            "offset.lag.max": 0,
            "plugin.discovery": "service_load",
            "plugin.path": jars,
        }
        for name in ("checkpoints", "heartbeats", "offset-syncs"):
            config[f"{name}.topic.replication.factor"] = 1
        for name in ("offset", "status", "config"):
            config[f"{name}.storage.replication.factor"] = 1
        main_class = "org.apache.kafka.connect.mirror.MirrorMaker"
        there = AdminClient({"bootstrap.servers": other.kafka_bootstrap})

        def copied() -> bool:
            return "here.orders" in there.list_topics(timeout=30).topics and sorted(
                read_all(other.kafka_bootstrap, "here.orders"), key=str
            ) == sorted(read_all(three.kafka_bootstrap, "orders"), key=str)

        def offsets() -> int:
            wish = confluent_kafka.ConsumerGroupTopicPartitions("readers")
            response = there.list_consumer_group_offsets([wish])["readers"].result(30)
            return sum(
                partition.offset
                for partition in response.topic_partitions
                if partition.topic == "here.orders" and partition.offset > 0
            )

        with java(jars, tmp_path, "mirror", main_class, config):
            until(copied, "the copy", tmp_path)
            until(lambda: offsets() > 0, "the group's offsets", tmp_path)
        assert offsets() <= 700, (
            "in the target cluster, the group skips no record that it has not read"
        )
