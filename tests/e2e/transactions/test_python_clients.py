"""Transactions with kafka-python, aiokafka and the SDK, each of which has its own implementation."""

from __future__ import annotations

import time

import confluent_kafka as ck
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AiokafkaPartition
from kafka import KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition

from odradek.client import Client
from odradek.embedded import EmbeddedCluster
from odradek.errors import ProducerFenced
from tests.e2e.transactions.test_confluent_client import (
    TIMEOUT_S,
    committed,
    create,
    read,
    transactional,
)


def test_kafka_python_commits_and_aborts(bootstrap: str, name: str) -> None:
    create(bootstrap, name)
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    producer.init_transactions()
    for round_ in range(4):
        producer.begin_transaction()
        for number in range(10):
            producer.send(name, b"%d-%d" % (round_, number), partition=number % 3)
        producer.flush()
        if round_ % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    assert committed(bootstrap, name, 20) == {
        b"%d-%d" % (round_, number) for round_ in (0, 2) for number in range(10)
    }


def test_kafka_python_commits_offsets_in_a_transaction(bootstrap: str, name: str) -> None:
    create(bootstrap, name, partitions=1)
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(name, b"out")
    producer.send_offsets_to_transaction(
        {TopicPartition(name, 0): OffsetAndMetadata(7, "", -1)}, f"{name}-group"
    )
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        {TopicPartition(name, 0): OffsetAndMetadata(9, "", -1)}, f"{name}-group"
    )
    producer.abort_transaction()
    producer.close()
    assert committed(bootstrap, name, 1) == {b"out"}
    assert group_offset(bootstrap, name) == 7


async def test_aiokafka_commits_and_aborts(bootstrap: str, name: str) -> None:
    create(bootstrap, name)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    await producer.start()
    try:
        for round_ in range(3):
            await producer.begin_transaction()
            for number in range(10):
                value = b"%d-%d" % (round_, number)
                await producer.send_and_wait(name, value, partition=number % 3)
            if round_ == 1:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
    finally:
        await producer.stop()
    assert committed(bootstrap, name, 20) == {
        b"%d-%d" % (round_, number) for round_ in (0, 2) for number in range(10)
    }


async def test_aiokafka_commits_offsets_in_a_transaction_or_not_at_all(
    bootstrap: str, name: str
) -> None:
    create(bootstrap, name, partitions=1)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    await producer.start()
    try:
        for offset, is_committed in ((3, True), (7, False), (5, True), (9, False)):
            await producer.begin_transaction()
            await producer.send_and_wait(name, b"at %d" % offset)
            await producer.send_offsets_to_transaction(
                {AiokafkaPartition(name, 0): offset}, f"{name}-group"
            )
            if is_committed:
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()
    finally:
        await producer.stop()
    assert committed(bootstrap, name, 2) == {b"at 3", b"at 5"}
    assert group_offset(bootstrap, name) == 5


def group_offset(bootstrap: str, name: str) -> int:
    """Return the offset that the group of a test has committed in its topic."""
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": f"{name}-group"})
    (position,) = consumer.committed([ck.TopicPartition(name, 0)], TIMEOUT_S)
    consumer.close()
    return int(position.offset)


async def test_the_sdk_commits_aborts_and_is_fenced(
    cluster: EmbeddedCluster, bootstrap: str, name: str
) -> None:
    """The SDK uses a new epoch for each transaction, and partition leaders register the
    partitions.
    """
    create(bootstrap, name)
    async with (
        Client(cluster.bootstrap) as client,
        client.producer(transactional_id=name) as producer,
    ):
        for round_ in range(3):
            async with producer.transaction() as transaction:
                for number in range(10):
                    value = b"%d-%d" % (round_, number)
                    await producer.send(name, value, partition=number % 3)
                if round_ == 1:
                    await transaction.abort()
        open_one = producer.transaction()
        await open_one.__aenter__()
        await producer.send_and_wait(name, b"open", partition=0)
        other = transactional(bootstrap, name)
        other.begin_transaction()
        other.produce(name, b"of the successor")
        other.commit_transaction(TIMEOUT_S)
        with pytest.raises(ProducerFenced):
            await open_one.commit()
    expected = {b"%d-%d" % (round_, number) for round_ in (0, 2) for number in range(10)}
    assert committed(bootstrap, name, 21) == {*expected, b"of the successor"}


async def test_the_sdk_copies_exactly_once(
    cluster: EmbeddedCluster, bootstrap: str, name: str
) -> None:
    source, target = f"{name}-in", f"{name}-out"
    create(bootstrap, source, partitions=1)
    create(bootstrap, target)
    expected = [b"%d" % number for number in range(40)]
    async with Client(cluster.bootstrap) as client:
        async with client.producer() as filler:
            for value in expected:
                await filler.send(source, value)
        async with (
            client.consumer(source, group=name, auto_offset_reset="earliest") as consumer,
            client.producer(transactional_id=name) as producer,
        ):
            copied = 0
            deadline = time.monotonic() + TIMEOUT_S
            while copied < len(expected):
                assert time.monotonic() < deadline
                records = await consumer.getmany(timeout_ms=500, max_records=15)
                if not records:
                    continue
                async with producer.transaction() as transaction:
                    for record in records:
                        await producer.send(target, record.value)
                    last = records[-1]
                    await transaction.send_offsets(
                        {(last.topic, last.partition): last.offset + 1}, consumer
                    )
                copied += len(records)
    found = read(bootstrap, target, 40, isolation="read_committed")
    assert sorted(found) == sorted(expected)
