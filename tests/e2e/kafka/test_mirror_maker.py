"""docs/mirror-maker.md: the real MirrorMaker copies records in both directions, and is killed
once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.e2e.kafka import test_java_frameworks as frameworks
from tests.e2e.kafka.test_java_tools import jars
from tests.integration.documentation.pages import blocks

__all__ = ["jars"]  # a fixture

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(3_000)]
PAGE = "docs/mirror-maker.md"
RECORDS = int(os.environ.get("ODRADEK_MIRROR_RECORDS", "1000000"))
PARTITIONS = 4
MAIN_CLASS = "org.apache.kafka.connect.mirror.MirrorMaker"
# Shorter intervals than in the file, so that the test does not wait for them.
SOONER = {
    "emit.checkpoints.interval.seconds": 1,
    "sync.group.offsets.interval.seconds": 1,
    "refresh.topics.interval.seconds": 1,
    "refresh.groups.interval.seconds": 1,
}


@pytest.fixture
def clusters() -> Iterator[dict[str, str]]:
    """Yield the Kafka addresses of the clusters `old` and `new`, each with one broker."""
    plan = ClusterPlan(brokers=1, controllers=1, settings=("group.initial.rebalance.delay.ms=0",))
    with EmbeddedCluster(plan) as old, EmbeddedCluster(plan) as new:
        for cluster in (old, new):
            cluster.start()
        for cluster in (old, new):
            cluster.wait_ready()
        yield {"old": old.kafka_bootstrap, "new": new.kafka_bootstrap}


def configuration(clusters: dict[str, str], jars: Path) -> dict[str, object]:
    """Return the configuration on the page, with the addresses of these clusters."""
    (block,) = [block for block in blocks(PAGE) if block.language == "properties"]
    lines = [line for line in block.text.splitlines() if line and not line.startswith("#")]
    config: dict[str, object] = dict(line.split("=", 1) for line in lines)
    assert config.keys() >= SOONER.keys()
    for name in config:
        if name.endswith("replication.factor"):
            config[name] = 1
    addresses = {f"{name}.bootstrap.servers": address for name, address in clusters.items()}
    plugins = {"plugin.discovery": "service_load", "plugin.path": jars}
    return config | SOONER | addresses | plugins


def write(address: str, topic: str, numbers: range) -> None:
    """Write numbers as values, round robin over the partitions."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000}
    )
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(300) == 0


def values(address: str, topic: str) -> list[list[int]]:
    """Return the numbers in each partition, in order of their offsets."""
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "verifies",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    reader.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    ends = 0
    while ends < PARTITIONS:
        for record in reader.consume(10_000, timeout=30):
            if (error := record.error()) is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                ends += 1
            else:
                found[record.partition()].append(int(record.value()))
    reader.close()
    return found


def length(address: str, topic: str) -> int:
    """Return the number of records in a topic; 0 while it does not exist."""
    reader = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "counts"})
    try:
        if topic not in reader.list_topics(timeout=30).topics:
            return 0
        marks = [
            reader.get_watermark_offsets(confluent_kafka.TopicPartition(topic, p), timeout=30)
            for p in range(PARTITIONS)
        ]
        return sum(high - low for low, high in marks)
    except confluent_kafka.KafkaException:  # the topic is being created
        return 0
    finally:
        reader.close()


def last_values(address: str, topic: str) -> list[int]:
    """Return the last number in each partition; -1 if it is empty or does not exist yet."""
    config = {"bootstrap.servers": address, "group.id": "ends", "enable.auto.commit": False}
    reader = confluent_kafka.Consumer(config)
    found = []
    try:
        for partition in range(PARTITIONS):
            place = confluent_kafka.TopicPartition(topic, partition)
            try:
                _, end = reader.get_watermark_offsets(place, timeout=30)
            except confluent_kafka.KafkaException:
                end = 0
            record = None
            if end > 0:
                reader.assign([confluent_kafka.TopicPartition(topic, partition, end - 1)])
                record = reader.poll(30)
            found.append(-1 if record is None or record.error() else int(record.value()))
    finally:
        reader.close()
    return found


def commit_half(address: str, topic: str, group: str) -> None:
    """Commit the middle offset of each partition, for a group without members."""
    middle = RECORDS // PARTITIONS // 2
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": group})
    partitions = [confluent_kafka.TopicPartition(topic, p, middle) for p in range(PARTITIONS)]
    consumer.commit(offsets=partitions, asynchronous=False)
    consumer.close()


def committed(address: str, topic: str, group: str) -> dict[int, int]:
    """Return the committed offsets of a group in a topic, by partition."""
    request = confluent_kafka.ConsumerGroupTopicPartitions(group)
    admin = AdminClient({"bootstrap.servers": address})
    response = admin.list_consumer_group_offsets([request])[group].result(30)
    return {
        place.partition: place.offset
        for place in response.topic_partitions
        if place.topic == topic and place.offset >= 0
    }


def test_nothing_is_lost_in_either_direction_and_groups_go_on_where_they_were(
    clusters: dict[str, str],
    jars: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(frameworks, "SETTLED_S", 1_000)
    ways = [("old", "new", "orders"), ("new", "old", "payments")]
    half = RECORDS // 2
    for source, _, topic in ways:
        admin = AdminClient({"bootstrap.servers": clusters[source]})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        write(clusters[source], topic, range(half))
    config = configuration(clusters, jars)

    def begun() -> bool:
        return all(length(clusters[target], f"{source}.{topic}") for source, target, topic in ways)

    def copied() -> bool:
        """Return whether the last record of each partition was copied.

        Lengths cannot be compared, because some records are copied twice.
        """
        return all(
            last_values(clusters[target], f"{source}.{topic}")
            == last_values(clusters[source], topic)
            for source, target, topic in ways
        )

    def translated() -> bool:
        return all(
            len(committed(clusters[target], f"{source}.{topic}", "readers")) == PARTITIONS
            for source, target, topic in ways
        )

    with frameworks.java(jars, tmp_path, "mirror-1", MAIN_CLASS, config):
        frameworks.until(begun, "the first copies", tmp_path)
        for source, _, topic in ways:
            commit_half(clusters[source], topic, "readers")
        frameworks.until(translated, "the offsets of the groups", tmp_path)
        for source, _, topic in ways:
            write(clusters[source], topic, range(half, RECORDS))
    # At its end, the block killed MirrorMaker with SIGKILL while it copied the last records.
    killed_at = {
        topic: length(clusters[target], f"{source}.{topic}") for source, target, topic in ways
    }
    with frameworks.java(jars, tmp_path, "mirror-2", MAIN_CLASS, config):
        frameworks.until(copied, "all copies", tmp_path)
    report = {"records": RECORDS, "killed at": killed_at}
    for source, target, topic in ways:
        copy = f"{source}.{topic}"
        found, original = values(clusters[target], copy), values(clusters[source], topic)
        offsets = committed(clusters[target], copy, "readers")
        read = committed(clusters[source], topic, "readers")
        read_again = 0
        for partition in range(PARTITIONS):
            assert set(found[partition]) == set(original[partition]), "a record was lost"
            first_seen = list(dict.fromkeys(found[partition]))
            assert first_seen == original[partition], "copies are in the order of the originals"
            unread = set(original[partition][read[partition] :])
            goes_on_with = set(found[partition][offsets[partition] :])
            assert unread <= goes_on_with, "the group skips records"
            read_again += len(goes_on_with - unread)
        report[topic] = {
            "twice": sum(map(len, found)) - RECORDS,
            "read again": read_again,
        }
    with capfd.disabled():
        print(f"\n{json.dumps(report)}", flush=True)
