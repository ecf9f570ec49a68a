"""Administration of transactions by the SDK and by commands, and transactions of the synchronous
SDK.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from odradek import Client, GroupIdentity, TopicPartition, sync
from odradek.cli import connection
from odradek.cli.main import app
from odradek.errors import (
    NotInTransaction,
    OdradekError,
    TransactionAborted,
    TransactionFailed,
    TransactionInProgress,
    UnknownTopic,
)
from odradek.testing import MemoryCluster
from odradek_protocol.kafka.error_codes import ErrorCode


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.create_topic("out")
    return cluster


@pytest.fixture
def client(cluster: MemoryCluster) -> Iterator[sync.Client]:
    with sync.Client(cluster.bootstrap, transport=cluster.transport()) as client:
        yield client


@pytest.fixture
def opened(client: sync.Client) -> Iterator[sync.Producer]:
    """Yield a producer with an open transaction; another transactional id has none."""
    with client.producer(transactional_id="idle") as idle:
        idle.init()
    with client.producer(transactional_id="orders-1") as producer:
        producer.transaction().__enter__()
        producer.send("out", b"a").result(5)
        yield producer


def test_transactions_are_listed_described_and_aborted(
    client: sync.Client, opened: sync.Producer
) -> None:
    admin = client.admin.transactions
    assert [(listed.transactional_id, listed.state) for listed in admin.list()] == [
        ("idle", "Empty"),
        ("orders-1", "Ongoing"),
    ]
    assert [listed.transactional_id for listed in admin.list(states=["Ongoing"])] == ["orders-1"]
    described = admin.describe("orders-1")
    assert described.partitions == (TopicPartition("out", 0),)
    assert (described.state, described.producer_epoch, described.timeout_ms) == (
        "Ongoing",
        0,
        60_000,
    )
    admin.abort("orders-1")
    assert admin.describe("orders-1").state == "CompleteAbort"
    with pytest.raises(TransactionFailed, match="no open transaction"):
        admin.abort("orders-1")
    with pytest.raises(OdradekError):
        admin.describe("unknown")


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["transaction", *words])


def test_the_commands_do_the_same(
    cluster: MemoryCluster, opened: sync.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_client(bootstrap: str) -> Client:
        return cluster.client()

    monkeypatch.setattr(connection, "open_client", open_client)
    listed = json.loads(run("list", "--state", "Ongoing", "-o", "json").stdout)
    assert [row["transactional_id"] for row in listed] == ["orders-1"]
    described = json.loads(run("describe", "orders-1", "-o", "json").stdout)
    assert described["partitions"] == [{"topic": "out", "partition": 0}]
    assert "Ongoing" in run("describe", "orders-1").stdout
    assert run("abort", "orders-1").exit_code == 0
    again = run("abort", "orders-1")
    assert isinstance(again.exception, TransactionFailed)
    assert "no open transaction" in str(again.exception)
    wrong = run("list", "--older-than", "soon")
    assert wrong.exit_code == 2
    assert "10m" in run("list", "--help").output


async def stage(cluster: MemoryCluster, step: int, *, is_completed: bool) -> None:
    async with cluster.client() as client, client.staged_writes("sales") as writes:
        tasks = []
        for name in ("a", "b"):
            task = await writes.open(step, name)
            assert task is not None
            await task.send("out", b"x")
            tasks.append(await task.prepare())
        if is_completed:
            await writes.complete(step, tasks)


def test_committed_and_open_tasks_of_a_staged_write_are_counted_apart(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "open_client", lambda bootstrap: cluster.client())

    def facts() -> dict[str, str]:
        lines = run("steps", "sales").stdout.partition("\n\n")[0].splitlines()
        return dict(line.split() for line in lines)

    asyncio.run(stage(cluster, 0, is_completed=False))
    assert {**facts(), "completed_ms": ""} == {
        "query": "sales",
        "last_step": "-",
        "committed_tasks": "-",
        "completed_ms": "",
        "open_tasks": "2",
    }
    asyncio.run(stage(cluster, 1, is_completed=True))
    after = facts()
    assert (after["last_step"], after["committed_tasks"], after["open_tasks"]) == ("1", "2", "0")
    listed = json.loads(run("steps", "sales", "-o", "json").stdout)
    assert (listed["committed_tasks"], listed["open_tasks"]) == (2, [])


def test_ids_of_staged_writes_are_explained_and_can_be_typed_as_they_are_printed(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "open_client", lambda bootstrap: cluster.client())
    asyncio.run(stage(cluster, 0, is_completed=False))
    listed = run("list")
    assert r"sales\x1f0" in listed.stdout
    assert listed.stderr == (
        r"odradek: ids with \x1f belong to the tasks of staged writes (Spark queries):"
        " `odradek transaction steps sales`, for example, shows the steps of such a write\n"
    )
    assert "odradek:" not in run("list", "-o", "json").output
    assert r"sales\x1f0" in run("describe", r"sales\x1f0").stdout
    assert run("abort", r"sales\x1f0", "--force").exit_code == 0


def values(client: sync.Client, count: int) -> list[bytes]:
    with client.consumer(
        "out", isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        return [next(consumer).value for _ in range(count)]


def test_a_thread_sends_in_transactions(client: sync.Client, cluster: MemoryCluster) -> None:
    with client.producer(transactional_id="t") as producer:
        with pytest.raises(NotInTransaction):
            producer.send("out", b"x")
        with pytest.raises(KeyError), producer.transaction():
            raise _send(producer, b"aborted")
        with producer.transaction() as transaction:
            producer.send("out", b"a")
            transaction.send_offsets({("out", 0): 1}, GroupIdentity("g"))
            with pytest.raises(TransactionInProgress):
                producer.transaction().__enter__()
        with producer.transaction() as transaction:
            producer.send("out", b"dropped")
            transaction.abort()
        with producer.transaction() as transaction:
            producer.send("out", b"b")
            transaction.commit()
    assert values(client, 2) == [b"a", b"b"]
    assert client.admin.group_offsets("g") == {TopicPartition("out", 0): 1}


def _send(producer: sync.Producer, value: bytes) -> KeyError:
    producer.send("out", value)
    return KeyError()


def test_a_record_that_cannot_be_sent_aborts_the_transaction(client: sync.Client) -> None:
    with client.producer(transactional_id="t") as producer:
        with (  # noqa: PT012
            pytest.raises(TransactionAborted, match="could not be sent"),
            producer.transaction(),
        ):
            producer.send("out", b"a")
            producer.send("out", "text is no bytes")
        with producer.transaction():
            producer.send("out", b"b")
    assert values(client, 1) == [b"b"]


def test_run_transaction_repeats_from_a_thread(client: sync.Client, cluster: MemoryCluster) -> None:
    cluster.fail_next("produce", "out", 0, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_RECORD)
    with client.producer(transactional_id="t") as producer:
        runs: list[int] = []

        def work(transaction: sync.Transaction) -> int:
            runs.append(1)
            producer.send("out", b"%d" % len(runs))
            return len(runs)

        assert producer.run_transaction(work) == 3
    assert values(client, 1) == [b"3"]


def consumed(*words: str) -> Any:
    return CliRunner().invoke(app, ["consume", "out", *words, "--exit-at-end"])


def test_the_end_of_consume_at_an_open_transaction_is_explained(
    cluster: MemoryCluster, client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "open_client", lambda bootstrap: cluster.client())
    with client.producer() as producer, client.producer(transactional_id="t") as transactional:
        producer.send_and_wait("out", b"before")
        assert consumed("--from-beginning", "--read-committed").stderr == ""
        with transactional.transaction():
            transactional.send("out", b"undecided").result(5)
            producer.send_and_wait("out", b"behind")
            assert consumed("--from-beginning").stderr == ""
            result = consumed("--from-beginning", "--read-committed")
            assert result.stdout == "before\n"
            assert result.stderr == (
                "odradek: out-0: stopped at offset 1, where an open transaction begins; up to 2 records from this"
                " offset on, including those of other producers, can be read after the transaction ends:"
                " `odradek transaction producers out 0` shows it\n"
            )
            in_group = consumed("--from-beginning", "--read-committed", "-g", "g")
            assert in_group.stderr == result.stderr
            counted = consumed("--from-beginning", "--read-committed", "-n", "1")
            assert counted.stderr == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("find-hanging", "--topic", "typo"), "typo"),
        (("find-hanging", "--topic", "typo", "--abort"), "typo"),
        (("producers", "typo"), "typo"),
        (("producers", "out", "99"), "topic out has no partition 99"),
    ],
)
def test_producers_of_what_does_not_exist_are_not_reported_as_none(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr(connection, "open_client", lambda bootstrap: cluster.client())
    result = run(*words)
    assert result.exit_code != 0
    assert message in f"{result.stderr}{result.exception}"
    assert isinstance(result.exception, UnknownTopic | SystemExit)
