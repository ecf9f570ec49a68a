"""Apache Kafka's Java client, which uses one epoch for each transaction (KIP-890), and its tools for transactions.

The long tests with several brokers run while a broker is killed every 20 s.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable

import pytest

from odradek.embedded import EmbeddedCluster
from tests.e2e.kafka.test_java_tools import Tools, jars, tools
from tests.e2e.transactions.broker_kills import killing
from tests.e2e.transactions.test_confluent_client import (
    TIMEOUT_S,
    committed,
    create,
    read,
    transactional,
)

__all__ = ["jars", "tools"]  # fixtures
pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(600)]


RECORDS = 12_000
RECORDS_A_SECOND = 600
RECOVERED_S_MAX = 60.0


def described(tools: Tools, transactional_id: str) -> dict[str, str]:
    """Return the state of a transactional id, as kafka-transactions.sh shows it."""
    table = tools.run("TransactionsCommand", "describe", "--transactional-id", transactional_id)
    names, values = ([cell.strip() for cell in row.split("\t")] for row in table.splitlines())
    return dict(zip(names, values, strict=True))


def eventually(what: str, is_so: Callable[[], bool]) -> None:
    """Wait until a tool shows what is expected."""
    deadline_s = time.monotonic() + RECOVERED_S_MAX
    while not is_so():
        assert time.monotonic() < deadline_s, f"{what}: not within {RECOVERED_S_MAX} s"


@pytest.mark.timeout(900)
def test_the_java_producer_commits_many_transactions(
    cluster: EmbeddedCluster, tools: Tools, bootstrap: str, name: str
) -> None:
    """One process after the other writes the numbers from 0 on; each number is committed once by each process."""
    create(bootstrap, name)
    runs = 0
    with killing(cluster) as brokers:
        while runs == 0 or brokers.is_short:
            runs += 1
            options = {
                "--topic": name,
                "--num-records": f"{RECORDS}",
                "--throughput": f"{RECORDS_A_SECOND}",
                "--transaction-duration-ms": "50",
                "--transactional-id": name,
                "--bootstrap-server": bootstrap,
            }
            words = [word for option in options.items() for word in option]
            output = tools.run("ProducerPerformance", "--payload-monotonic", *words, remote=False)
            assert f"{RECORDS} records sent" in output
            assert "Exception" not in output
    print(f"{runs} processes, {brokers.count} brokers killed")
    numbers = read(bootstrap, name, runs * RECORDS, isolation="read_committed")
    assert Counter(numbers) == {b"%d" % number: runs for number in range(RECORDS)}
    # The coordinator responds to a commit before it has written that the transaction is complete.
    eventually("complete", lambda: described(tools, name)["TransactionState"] == "CompleteCommit")
    # Each transaction has its own epoch, so the last epoch shows how many transactions there were.
    assert int(described(tools, name)["ProducerEpoch"]) > 10 * runs


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
    assert "invalid state" in refused, (
        "the tool refuses, because the coordinator will end the transaction"
    )
    tools.run("TransactionsCommand", "forceTerminateTransaction", "--transactionalId", name)
    assert committed(bootstrap, name, 0) == set()


def leave_open_and_end(tools: Tools, topic: str, transactional_id: str) -> None:
    """Leave a transaction open, find it with kafka-transactions.sh, and end it."""
    producer = transactional(
        tools.bootstrap, transactional_id, **{"transaction.timeout.ms": 900_000}
    )
    producer.begin_transaction()
    producer.produce(topic, transactional_id.encode())
    assert producer.flush(TIMEOUT_S) == 0
    where = ["--topic", topic, "--partition", "0"]

    def says(pattern: str, *words: str) -> bool:
        """Return whether the tool says this; it fails if it asks a broker that is just being killed."""
        output = tools.run("TransactionsCommand", *words, complains=True)
        return re.search(pattern, output, re.MULTILINE) is not None

    def is_aborted() -> bool:
        # The tool initializes a producer, which aborts the open transaction.
        says("", "forceTerminateTransaction", "--transactionalId", transactional_id)
        return says(r"\tEmpty\s*\t", "describe", "--transactional-id", transactional_id)

    eventually("list", lambda: says(rf"^{transactional_id}\s+\d+\s+\d+\s+Ongoing", "list"))
    eventually("describe-producers", lambda: says(r"\t\d+\s*$", "describe-producers", *where))
    # The tool prints only the heading, because the coordinator knows the transaction and will end it.
    eventually("find-hanging", lambda: says(r"\ATopic\s[^\n]*\n?\Z", "find-hanging", *where))
    eventually("forceTerminateTransaction", is_aborted)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cluster", [3], indirect=True, ids=["three brokers"])
def test_the_tools_work_while_brokers_are_killed(
    cluster: EmbeddedCluster, tools: Tools, bootstrap: str, name: str
) -> None:
    create(bootstrap, name, partitions=1)
    expected = set[bytes]()
    rounds = 0
    with killing(cluster) as brokers:
        while brokers.is_short:
            rounds += 1
            committing = transactional(bootstrap, f"{name}-committed-{rounds}")
            committing.begin_transaction()
            committing.produce(name, b"%d" % rounds)
            committing.commit_transaction(RECOVERED_S_MAX)
            expected.add(b"%d" % rounds)
            leave_open_and_end(tools, name, f"{name}-open-{rounds}")
    print(f"{rounds} rounds, {brokers.count} brokers killed")
    assert committed(bootstrap, name, rounds) == expected
