"""`odradek why` and `odradek top` show real faults on a cluster of real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from odradek import sync
from odradek.cli.main import app
from odradek.embedded import ClusterPlan, EmbeddedCluster

pytestmark = pytest.mark.timeout(400)
CLI = [sys.executable, "-m", "odradek.cli.main"]
UNTIL_S_MAX = 180.0
READY_S_MAX = 180.0
EXIT_UNHEALTHY = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Yield a cluster of two brokers; the second one fails each write to its disk after SIGUSR1."""
    plan = ClusterPlan(
        brokers=2,
        controllers=1,
        data_dir=tmp_path_factory.mktemp("why"),
        settings=("broker.session.timeout.ms=6000",),  # a loaded machine must not fence them
    )
    with EmbeddedCluster(plan) as cluster:
        cluster.brokers[2].module = "tests.integration.broker.broker_with_a_bad_disk"
        cluster.start()
        cluster.wait_ready(READY_S_MAX)
        yield cluster


def command(cluster: EmbeddedCluster, *words: str) -> tuple[int, str]:
    """Run a command in this process; return its status, and its output, or its errors if it fails."""
    result = CliRunner().invoke(app, ["--bootstrap", cluster.bootstrap, "--timeout", "60", *words])
    is_told = result.exit_code in (0, EXIT_UNHEALTHY)
    assert is_told or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout if is_told else result.stderr


def produce(cluster: EmbeddedCluster, topic: str, *values: str) -> None:
    with sync.Client(cluster.bootstrap) as client, client.producer() as producer:
        for value in values:
            producer.send(topic, value.encode())


def create(cluster: EmbeddedCluster, topic: str, *words: str, move_to: str = "") -> None:
    status, _ = command(cluster, "topic", "create", topic, "--partitions", "1", *words)
    assert status == 0
    if move_to:
        assert command(cluster, "partition", "move", topic, "--to", move_to, "--wait")[0] == 0


def explained(cluster: EmbeddedCluster, name: str = "") -> list[dict[str, Any]]:
    """Return the causes, and check that they agree with the exit status."""
    words = (name,) if name else ()
    status, text = command(cluster, "why", *words, "-o", "json")
    facts = json.loads(text)
    assert status == (EXIT_UNHEALTHY if facts["causes"] else 0)
    assert facts["healthy"] == (not facts["causes"])
    causes: list[dict[str, Any]] = facts["causes"]
    return causes


def until(
    cluster: EmbeddedCluster, name: str, is_seen: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    """Repeat `odradek why` until the causes are as wanted."""
    deadline_s = time.monotonic() + UNTIL_S_MAX
    while not is_seen(causes := explained(cluster, name)):
        assert time.monotonic() < deadline_s, f"not within {UNTIL_S_MAX:.0f} s: {causes}"
    return causes


def says(*texts: str) -> Callable[[list[dict[str, Any]]], bool]:
    """Return a function that checks whether the first chain of causes has these texts, in this
    order.
    """

    def is_seen(causes: list[dict[str, Any]]) -> bool:
        deeper = causes
        for text in texts:
            matching = [cause for cause in deeper if text in cause["what"]]
            if not matching:
                return False
            deeper = matching[0]["because"]
        return True

    return is_seen


def end_of_chain(causes: list[dict[str, Any]]) -> dict[str, Any]:
    cause = causes[0]
    while cause["because"]:
        cause = cause["because"][0]
    return cause


def test_nothing_is_wrong(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, "--replicas", "2")
    assert until(cluster, topic, lambda causes: not causes) == []
    assert command(cluster, "why", topic) == (0, f"topic {topic}: nothing is wrong\n")
    assert command(cluster, "why", f"{topic}/0") == (0, f"partition {topic}/0: nothing is wrong\n")
    assert command(cluster, "why", "2") == (0, "broker 2: nothing is wrong\n")
    status, text = command(cluster, "why", "no-such-thing")
    assert (status, "no topic, group, transactional id or broker no-such-thing" in text) == (
        2,
        True,
    )
    (unknown,) = explained(cluster, "77")
    assert unknown["what"] == "broker 77 is not registered"


def test_a_stopped_follower_is_why_acks_all_is_refused(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, "--replicas", "2", "--config", "min.insync.replicas=2", move_to="1,2")
    until(cluster, topic, lambda causes: not causes)
    cluster.brokers[2].signal(signal.SIGSTOP)
    try:
        causes = until(
            cluster,
            topic,
            says("refuses writes with acks=all", "broker 2 is fenced", "process of broker 2 hangs"),
        )
        assert "min.insync.replicas is 2 (set by: topic)" in causes[0]["evidence"]
        assert "in sync 1;" in causes[0]["evidence"]
        assert "accepts connections, but does not respond" in end_of_chain(causes)["evidence"]
        (fenced,) = [c for c in explained(cluster, "2") if "fenced" in c["what"]]
        assert "process of broker 2 hangs" in fenced["because"][0]["what"]
        status, text = command(cluster, "why", f"{topic}/0")
        lines = text.splitlines()
        assert status == EXIT_UNHEALTHY
        assert lines[0] == f"{topic}-0 refuses writes with acks=all"
        assert any(line.startswith("  because broker 2 is fenced") for line in lines)
        assert any(line.startswith("    because the process of broker 2 hangs") for line in lines)
    finally:
        cluster.brokers[2].signal(signal.SIGCONT)
    assert until(cluster, topic, lambda causes: not causes) == []


def test_a_killed_broker_is_why_there_is_no_leader_and_a_group_is_behind(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, "--replicas", "1", move_to="2")
    produce(cluster, topic, "a", "b", "c")
    words = ("consume", topic, "--group", topic + "-g", "--from-beginning", "-n", "1")
    assert command(cluster, *words) == (0, "a\n")
    cluster.brokers[2].kill()
    try:
        causes = until(
            cluster,
            topic,
            says("it has no leader", "broker 2 is fenced", "process of broker 2 is not running"),
        )
        assert "refuses connections" in end_of_chain(causes)["evidence"]
        causes = until(
            cluster,
            topic + "-g",
            says("records behind", "its end offset is not known", "has no leader"),
        )
        until(cluster, "", says("broker 2 is fenced"))
    finally:
        cluster.brokers[2].start()
        cluster.wait_ready(READY_S_MAX)
    assert until(cluster, topic, lambda causes: not causes) == []


def test_a_group_without_members_and_one_whose_member_stands_still(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, "--replicas", "2")
    group = topic + "-g"
    produce(cluster, topic, "a", "b", "c")
    words = ("consume", topic, "--group", group, "--from-beginning", "-n", "2")
    assert command(cluster, *words) == (0, "a\nb\n")
    (behind,) = until(cluster, group, says("is 1 records behind", "no consumer reads"))
    assert behind["because"][0]["evidence"] == "its state is Empty"
    consumer = subprocess.Popen(
        [*CLI, "consume", topic, "--group", group],
        stdout=subprocess.PIPE,
        env=os.environ | {"ODRADEK_BOOTSTRAP": cluster.bootstrap},
    )
    try:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == b"c\n"
        until(cluster, group, lambda causes: not causes)
        consumer.send_signal(signal.SIGSTOP)
        produce(cluster, topic, *["d"] * 50)
        (behind,) = until(cluster, group, says("is 50 records behind", "commits nothing"))
        assert "it committed 0 records" in behind["because"][0]["evidence"]
    finally:
        consumer.kill()
        consumer.wait()
        assert consumer.stdout is not None
        consumer.stdout.close()


def test_a_reader_of_committed_records_waits_for_an_open_transaction(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, "--replicas", "2")
    group = topic + "-g"
    with sync.Client(cluster.bootstrap) as client:
        client.admin.alter_group_offsets(group, {(topic, 0): 0})
        with (
            client.consumer(topic, group=group, isolation_level="read_committed") as consumer,
            client.producer(transactional_id=topic) as producer,
        ):
            consumer.getmany(timeout_ms=100)
            with producer.transaction():
                producer.send(topic, b"1").result(30)
                causes = until(cluster, group, lambda seen: bool(seen) and "wait for" in str(seen))
                (waiting,) = causes[0]["because"]
                assert (
                    "the transaction began at offset 0, and the end offset is 1; its producer"
                    in waiting["evidence"]
                )
                assert f"and transactional id {topic}" in waiting["evidence"]
                (open_one,) = until(cluster, topic, says(f"the transaction of {topic} is open"))
                assert f"it has records in {topic}-0" in open_one["evidence"]
                assert f"`odradek transaction abort {topic}`" in open_one["remedy"]
    # The topic has the name of the transactional id.
    assert until(cluster, topic, lambda causes: not causes) == []
    status, text = command(cluster, "why", topic)
    assert (status, text.splitlines()[1]) == (0, f"transactional id {topic}: nothing is wrong")


def test_a_failed_disk_is_why_a_replica_is_missing(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, "--replicas", "2", move_to="1,2")
    cluster.brokers[2].signal(signal.SIGUSR1)
    produce(cluster, topic, "a")
    try:
        causes = until(
            cluster,
            topic,
            says("is under-replicated", "broker 2 is fenced", "has lost its data directory"),
        )
        assert "Input/output error" in end_of_chain(causes)["evidence"]
    finally:
        cluster.brokers[2].kill()
        cluster.brokers[2].start()
        cluster.wait_ready(READY_S_MAX)
    assert until(cluster, topic, lambda causes: not causes) == []


def test_top_shows_brokers_topics_and_groups(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, "--replicas", "2")
    produce(cluster, topic, "a", "b", "c")
    words = ("consume", topic, "--group", topic + "-g", "--from-beginning", "-n", "1")
    assert command(cluster, *words) == (0, "a\n")
    writer = subprocess.Popen(
        [*CLI, "produce", topic, "/dev/stdin"],
        stdin=subprocess.PIPE,
        env=os.environ | {"ODRADEK_BOOTSTRAP": cluster.bootstrap},
    )
    assert writer.stdin is not None
    viewer = subprocess.Popen(
        [*CLI, "top", "--interval", "0.5", "-o", "json"],
        stdout=subprocess.PIPE,
        env=os.environ | {"ODRADEK_BOOTSTRAP": cluster.bootstrap},
    )
    try:
        assert viewer.stdout is not None
        deadline_s = time.monotonic() + UNTIL_S_MAX
        while True:
            writer.stdin.write(b"x\n" * 10)
            writer.stdin.flush()
            facts = json.loads(viewer.stdout.readline())
            (row,) = [row for row in facts["topics"] if row["topic"] == topic]
            if row["records_per_s"]:
                break
            assert time.monotonic() < deadline_s, facts
    finally:
        writer.stdin.close()
        assert writer.wait(30) == 0
        viewer.kill()
        viewer.wait()
        assert viewer.stdout is not None
        viewer.stdout.close()
    assert {row["broker"]: row["state"] for row in facts["brokers"]} == dict.fromkeys((1, 2), "up")
    assert all(row["logs"] > 0 and row["free_bytes"] > 0 for row in facts["brokers"])
    (group,) = [row for row in facts["groups"] if row["group"] == topic + "-g"]
    assert (group["state"], group["members"]) == ("Empty", 0)
    assert group["lag"] >= 2
    status, text = command(cluster, "top", "--once", "--interval", "0.1")
    assert status == 0
    assert text.startswith(f"cluster {facts['cluster']}   active controller {1}")
    assert topic in text


def test_without_a_controller_the_chain_ends_at_its_process(cluster: EmbeddedCluster) -> None:
    cluster.controllers[1].kill()
    is_seen = says("there is no active controller", "process of controller 1 is not running")
    deadline_s = time.monotonic() + UNTIL_S_MAX
    try:
        while True:
            # Brokers wait for a controller as long as the caller does, so this one is impatient.
            status, text = command(cluster, "--timeout", "10", "why", "-o", "json")
            causes = json.loads(text)["causes"]
            if is_seen(causes):
                break
            assert time.monotonic() < deadline_s, causes
        assert status == EXIT_UNHEALTHY
        assert "controller 1 at 127.0.0.1" in causes[0]["evidence"]
        assert "refuses connections" in end_of_chain(causes)["evidence"]
    finally:
        cluster.controllers[1].start()
        cluster.wait_ready(READY_S_MAX)
    until(cluster, "", lambda causes: not causes)


def test_log_directories_and_quotas(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    def rows(*words: str) -> Any:
        status, text = command(cluster, *words, "-o", "json")
        assert status == 0, text
        return json.loads(text)

    create(cluster, topic, "--replicas", "2")
    produce(cluster, topic, "a" * 1000)
    listed = rows("cluster", "logs")
    assert [row["broker"] for row in listed] == [1, 2]
    assert all(row["volume_bytes"] > row["bytes"] > 0 and not row["problem"] for row in listed)
    sizes = [row for row in rows("cluster", "logs", "--by-topic") if row["topic"] == topic]
    assert [(row["broker"], row["logs"]) for row in sizes] == [(1, 1), (2, 1)]
    assert all(row["bytes"] > 1000 for row in sizes)

    alice = ("--user", "alice")
    rows("quota", "set", *alice, "--producer-byte-rate", "1MiB", "--request-percentage", "50")
    rows("quota", "set", *alice, "--client-id", "DEFAULT", "--consumer-byte-rate", "2MB")
    rows("quota", "set", "--ip", "10.0.0.1", "--connection-creation-rate", "5")
    rows("quota", "set", "--user", "bob", "--request-percentage", "1", "--dry-run")
    assert rows("quota", "list", *alice) == [
        {"user": "alice", "client_id": None, "ip": None, "quota": "producer_byte_rate"}
        | {"value": 1 << 20},
        {"user": "alice", "client_id": None, "ip": None, "quota": "request_percentage"}
        | {"value": 50},
        {"user": "alice", "client_id": "DEFAULT", "ip": None, "quota": "consumer_byte_rate"}
        | {"value": 2_000_000},
    ]
    assert len(rows("quota", "list")) == 4
    assert len(rows("quota", "remove", *alice, "--request-percentage")) == 1
    assert len(rows("quota", "remove", *alice)) == 1
    assert [row["client_id"] for row in rows("quota", "list", *alice)] == ["DEFAULT"]
    assert command(cluster, "quota", "remove", *alice)[0] == 1
