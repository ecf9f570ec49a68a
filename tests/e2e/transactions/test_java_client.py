"""Apache Kafka's Java client, which uses one epoch for each transaction (KIP-890), and its tools for transactions."""

from __future__ import annotations

import re

import pytest

from tests.e2e.kafka.test_java_tools import Tools, jars, tools
from tests.e2e.transactions.test_confluent_client import committed, create, transactional

__all__ = ["jars", "tools"]  # fixtures
pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(600)]


def test_the_java_producer_commits_many_transactions(
    tools: Tools, bootstrap: str, name: str
) -> None:
    create(bootstrap, name)
    told = tools.run(
        "ProducerPerformance",
        "--topic",
        name,
        "--num-records",
        "3000",
        "--record-size",
        "10",
        "--throughput",
        "1500",
        "--transaction-duration-ms",
        "50",
        "--transactional-id",
        name,
        "--producer-props",
        f"bootstrap.servers={bootstrap}",
        remote=False,
    )
    assert "3000 records sent" in told
    read = tools.consume(name, 3000, "--isolation-level", "read_committed")
    assert len(read.splitlines()) == 3000
    described = tools.run("TransactionsCommand", "describe", "--transactional-id", name)
    names, values = ([cell.strip() for cell in row.split("\t")] for row in described.splitlines())
    state = dict(zip(names, values, strict=True))
    assert state["TransactionState"] == "CompleteCommit"
    # Each transaction has an epoch of its own: that of the last one says how many there were.
    assert int(state["ProducerEpoch"]) > 10


def test_the_tools_show_and_abort_an_open_transaction(
    tools: Tools, bootstrap: str, name: str
) -> None:
    create(bootstrap, name, partitions=1)
    producer = transactional(bootstrap, name)
    producer.begin_transaction()
    producer.produce(name, b"open")
    assert producer.flush(30) == 0
    listed = tools.run("TransactionsCommand", "list")
    assert re.search(rf"^{name}\s+\d+\s+\d+\s+Ongoing", listed, re.MULTILINE), listed
    described = tools.run("TransactionsCommand", "describe", "--transactional-id", name)
    assert f"{name}-0" in described
    producers = tools.run(
        "TransactionsCommand", "describe-producers", "--topic", name, "--partition", "0"
    )
    assert len(producers.splitlines()) == 2
    where = ["--topic", name, "--partition", "0", "--start-offset", "0"]
    refused = tools.run("TransactionsCommand", "abort", *where, complains=True)
    assert "invalid state" in refused, "its coordinator will end it"
    tools.run("TransactionsCommand", "forceTerminateTransaction", "--transactionalId", name)
    assert committed(bootstrap, name, 0) == set()
