"""Commands suggest similar groups for a group that does not exist, and `odradek why` similar names of any kind."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from odradek import sync
from odradek.cli import connection
from odradek.cli.main import app
from odradek.testing import MemoryCluster


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Return a cluster with a topic of six partitions and a group, which the commands use."""
    cluster = MemoryCluster()
    cluster.create_topic("payments", partitions=6)
    cluster.create_topic("single", partitions=1)
    with sync.Client(cluster.bootstrap, transport=cluster.transport()) as client:
        client.admin.alter_group_offsets("workers", {("payments", 0): 3})
    monkeypatch.setattr(connection, "open_client", lambda bootstrap: cluster.client())
    return cluster


def run(*words: str) -> Any:
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("payments/9", "topic payments has no partition 9, only partitions 0 to 5"),
        ("payments-6", "topic payments has no partition 6, only partitions 0 to 5"),
        ("single/1", "topic single has no partition 1, only partition 0"),
    ],
)
def test_a_partition_that_does_not_exist_is_told_apart_from_a_topic(
    name: str, sentence: str
) -> None:
    result = run("why", name)
    assert (result.exit_code, result.stderr) == (2, f"odradek: {sentence}\n")


@pytest.mark.parametrize(("name", "near"), [("workrs", "workers"), ("paymets", "payments")])
def test_why_names_similar_topics_and_groups(name: str, near: str) -> None:
    result = run("why", name)
    assert result.exit_code == 2
    assert f"or broker {name}: did you mean '{near}'? If not, check the name" in result.stderr
    assert "did you mean" not in run("why", "zzz").stderr


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("describe", "workrs"), 1),
        (("delete", "workrs"), 1),
        (("delete", "workrs", "--dry-run"), 1),
        (("seek", "workrs", "--by", "1"), 1),
        (("seek", "copy", "--from-group", "workrs"), 1),
        (("offset-delete", "workrs", "--topic", "payments"), 0),
    ],
)
def test_commands_for_groups_name_similar_groups(words: tuple[str, ...], status: int) -> None:
    result = run("group", *words)
    assert result.exit_code == status
    assert "did you mean 'workers'? If not, " in f"{result.stderr}{result.exception}"


def test_a_group_that_exists_is_not_suggested_for_itself() -> None:
    result = run("group", "seek", "workers", "--to", "end", "--topic", "single", "-p", "0")
    assert result.exit_code == 0, result.output
    result = run("group", "offset-delete", "workers", "--topic", "none")
    assert "did you mean" not in result.output
