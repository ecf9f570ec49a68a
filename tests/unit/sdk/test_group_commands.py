"""`odradek group` shows the lag of all groups, and moves committed offsets by time, shift, group or
file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from odradek import Client, sync
from odradek.cli import connection
from odradek.cli.main import app
from odradek.testing import MemoryCluster

START_MS = 1_767_225_600_000


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Return a cluster with ten records on each partition of `orders`, one each second; group
    `billing` has committed 3 and 4.
    """
    cluster = MemoryCluster()
    cluster.create_topic("orders", partitions=2)
    cluster.create_topic("other")
    with sync.Client(cluster.bootstrap, transport=cluster.transport()) as client:
        with client.producer() as producer:
            for number in range(20):
                producer.send(
                    "orders",
                    b"x",
                    partition=number % 2,
                    timestamp_ms=START_MS + number // 2 * 1000,
                )
        client.admin.alter_group_offsets("billing", {("orders", 0): 3, ("orders", 1): 4})

    def open_client(bootstrap: str) -> Client:
        return cluster.client()

    monkeypatch.setattr(connection, "open_client", open_client)
    return cluster


def run(*words: str, status: int = 0) -> str:
    """Run a command and return its output, or its errors if it fails."""
    result = CliRunner().invoke(app, words)
    assert result.exit_code == status, result.output
    return f"{result.stderr}{result.exception}" if status else result.stdout


def committed(group: str = "billing") -> list[int]:
    described = json.loads(run("group", "describe", group, "-o", "json"))
    return [row["committed"] for row in described["partitions"]]


def test_groups_are_listed_with_their_lag_and_by_state(cluster: MemoryCluster) -> None:
    (row,) = json.loads(run("group", "list", "--lag", "-o", "json"))
    assert (row["group"], row["members"], row["lag"]) == ("billing", 0, 13)
    assert "lag" not in json.loads(run("group", "list", "-o", "json"))[0]
    assert len(json.loads(run("group", "list", "--state", row["state"].lower(), "-o", "json"))) == 1
    assert json.loads(run("group", "list", "--state", "Dead", "-o", "json")) == []


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--to", "start"], [0, 0]),
        (["--to", "end"], [10, 10]),
        (["--to", "earliest"], [0, 0]),
        (["--to", "latest"], [10, 10]),
        (["--to", "7"], [7, 7]),
        (["--to", "99"], [10, 10]),
        (["--to", f"@{START_MS + 2_000}"], [2, 2]),
        (["--since", str(START_MS + 5_500)], [6, 6]),
        (["--since", "1m"], [10, 10]),
        (["--by", "2"], [5, 6]),
        (["--by", "-4"], [0, 0]),
        (["--by", "7"], [10, 10]),
        (["--by", "-1", "-p", "1"], [3, 3]),
        (["--to", "end", "--topic", "orders", "-p", "0"], [10, 4]),
    ],
)
def test_committed_offsets_move(
    cluster: MemoryCluster, options: Sequence[str], offsets: list[int]
) -> None:
    run("group", "seek", "billing", *options, "--dry-run")
    assert committed() == [3, 4]
    run("group", "seek", "billing", *options)
    assert committed() == offsets


def test_no_offset_lies_before_the_first_record(cluster: MemoryCluster) -> None:
    run("topic", "trim", "orders", "--before", "6")
    run("group", "seek", "billing", "--to", "2")
    assert committed() == [6, 6]


def test_offsets_come_from_another_group(cluster: MemoryCluster) -> None:
    run("group", "seek", "copy", "--from-group", "billing")
    assert committed("copy") == [3, 4]


def test_offsets_are_saved_and_restored(cluster: MemoryCluster, tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    file.write_text(run("group", "describe", "billing", "-o", "json"))
    run("group", "seek", "billing", "--to", "end")
    run("group", "seek", "billing", "--from-file", str(file))
    assert committed() == [3, 4]


@pytest.mark.parametrize(
    "text",
    [
        "orders,0,8\norders,1,9\n",
        "billing,orders,0,8\n\nbilling,orders,1,9",
        '[{"topic": "orders", "partition": 0, "offset": 8},'
        ' {"topic": "orders", "partition": 1, "offset": 9}]',
    ],
)
def test_files_of_kafkas_tools_are_read(cluster: MemoryCluster, tmp_path: Path, text: str) -> None:
    file = tmp_path / "offsets"
    file.write_text(text)
    run("group", "seek", "billing", "--from-file", str(file))
    assert committed() == [8, 9]


def test_lines_of_other_groups_in_a_file_are_left_out(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    file = tmp_path / "offsets"
    file.write_text(
        "billing,orders,0,8\nbilling,orders,1,9\nshipping,orders,0,1\nshipping,orders,1,2\n"
    )
    run("group", "seek", "billing", "--from-file", str(file))
    assert committed() == [8, 9]
    refused = run("group", "seek", "fresh", "--from-file", str(file), status=2)
    assert "has no offsets for group fresh" in refused


@pytest.mark.parametrize("text", ["", "orders", "orders,0,soon", "{}", '{"partitions": [7]}'])
def test_a_file_without_offsets_is_refused(
    cluster: MemoryCluster, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "offsets"
    file.write_text(text)
    refused = run("group", "seek", "billing", "--from-file", str(file), status=2)
    assert "TOPIC,PARTITION,OFFSET" in refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "choose the new offsets with one of --to"),
        (["--to", "end", "--by", "1"], "choose the new offsets with one of --to"),
        (["--to", "soon"], "--to soon"),
        (["--since", "soon"], "--since soon"),
        (["--from-file", "/no/such/file"], "cannot read /no/such/file"),
    ],
)
def test_an_unclear_position_is_refused(
    cluster: MemoryCluster, options: Sequence[str], said: str
) -> None:
    assert said in run("group", "seek", "billing", *options, status=2)
    assert committed() == [3, 4]


def test_a_group_without_offsets_needs_topics(cluster: MemoryCluster) -> None:
    said = run("group", "seek", "fresh", "--to", "end", status=1)
    assert "group fresh has no committed offsets: check its name" in said
    assert "--topic" in said
    said = run("group", "seek", "billing", "--from-group", "fresh", status=1)
    assert "group fresh has no" in said
    assert committed() == [3, 4]
    run("group", "seek", "fresh", "--to", "end", "--topic", "orders")
    assert committed("fresh") == [10, 10]


def test_a_deletion_of_groups_that_fails_in_part_says_which_are_gone(
    cluster: MemoryCluster,
) -> None:
    result = CliRunner().invoke(app, ["group", "delete", "nobody", "billing", "none", "-o", "json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout) == [
        {"group": "nobody", "deleted": False},
        {"group": "billing", "deleted": True},
        {"group": "none", "deleted": False},
    ]
    assert "'nobody'" in result.stderr
    assert "'none'" in result.stderr
    assert run("group", "delete", "nobody", status=1).count("'nobody'") == 1


def test_the_errors_of_many_groups_are_printed_up_to_a_limit(cluster: MemoryCluster) -> None:
    names = [f"unknown-{n}" for n in range(25)]
    printed = run("group", "delete", *names, status=1)
    assert printed.count("group id not found") == 20
    assert "and 5 more errors" in printed


def test_a_file_with_a_negative_partition_is_refused(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text("orders,-1,5\n")
    assert "TOPIC,PARTITION,OFFSET" in run(
        "group", "seek", "billing", "--from-file", str(path), status=2
    )
