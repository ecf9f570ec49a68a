"""`odradek consume --read-committed --exit-at-end` names the open transactions at which it stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from odradek import sync
from odradek.cli import connection
from odradek.cli.main import app
from odradek.testing import MemoryCluster

ARGUMENTS = ("consume", "in", "--from-beginning", "--read-committed", "--exit-at-end")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.create_topic("in", partitions=2)
    monkeypatch.setattr(connection, "open_client", lambda bootstrap: cluster.client())
    return cluster


@contextmanager
def half_written(cluster: MemoryCluster) -> Iterator[None]:
    """Write a record of a committed transaction and three of an open one to partition 1."""
    with (
        sync.Client(cluster.bootstrap, transport=cluster.transport()) as client,
        client.producer(transactional_id="writer") as producer,
    ):
        with producer.transaction():
            producer.send_and_wait("in", b"committed", partition=1)
        with producer.transaction():
            for _ in range(3):
                producer.send_and_wait("in", b"open", partition=1)
            yield


def consumed(*more: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, [*ARGUMENTS, *more])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_the_open_transaction_is_named_and_its_records_are_counted(cluster: MemoryCluster) -> None:
    with half_written(cluster):
        printed, notes = consumed()
        assert printed == "committed\n"
        assert "a transaction is open in in-1 from offset 2 on, so 3 offsets" in notes
        assert "odradek transaction producers in 1" in notes
        assert "in-0" not in notes
    printed, notes = consumed()
    assert printed == "committed\n" + "open\n" * 3
    assert "transaction" not in notes
