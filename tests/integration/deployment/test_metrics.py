"""A scrape of live processes contains the metrics that operators watch, named by the rules of
Prometheus.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from odradek.embedded import ClusterPlan, EmbeddedCluster

BROKER = "odradek_broker_"
QUORUM = "odradek_metadata_quorum_"
WATCHED = {
    "broker-1": {
        BROKER + name
        for name in (
            "kafka_requests",
            "kafka_request_latency_seconds",
            "kafka_connections",
            "produce_requests",
            "produce_latency_seconds",
            "bytes_in",
            "bytes_out",
            "topic_bytes_in",
            "topic_bytes_out",
            "grpc_calls",
            "grpc_call_latency_seconds",
            "grpc_open_streams",
            "logins",
            "replication_bytes_in",
            "replication_bytes_out",
            "under_replicated_partitions",
            "partitions_under_min_isr",
            "offline_partitions",
            "isr_shrinks",
            "isr_expands",
            "log_bytes",
            "partition_log_bytes",
            "replication_lag_records",
            "log_end_offset",
            "high_watermark",
            "fsync_seconds",
            "event_loop_lag_seconds",
            "disk_free_bytes",
            "log_directory_offline",
        )
    },
    "controller-1": {
        QUORUM + name
        for name in (
            "raft_term",
            "raft_leader",
            "commit_offset",
            "applied_offset",
            "active_controller",
            "fsync_seconds",
            "offline_partitions",
            "under_replicated_partitions",
            "unclean_leader_elections",
            "fenced_brokers",
        )
    },
}
PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds", "process_open_fds"}
NOT_BASE_UNITS = ("_ms", "_us", "_ns", "_millis", "_kb", "_mb", "_milliseconds", "_percent")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1)) as running:
        running.start()
        running.wait_ready()
        producer = Producer({"bootstrap.servers": running.kafka_bootstrap, "acks": "all"})
        producer.produce("watched", b"value")
        assert producer.flush(60) == 0
        yield running


def _get(cluster: EmbeddedCluster, process: str, path: str) -> str:
    address = cluster.describe()["metrics"][process]
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        body: bytes = answer.read()
    return body.decode()


def _scrape(cluster: EmbeddedCluster, process: str) -> dict[str, Metric]:
    text = _get(cluster, process, "/metrics")
    return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.mark.parametrize("process", list(WATCHED))
def test_what_people_watch_is_there(cluster: EmbeddedCluster, process: str) -> None:
    found = _scrape(cluster, process)
    assert (WATCHED[process] | PROCESS) - set(found) == set()


@pytest.mark.parametrize("process", list(WATCHED))
def test_names_follow_prometheus(cluster: EmbeddedCluster, process: str) -> None:
    for name, family in _scrape(cluster, process).items():
        assert not name.endswith(NOT_BASE_UNITS), name
        assert family.documentation, name
        if family.type == "counter":
            assert all(s.name.endswith(("_total", "_created")) for s in family.samples), name


def test_a_produce_is_counted_and_timed(cluster: EmbeddedCluster) -> None:
    found = _scrape(cluster, "broker-1")
    requests = {s.labels["request"]: s.value for s in found[BROKER + "kafka_requests"].samples}
    timed = {
        s.labels["request"]: s.value
        for s in found[BROKER + "kafka_request_latency_seconds"].samples
        if s.name.endswith("_count")
    }
    assert requests["produce"] == timed["produce"] == 1
    (log_end,) = (
        s.value
        for s in found[BROKER + "log_end_offset"].samples
        if s.labels == {"topic": "watched", "partition": "0"}
    )
    assert log_end == 1
    by_topic = {s.labels["topic"]: s.value for s in found[BROKER + "topic_bytes_in"].samples}
    (total,) = found[BROKER + "bytes_in"].samples
    assert by_topic["watched"] == total.value > 0


@pytest.mark.parametrize("process", list(WATCHED))
def test_readiness_lists_what_it_checked(cluster: EmbeddedCluster, process: str) -> None:
    checks = _get(cluster, process, "/readyz?verbose").split("\n")
    assert "ok" in checks
    assert any(line.startswith("ok ") for line in checks)
    assert "ok" in _get(cluster, process, "/livez")
