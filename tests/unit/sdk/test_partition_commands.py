"""`odradek partition` and `odradek topic trim` against a cluster in memory: moves, elections,
deleted records.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from odradek import Client, sync
from odradek.admin.descriptions import Partition, Reassignment, TopicDescription
from odradek.admin.reassignments import with_replica_count
from odradek.cli import connection, output
from odradek.cli.main import app
from odradek.cli.moves import MoveProgress
from odradek.cli.output import confirm, readable_bytes
from odradek.cli.times import size_bytes
from odradek.errors import OdradekError
from odradek.partitions import TopicPartition
from odradek.testing import MemoryCluster

START_MS = 1_767_225_600_000


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Return a cluster of four brokers in memory, which the commands use.

    Each partition has a replica on every broker.
    """
    cluster = MemoryCluster(brokers=4)
    cluster.create_topic("orders", partitions=2)

    def open_client(bootstrap: str) -> Client:
        return cluster.client()

    monkeypatch.setattr(connection, "open_client", open_client)
    return cluster


def run(*words: str, status: int = 0) -> str:
    """Run a command and return its output, or its errors if it fails."""
    result = CliRunner().invoke(app, words)
    assert result.exit_code == status, result.output
    return f"{result.stderr}{result.exception}" if status else result.stdout


def rows(*words: str) -> Any:
    return json.loads(run(*words, "-o", "json"))


def replicas(cluster: MemoryCluster, topic: str = "orders") -> list[list[int]]:
    return [partition.replicas for partition in cluster.topics[topic].partitions]


def fill(cluster: MemoryCluster) -> None:
    """Write ten records to each partition, one each second."""
    with (
        sync.Client(cluster.bootstrap, transport=cluster.transport()) as client,
        client.producer() as producer,
    ):
        for number in range(20):
            producer.send(
                "orders",
                b"x",
                partition=number % 2,
                timestamp_ms=START_MS + number // 2 * 1000,
            )


def starts(cluster: MemoryCluster) -> list[int]:
    return [partition.log.log_start_offset for partition in cluster.topics["orders"].partitions]


def test_a_partition_moves_to_the_brokers_that_are_named(cluster: MemoryCluster) -> None:
    moved = rows("partition", "move", "orders", "-p", "1", "--to", "3,1", "--wait")
    assert moved == [{"topic": "orders", "partition": 1, "from": [2, 3, 4, 1], "to": [3, 1]}]
    assert replicas(cluster) == [[1, 2, 3, 4], [3, 1]]
    assert rows("partition", "move", "orders", "-p", "1", "--to", "3,1") == []


def test_a_dry_run_moves_nothing(cluster: MemoryCluster) -> None:
    assert len(rows("partition", "move", "orders", "--to", "3,1", "--dry-run")) == 2
    assert len(rows("partition", "set-replicas", "orders", "1", "--dry-run")) == 2
    assert replicas(cluster) == [[1, 2, 3, 4], [2, 3, 4, 1]]


def test_the_replication_factor_changes(cluster: MemoryCluster) -> None:
    run("partition", "set-replicas", "orders", "2", "--wait")
    assert [found[0] for found in replicas(cluster)] == [1, 2], "preferred leaders stay"
    assert all(len(found) == 2 for found in replicas(cluster))
    run("partition", "set-replicas", "orders", "3", "--wait")
    assert all(len(found) == 3 for found in replicas(cluster))
    refused = run("partition", "set-replicas", "orders", "5", status=2)
    assert "5 replicas need 5 live brokers, but only 4 are live" in refused


def test_a_move_is_shown_and_cancelled_while_a_broker_is_down(cluster: MemoryCluster) -> None:
    fill(cluster)
    run("partition", "move", "orders", "--to", "1,2")
    cluster.kill(4)
    run("partition", "move", "orders", "-p", "0", "--to", "1,4")
    (move,) = rows("partition", "moves")
    size = cluster.log("orders").size_bytes
    assert move == {
        "topic": "orders",
        "partition": 0,
        "from": [1, 2],
        "to": [1, 4],
        "waits_for": [4],
        "copied_bytes": 0,
        "total_bytes": size,
    }
    (state,) = [row for row in rows("partition", "list") if row["state"] == "moving"]
    assert (state["partition"], state["replicas"], state["isr"]) == (0, [1, 4, 2], [1, 2])
    assert len(rows("partition", "cancel", "--dry-run")) == 1
    assert rows("partition", "cancel", "--topic", "orders") == [
        {"topic": "orders", "partition": 0, "from": [1, 4], "to": [1, 2]}
    ]
    assert replicas(cluster)[0] == [1, 2]
    assert rows("partition", "moves") == []
    assert rows("partition", "cancel") == []


def test_partitions_move_as_a_file_says(cluster: MemoryCluster, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan = {
        "version": 1,
        "partitions": [
            {"topic": "orders", "partition": 0, "replicas": [2, 1], "log_dirs": ["any", "any"]}
        ],
    }
    file.write_text(json.dumps(plan))
    run("partition", "reassign", str(file), "--wait")
    assert replicas(cluster) == [[2, 1], [2, 3, 4, 1]]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"partitions": [{"topic": "orders", "partition": 0, "replicas": []}]}'],
)
def test_a_file_that_is_no_plan_is_refused_with_an_example(
    cluster: MemoryCluster, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    assert '"replicas": [1, 2]' in run("partition", "reassign", str(file), status=2)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("move", "orders", "--to", "1,9"), 2, "there is no broker 9"),
        (("move", "orders", "--to", "1,1"), 2, "--to 1,1"),
        (("move", "orders", "--to", "1,x"), 2, "--to 1,x"),
        (("move", "orders", "-p", "7", "--to", "1"), 2, "has no partition 7, only 0 to 1"),
        (("move", "nosuch", "--to", "1"), 1, "'nosuch' does not exist"),
        (("cancel", "--topic", "nosuch"), 1, "'nosuch' does not exist"),
        (("elect", "-p", "1"), 2, "exactly one --topic"),
        (("reassign", "nosuch.json"), 2, "cannot read nosuch.json"),
    ],
)
def test_bad_input_names_the_thing(
    cluster: MemoryCluster, words: tuple[str, ...], status: int, said: str
) -> None:
    assert said in run("partition", *words, status=status)


def test_preferred_replicas_are_elected(cluster: MemoryCluster) -> None:
    cluster.move_leader("orders", 0, 3)
    assert rows("partition", "list", "--not-preferred")[0]["leader"] == 3
    expected = [{"topic": "orders", "partition": 0, "leader": 3, "preferred": 1}]
    assert rows("partition", "elect", "--dry-run") == expected
    assert rows("partition", "elect") == expected
    assert cluster.topics["orders"].partitions[0].leader_id == 1
    assert rows("partition", "elect") == []


def test_a_failed_election_names_the_partition(cluster: MemoryCluster) -> None:
    cluster.kill(1)
    assert "odradek: orders-0: " in run("partition", "elect", status=1)


def test_records_are_deleted_up_to_an_offset(cluster: MemoryCluster) -> None:
    fill(cluster)
    trimmed = rows("topic", "trim", "orders", "--before", "4", "-p", "1")
    assert trimmed == [
        {"topic": "orders", "partition": 1, "start": 0, "new_start": 4, "end": 10, "records": 4}
    ]
    assert starts(cluster) == [0, 4]
    assert rows("topic", "trim", "orders", "--before", "4", "-p", "1") == []


def test_records_are_deleted_up_to_a_time(cluster: MemoryCluster) -> None:
    fill(cluster)
    assert len(rows("topic", "trim", "orders", "--until", str(START_MS + 3000), "--dry-run")) == 2
    assert starts(cluster) == [0, 0]
    run("topic", "trim", "orders", "--until", str(START_MS + 3000))
    assert starts(cluster) == [3, 3]
    run("topic", "trim", "orders", "--until", str(START_MS + 99_000))
    assert starts(cluster) == [10, 10]


def test_all_records_are_deleted_and_never_more_than_there_are(cluster: MemoryCluster) -> None:
    fill(cluster)
    run("topic", "trim", "orders", "--before", "1000", "-p", "0")
    assert starts(cluster) == [10, 0]
    run("topic", "trim", "orders", "--before", "end")
    assert starts(cluster) == [10, 10]


@pytest.mark.parametrize(
    "options",
    [(), ("--before", "1", "--until", "1m"), ("--before", "-1"), ("--until", "some day")],
)
def test_an_unclear_trim_is_refused(cluster: MemoryCluster, options: tuple[str, ...]) -> None:
    fill(cluster)
    run("topic", "trim", "orders", *options, status=2)
    assert starts(cluster) == [0, 0]


class Terminal(io.StringIO):
    """Standard input of a person who types this text."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("typed", ["", "\n", "n\n", "nyes\n"])
def test_anything_but_yes_ends_the_command(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    with pytest.raises(SystemExit) as ended:
        confirm("Delete it?", is_confirmed=False)
    assert ended.value.code == output.EXIT_ERROR
    confirm("Delete it?", is_confirmed=True)


@pytest.mark.parametrize("typed", ["y\n", "Yes\n"])
def test_yes_lets_the_command_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    confirm("Delete it?", is_confirmed=False)
    assert capsys.readouterr().err == "Delete it? [y/N] "


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (3 << 30, "3.0 GiB"),
        (9 << 50, "9216.0 TiB"),
    ],
)
def test_bytes_are_written_with_binary_units(count: int, text: str) -> None:
    assert readable_bytes(count) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [("500", 500), ("10MB", 10_000_000), ("1.5GiB", 3 << 29), ("2k", 2_000), ("64 KiB", 1 << 16)],
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert size_bytes(text, option="--rate") == count


@pytest.mark.parametrize("text", ["", "0", "fast", "-1", "9 apples"])
def test_another_size_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        size_bytes(text, option="--rate")


def a_move(index: int, copied: int, total: int) -> Reassignment:
    return Reassignment(
        partition=TopicPartition("t", index),
        leader_id=1,
        replicas=(2, 1),
        adding=(2,),
        removing=(1,),
        isr=(1,),
        total_bytes=total,
        copied_bytes=copied,
    )


def test_progress_has_the_rate_and_the_time_left() -> None:
    progress = MoveProgress([TopicPartition("t", n) for n in range(2)], 100.0)
    progress.update([a_move(0, 0, 1 << 20), a_move(1, 0, 3 << 20)], 100.0)
    assert progress.text() == "0 of 2 partitions moved, 0 B of 4.0 MiB copied"
    progress.update([a_move(1, 1 << 20, 3 << 20)], 102.0)
    expected = "1 of 2 partitions moved, 2.0 MiB of 4.0 MiB copied, 1.0 MiB/s, about 2 s left"
    assert progress.text() == expected
    progress.update([], 105.0)
    assert progress.summary() == "2 partitions moved in 5.0 s, 4.0 MiB copied"


def test_progress_without_sizes_counts_partitions() -> None:
    progress = MoveProgress([TopicPartition("t", 0)], 0.0)
    progress.update([], 0.0)
    assert progress.text() == "1 of 1 partition moved"


def described(*partitions: Partition) -> TopicDescription:
    return TopicDescription(name="t", topic_id=b"t" * 16, is_internal=False, partitions=partitions)


def changed(
    partition: Partition, count: int, loads: Mapping[int, int], **places: Mapping[int, str]
) -> tuple[int, ...]:
    return with_replica_count(described(partition), count, loads=loads, **places)[0]


def test_a_new_replica_goes_to_another_rack_before_an_idle_broker() -> None:
    partition = Partition(partition=0, leader_id=1, replicas=(1,), isr=(1,))
    loads, racks = {1: 9, 2: 0, 3: 5}, {1: "a", 2: "a", 3: "b"}
    assert changed(partition, 2, loads) == (1, 2)
    assert changed(partition, 2, loads, racks=racks) == (1, 3)
    assert changed(partition, 2, loads, hosts=racks) == (1, 3)


def test_a_replica_that_is_not_in_sync_is_removed_first_and_the_preferred_last() -> None:
    loads = {1: 3, 2: 3, 3: 3}
    lagging = Partition(partition=0, leader_id=1, replicas=(1, 2, 3), isr=(1, 3))
    assert changed(lagging, 2, loads) == (1, 3)
    assert changed(lagging, 1, loads) == (1,)
    without_preferred = Partition(partition=0, leader_id=3, replicas=(1, 2, 3), isr=(2, 3))
    assert changed(without_preferred, 2, loads) == (2, 3)
    same_rack = Partition(partition=0, leader_id=1, replicas=(1, 2, 3), isr=(1, 2, 3))
    assert changed(same_rack, 2, loads, racks={1: "a", 2: "a", 3: "b"}) == (1, 3)


@given(
    st.integers(1, 5).flatmap(
        lambda brokers: st.tuples(
            st.just(brokers),
            st.integers(1, brokers),
            st.lists(
                st.permutations(range(brokers)).flatmap(
                    lambda order: st.integers(1, brokers).map(lambda n: tuple(order[:n]))
                ),
                min_size=1,
                max_size=6,
            ),
        )
    )
)
def test_each_partition_has_the_count_and_keeps_its_preferred_leader(
    drawn: tuple[int, int, list[tuple[int, ...]]],
) -> None:
    brokers, count, before = drawn
    topic = described(
        *(
            Partition(partition=n, leader_id=found[0], replicas=found, isr=found)
            for n, found in enumerate(before)
        )
    )
    plan = with_replica_count(topic, count, loads=dict.fromkeys(range(brokers), 0))
    for index, found in enumerate(before):
        after = plan.get(index, found)
        assert len(after) == len(set(after)) == count
        assert after[0] == found[0]
        assert (index in plan) == (len(found) != count)
    with pytest.raises(ValueError, match=r"need [0-9]+ brokers, but there are only"):
        with_replica_count(topic, brokers + 1, loads=dict.fromkeys(range(brokers), 0))


def test_spread_keeps_the_replication_factor_of_a_partition_that_is_moving(
    cluster: MemoryCluster,
) -> None:
    """Broker 4 is down, so the move of partition 0 does not end."""
    run("partition", "move", "orders", "--to", "1,2")
    cluster.kill(4)
    run("partition", "move", "orders", "-p", "0", "--to", "1,4")
    assert [len(found) for found in replicas(cluster)] == [3, 2], "the move is in progress"
    run("cluster", "spread", "--over", "1,3")
    assert [sorted(found) for found in replicas(cluster)] == [[1, 3], [1, 3]]
    assert [partition.is_moving for partition in cluster.topics["orders"].partitions] == [
        False,
        False,
    ]


def test_moves_that_would_change_the_replication_factor_are_refused_on_demand(
    cluster: MemoryCluster,
) -> None:
    with sync.Client(cluster.bootstrap, transport=cluster.transport()) as client:
        target = {("orders", 0): (1, 2)}
        (refused,) = client.admin.reassign_partitions(target, keep_replication_factor=True)
        assert isinstance(refused.error, OdradekError)
        assert len(replicas(cluster)[0]) == 4
        (moved,) = client.admin.reassign_partitions(target)
        assert moved.error is None
    assert replicas(cluster)[0] == [1, 2]


@pytest.mark.parametrize("brokers", ["1,²", "1,٣", "1" * 5_000, "9" * 10, "1,01", "1, 1", "1,", ""])
@pytest.mark.parametrize("command", ["move", "spread"])
def test_texts_that_are_no_broker_ids_are_refused(
    cluster: MemoryCluster, command: str, brokers: str
) -> None:
    if command == "move":
        refused = run("partition", "move", "orders", "--to", brokers, status=2)
        assert "--to" in refused
    elif brokers:
        assert "--over" in run("cluster", "spread", "--over", brokers, status=2)


@pytest.mark.parametrize("offset", ["9" * 5_000, "9" * 20, "²", "-1", "ends"])
def test_texts_that_are_no_offsets_are_refused(cluster: MemoryCluster, offset: str) -> None:
    assert "--before" in run("topic", "trim", "orders", "--before", offset, status=2)
