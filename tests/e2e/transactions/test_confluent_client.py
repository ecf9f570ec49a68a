"""Tests with unmodified librdkafka's transactional producer, through Python's confluent-kafka."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

TIMEOUT_S = 60.0  # so high that a slow machine does not exceed it


def create(bootstrap: str, topic: str, partitions: int = 3) -> None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([admin.NewTopic(topic, partitions)])[topic].result(TIMEOUT_S)


def transactional(bootstrap: str, transactional_id: str, **config: Any) -> ck.Producer:
    producer = ck.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 2,
            **config,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def read(bootstrap: str, topic: str, count: int, *, isolation: str) -> list[bytes]:
    """Return the values that a consumer without a group reads up to the end of the topic, at least `count` of them.

    It waits for `count` values because a commit returns when it is decided, as in Kafka: the markers that let readers
    of committed records pass are written after that.
    """
    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{topic}-{isolation}-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    consumer.assign([ck.TopicPartition(topic, index, 0) for index in partitions])
    values: list[bytes] = []
    ended: set[int] = set()
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while len(values) < count or len(ended) < len(partitions):
            assert time.monotonic() < deadline, f"{len(values)} of {count} values: {values[-20:]}"
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                values.append(message.value())
                ended.discard(message.partition())
            else:
                assert error.code() == ck.KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
    finally:
        consumer.close()
    return values


def committed(bootstrap: str, topic: str, count: int) -> set[bytes]:
    """Return the values that readers of committed records get: at least `count`, for which it waits."""
    return set(read(bootstrap, topic, count, isolation="read_committed"))


def test_a_commit_shows_all_records_and_an_abort_none(bootstrap: str, name: str) -> None:
    create(bootstrap, name)
    producer = transactional(bootstrap, name)
    expected: set[bytes] = set()
    for round_ in range(6):
        producer.begin_transaction()
        values = [b"%d-%d" % (round_, number) for number in range(20)]
        for number, value in enumerate(values):
            producer.produce(name, value, partition=number % 3)
        assert producer.flush(TIMEOUT_S) == 0
        if round_ % 3 == 1:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
            expected.update(values)
    assert committed(bootstrap, name, len(expected)) == expected
    everything = read(bootstrap, name, 120, isolation="read_uncommitted")
    assert len(everything) == 120


def test_records_of_an_open_transaction_are_not_read(bootstrap: str, name: str) -> None:
    create(bootstrap, name, partitions=1)
    producer = transactional(bootstrap, name)
    producer.begin_transaction()
    producer.produce(name, b"open")
    assert producer.flush(TIMEOUT_S) == 0
    assert read(bootstrap, name, 1, isolation="read_uncommitted") == [b"open"]
    assert committed(bootstrap, name, 0) == set()
    producer.commit_transaction(TIMEOUT_S)
    assert committed(bootstrap, name, 1) == {b"open"}


def test_a_producer_that_was_replaced_is_fenced(bootstrap: str, name: str) -> None:
    create(bootstrap, name, partitions=1)
    old = transactional(bootstrap, name)
    old.begin_transaction()
    old.produce(name, b"old")
    assert old.flush(TIMEOUT_S) == 0
    new = transactional(bootstrap, name)
    new.begin_transaction()
    new.produce(name, b"new")
    new.commit_transaction(TIMEOUT_S)
    with pytest.raises(ck.KafkaException) as fenced:
        old.commit_transaction(TIMEOUT_S)
    assert fenced.value.args[0].fatal()
    assert committed(bootstrap, name, 1) == {b"new"}


def test_a_transaction_that_is_given_up_ends_by_its_timeout(bootstrap: str, name: str) -> None:
    create(bootstrap, name, partitions=1)
    given_up = transactional(bootstrap, name, **{"transaction.timeout.ms": 2_000})
    given_up.begin_transaction()
    given_up.produce(name, b"given up")
    assert given_up.flush(TIMEOUT_S) == 0
    other = transactional(bootstrap, f"{name}-other")
    other.begin_transaction()
    other.produce(name, b"behind it")
    other.commit_transaction(TIMEOUT_S)
    assert committed(bootstrap, name, 1) == {b"behind it"}, "the last stable offset does not move"


def test_offsets_are_committed_with_the_records_or_not_at_all(bootstrap: str, name: str) -> None:
    source, target = f"{name}-in", f"{name}-out"
    create(bootstrap, source, partitions=1)
    create(bootstrap, target)
    filler = ck.Producer({"bootstrap.servers": bootstrap})
    for number in range(60):
        filler.produce(source, b"%d" % number)
    assert filler.flush(TIMEOUT_S) == 0
    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([source])
    producer = transactional(bootstrap, name)
    copied = 0
    is_first = True
    while copied < 60:
        messages = [m for m in consumer.consume(20, 5.0) if m.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, b"copy of " + message.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), TIMEOUT_S
        )
        if is_first:
            is_first = False
            producer.abort_transaction(TIMEOUT_S)
            consumer.seek(ck.TopicPartition(source, 0, 0))
            continue
        producer.commit_transaction(TIMEOUT_S)
        copied += len(messages)
    (position,) = consumer.committed([ck.TopicPartition(source, 0)], TIMEOUT_S)
    consumer.close()
    assert position.offset == 60
    found = read(bootstrap, target, 60, isolation="read_committed")
    assert sorted(found) == sorted(b"copy of %d" % number for number in range(60))
