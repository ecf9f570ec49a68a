"""Topic configs that change how a broker stores records: `compression.type`, `flush.messages` and `flush.ms`."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator

import pytest

from odradek import sync
from odradek.embedded import ClusterPlan, EmbeddedCluster
from odradek_protocol.records.batch_header import Compression, iter_headers

VALUES = [b"%03d" % number + b"x" * 500 for number in range(200)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    plan = ClusterPlan(brokers=1, controllers=1, data_dir=tmp_path_factory.mktemp("configs"))
    with EmbeddedCluster(plan) as cluster:
        cluster.start()
        cluster.wait_ready()
        yield cluster


def stored(cluster: EmbeddedCluster, topic: str) -> list[Compression]:
    """Return the compression of each batch in the log, in order."""
    (segment,) = (cluster.broker_data_dir(1) / f"{topic}-0").glob("*.log")
    return [header.compression for _, header in iter_headers(segment.read_bytes())]


def test_a_leader_stores_batches_in_the_codec_of_the_topic(
    cluster: EmbeddedCluster, topic: str
) -> None:
    with sync.Client(cluster.bootstrap) as client:
        client.admin.create_topic(topic, partitions=1, configs={"compression.type": "zstd"})
        with client.producer() as producer:
            for value in VALUES:
                producer.send(topic, value)
        with client.producer(compression="lz4", batch_bytes_max=60_000) as producer:
            for value in VALUES:
                producer.send(topic, value)
        assert set(stored(cluster, topic)) == {Compression.ZSTD}
        client.admin.alter_topic_configs(topic, set={"compression.type": "uncompressed"})
        before = len(stored(cluster, topic))
        with client.producer(compression="gzip") as producer:
            while True:
                producer.send(topic, VALUES[0]).result(30)
                # The broker learns of the config a moment after the controller took it.
                if stored(cluster, topic)[-1] is Compression.NONE:
                    break
        assert len(stored(cluster, topic)) > before
        with client.consumer(topic, auto_offset_reset="earliest") as consumer:
            read: list[bytes | None] = []
            while len(read) < 2 * len(VALUES) + 1:
                read += [record.value for record in consumer.getmany(timeout_ms=1_000)]
        assert read[: len(VALUES)] == VALUES
        assert read[len(VALUES) : 2 * len(VALUES)] == VALUES


def syncs(cluster: EmbeddedCluster) -> int:
    """Return how many syncs of logs the broker has finished."""
    url = cluster.describe()["metrics"]["broker-1"]
    with urllib.request.urlopen(f"http://{url}/metrics", timeout=30) as response:
        text = response.read().decode()
    (count,) = re.findall(r"^odradek_broker_fsync_seconds_count(?:\{.*\})? (\d+)", text, re.M)
    return int(count)


def test_a_log_is_synced_after_so_many_messages(cluster: EmbeddedCluster, topic: str) -> None:
    with sync.Client(cluster.bootstrap) as client:
        client.admin.create_topic(topic, partitions=1, configs={"flush.messages": "5"})
        before = syncs(cluster)
        with client.producer() as producer:
            for value in VALUES[:50]:
                producer.send(topic, value).result(30)
        assert syncs(cluster) > before


def test_a_log_is_synced_after_so_much_time(cluster: EmbeddedCluster, topic: str) -> None:
    with sync.Client(cluster.bootstrap) as client, client.producer() as producer:
        client.admin.create_topic(topic, partitions=1, configs={"flush.ms": "100"})
        # Without flush.ms, the log would be synced once a minute, as the other logs of the broker are.
        for value in VALUES[:5]:
            before = syncs(cluster)
            producer.send(topic, value).result(30)
            while syncs(cluster) == before:
                pass
