"""Admin requests to partition leaders: DescribeProducers of a topic, and transactions that hang."""

from __future__ import annotations

import asyncio
import sys

import pytest

from odradek.admin.transaction_admin import HangingState
from odradek.client import Client
from odradek.embedded import EmbeddedCluster
from odradek.errors import TransactionFailed, UnknownTopic
from odradek.partitions import TopicPartition

PARTITIONS = 3
MARKERS_S_MAX = 30.0


async def until_markers_are_written(client: Client, transactional_id: str) -> None:
    """Wait until a decided transaction is complete: a commit returns when it is decided, as in Kafka, and the
    coordinator writes the markers to the partitions after that.
    """
    transactions = client.admin.transactions
    async with asyncio.timeout(MARKERS_S_MAX):
        while (await transactions.describe(transactional_id)).state.startswith("Prepare"):
            pass


async def test_an_open_transaction_is_shown_and_is_no_hanging_one(
    cluster: EmbeddedCluster, name: str
) -> None:
    async with Client(cluster.bootstrap) as client:
        transactions = client.admin.transactions
        with pytest.raises(UnknownTopic):
            await transactions.producers(name)
        await client.admin.create_topic(
            name, partitions=PARTITIONS, replication_factor=len(cluster.brokers)
        )
        async with client.producer(transactional_id=name) as producer:
            async with producer.transaction():
                for partition in range(PARTITIONS):
                    await producer.send_and_wait(name, b"a", partition=partition)
                known = await transactions.producers(name)
                assert [(p.partition.partition, p.transaction_start_offset) for p in known] == [
                    (partition, 0) for partition in range(PARTITIONS)
                ]
                # Coordinators that have just been created may still be loading, and give no proof then.
                findings = await transactions.find_hanging(topic=name, older_than_ms=-1)
                while any(old.state is HangingState.UNPROVEN for old in findings.transactions):
                    findings = await transactions.find_hanging(topic=name, older_than_ms=-1)
                assert {(old.partition.partition, old.state) for old in findings.transactions} == {
                    (partition, HangingState.LIVE) for partition in range(PARTITIONS)
                }
                assert not findings.incidents
                with pytest.raises(TransactionFailed):
                    await transactions.abort_hanging(TopicPartition(name, 1), known[1].producer_id)
            await until_markers_are_written(client, name)
            (known_of_one,) = await transactions.producers(name, [1])
            assert known_of_one.transaction_start_offset is None
        assert not (await transactions.find_hanging(topic=name)).transactions


async def test_a_command_that_stops_at_an_open_transaction_names_its_transactional_id(
    cluster: EmbeddedCluster, name: str
) -> None:
    async def consume() -> str:
        words = ("consume", name, "--from-beginning", "--exit-at-end", "--read-committed")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "odradek.cli.main", *words, "--bootstrap", cluster.bootstrap,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        shown, said = await process.communicate()
        assert shown == b"", shown
        return said.decode()

    async with Client(cluster.bootstrap) as client:
        await client.admin.create_topic(name, partitions=1, replication_factor=1)
        async with client.producer(transactional_id=name) as producer:
            async with producer.transaction() as transaction:
                await producer.send_and_wait(name, b"a")
                said = await consume()
                assert f"{name}-0: stopped at offset 0, where an open transaction begins" in said
                assert f"`odradek transaction describe {name}` shows it" in said
                await transaction.abort()
            await until_markers_are_written(client, name)
            assert await consume() == ""
