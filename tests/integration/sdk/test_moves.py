"""Replicas move between real brokers by command: placement, progress, cancelling, elections,
deleted records.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.embedded import ClusterPlan, EmbeddedCluster

CLI = [sys.executable, "-m", "odradek.cli.main"]
DOCUMENT = Path(__file__).parents[3] / "docs/administration.md"
RECORD = "x" * 1_000 + "\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    plan = ClusterPlan(brokers=3, controllers=1, data_dir=tmp_path_factory.mktemp("moves"))
    with EmbeddedCluster(plan) as cluster:
        cluster.start()
        cluster.wait_ready()
        yield cluster


def run(cluster: EmbeddedCluster, *words: str, stdin: str = "", status: int = 0) -> str:
    done = subprocess.run(
        [*CLI, *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"ODRADEK_BOOTSTRAP": cluster.bootstrap},
        timeout=90,
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if status else done.stdout


def rows(cluster: EmbeddedCluster, *words: str) -> Any:
    return json.loads(run(cluster, *words, "-o", "json"))


def replicas(cluster: EmbeddedCluster, topic: str) -> list[list[int]]:
    return [sorted(row["replicas"]) for row in rows(cluster, "partition", "list", "--topic", topic)]


def test_a_topic_gets_replicas_and_moves_with_its_records(
    cluster: EmbeddedCluster, topic: str
) -> None:
    run(cluster, "topic", "create", topic, "--partitions", "2", "--replicas", "1")
    run(cluster, "produce", topic, stdin=RECORD * 500)
    run(cluster, "partition", "set-replicas", topic, "3", "--wait")
    assert replicas(cluster, topic) == [[1, 2, 3], [1, 2, 3]]
    listed = rows(cluster, "partition", "list", "--topic", topic)
    assert [sorted(row["isr"]) for row in listed] == [[1, 2, 3], [1, 2, 3]]
    run(cluster, "partition", "move", topic, "--to", "3,2", "--wait")
    run(cluster, "partition", "elect", "--topic", topic)
    assert rows(cluster, "partition", "elect", "--topic", topic) == []
    listed = rows(cluster, "partition", "list", "--topic", topic)
    assert [(row["leader"], row["replicas"]) for row in listed] == [(3, [3, 2])] * 2
    read = run(cluster, "consume", topic, "--from-beginning", "--exit-at-end")
    assert read == RECORD * 500


def test_a_spread_that_is_waited_for_elects_the_new_leaders(
    cluster: EmbeddedCluster, topic: str
) -> None:
    run(cluster, "topic", "create", topic, "--partitions", "6", "--replicas", "2")
    run(cluster, "partition", "move", topic, "--to", "1,2", "--wait")
    run(cluster, "partition", "elect", "--topic", topic)
    run(cluster, "cluster", "spread", "--topic", topic, "--wait")
    listed = rows(cluster, "partition", "list", "--topic", topic)
    assert all(row["leader"] == row["replicas"][0] for row in listed), listed
    assert sorted(row["leader"] for row in listed) == [1, 1, 2, 2, 3, 3]
    assert (
        sorted(broker for row in listed for broker in row["replicas"])
        == [1] * 4 + [2] * 4 + [3] * 4
    )


def test_a_move_to_a_broker_that_is_down_is_shown_and_cancelled(
    cluster: EmbeddedCluster, topic: str
) -> None:
    run(cluster, "topic", "create", topic, "--partitions", "1", "--replicas", "1")
    run(cluster, "partition", "move", topic, "--to", "1", "--wait")
    run(cluster, "produce", topic, stdin=RECORD * 20)
    cluster.brokers[3].kill()
    run(cluster, "partition", "move", topic, "--to", "3")
    (move,) = rows(cluster, "partition", "moves")
    assert (move["from"], move["to"], move["waits_for"]) == ([1], [3], [3])
    assert move["copied_bytes"] == 0
    assert move["total_bytes"] > 20_000
    run(cluster, "partition", "cancel", "--topic", topic)
    assert replicas(cluster, topic) == [[1]]
    assert rows(cluster, "partition", "moves") == []
    cluster.brokers[3].start()
    cluster.wait_ready()


def test_copying_is_throttled_at_run_time(cluster: EmbeddedCluster) -> None:
    def rates(*words: str) -> dict[int, int | None]:
        listed = rows(cluster, "partition", "throttle", *words)
        return {row["broker"]: row["bytes_per_s"] for row in listed}

    assert rates() == {1: None, 2: None, 3: None}
    assert rates("--rate", "5MB") == dict.fromkeys((1, 2, 3), 5_000_000)
    assert rates("--rate", "1KiB", "--broker", "2") == {2: 1024}
    assert rates() == {1: 5_000_000, 2: 1024, 3: 5_000_000}
    assert rates("--remove") == {1: None, 2: None, 3: None}
    assert "no broker 9" in run(cluster, "partition", "throttle", "--broker", "9", status=2)


@pytest.mark.timeout(400)
def test_the_commands_of_the_documentation_run(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    run(cluster, "topic", "create", "greetings", "--partitions", "2", "--replicas", "3")
    for partition in ("0", "1"):
        run(cluster, "produce", "greetings", "-p", partition, stdin="hello\n" * 5)
    words = ("consume", "greetings", "--group", "billing", "--from-beginning", "-n", "10")
    assert run(cluster, *words) == "hello\n" * 10
    blocks = re.findall(r"^```\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S)
    odradek = f'odradek() {{ {sys.executable} -m odradek.cli.main "$@"; }}\n'
    done = subprocess.run(
        ["sh", "-e"],
        input=odradek + "".join(blocks),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"ODRADEK_BOOTSTRAP": cluster.bootstrap},
        cwd=tmp_path,
        timeout=360,  # 30 commands, each a process
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    groups = {row["group"]: row["lag"] for row in rows(cluster, "group", "list", "--lag")}
    assert groups == {"billing": 0, "billing-copy": 0}, "it was at the end when it was saved"


def test_records_are_deleted_on_all_replicas(cluster: EmbeddedCluster, topic: str) -> None:
    run(cluster, "topic", "create", topic, "--partitions", "1", "--replicas", "3")
    run(cluster, "produce", topic, stdin="".join(f"{n}\n" for n in range(10)))
    assert len(rows(cluster, "topic", "trim", topic, "--before", "7", "--dry-run")) == 1
    (trimmed,) = rows(cluster, "topic", "trim", topic, "--before", "7")
    assert (trimmed["new_start"], trimmed["records"]) == (7, 7)
    read = run(cluster, "consume", topic, "--from-beginning", "--exit-at-end")
    assert read.split() == ["7", "8", "9"]
    run(cluster, "topic", "trim", topic, "--until", "1ms")
    assert run(cluster, "consume", topic, "--from-beginning", "--exit-at-end") == ""


def test_replicas_are_balanced_over_all_live_brokers(cluster: EmbeddedCluster, topic: str) -> None:
    run(cluster, "topic", "create", topic, "--partitions", "3", "--replicas", "1")
    run(cluster, "partition", "move", topic, "--to", "1", "--wait")
    run(cluster, "cluster", "spread", "--topic", topic, "--wait")
    assert sorted(replicas(cluster, topic)) == [[1], [2], [3]]
