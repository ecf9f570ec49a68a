"""`--wait` of commands that move partitions, while the metadata of the broker that responds lags behind."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from odradek.admin.admin import Admin
from odradek.admin.descriptions import TopicDescription
from odradek.cli import connection, moves
from odradek.cli.main import app
from odradek.testing import MemoryCluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Return a cluster of four brokers in memory, which the commands use."""
    cluster = MemoryCluster(brokers=4)
    cluster.create_topic("orders", partitions=2)
    monkeypatch.setattr(connection, "open_client", lambda bootstrap: cluster.client())
    monkeypatch.setattr(moves, "POLL_S", 0.01)
    return cluster


def lag(monkeypatch: pytest.MonkeyPatch, reads: int) -> None:
    """Make the first `reads` calls of `list_topics` return the result of the first call."""
    list_topics = Admin.list_topics
    read: list[list[TopicDescription]] = []

    async def stale(self: Admin, **options: Any) -> list[TopicDescription]:
        read.append(await list_topics(self, **options))
        return read[0] if len(read) <= reads else read[-1]

    monkeypatch.setattr(Admin, "list_topics", stale)


def test_a_broker_that_does_not_know_the_moves_yet_is_asked_again(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the command said that the moves were cancelled, and ended with status 1."""
    lag(monkeypatch, reads=9)
    result = CliRunner().invoke(app, ["partition", "move", "orders", "--to", "1,2", "--wait"])
    assert result.exit_code == 0, result.stderr
    assert "2 partitions moved" in result.stderr


def test_moves_that_were_replaced_are_named(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "LAG_S_MAX", 0.05)
    lag(monkeypatch, reads=10**9)
    result = CliRunner().invoke(app, ["partition", "move", "orders", "--to", "1,2", "--wait"])
    assert result.exit_code == 1
    assert "cancelled or replaced by other moves: orders-0, orders-1" in result.stderr
