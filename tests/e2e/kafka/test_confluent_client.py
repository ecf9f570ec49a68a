"""Tests with unmodified librdkafka, through Python's confluent-kafka: produce, consume, groups,
administration.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

TIMEOUT_S = 60.0  # so high that a slow machine does not exceed it


@pytest.fixture
def client(bootstrap: str) -> admin.AdminClient:
    return admin.AdminClient({"bootstrap.servers": bootstrap})


def done(futures: dict[Any, Future[Any]]) -> list[Any]:
    return [one.result(TIMEOUT_S) for one in futures.values()]


def produce(bootstrap: str, topic: str, records: list[dict[str, Any]], **config: Any) -> None:
    failures: list[Any] = []
    producer = ck.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **config})
    for record in records:
        producer.produce(
            topic, **record, on_delivery=lambda error, _: failures.append(error) if error else None
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert not failures


def consume(bootstrap: str, topic: str, count: int, **config: Any) -> list[ck.Message]:
    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"g-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **config,
        }
    )
    try:
        consumer.subscribe([topic])
        found = poll(consumer, lambda messages: len(messages) >= count)
        consumer.commit(asynchronous=False)
        return found
    finally:
        consumer.close()


def poll(consumer: ck.Consumer, enough: Callable[[list[ck.Message]], bool]) -> list[ck.Message]:
    messages: list[ck.Message] = []
    deadline = time.monotonic() + TIMEOUT_S
    while not enough(messages) and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.5):
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


@pytest.mark.scenario("confluent-kafka", "compression", "headers", "nulls")
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["1", "all"])
def test_records_come_back_as_they_were_sent(
    bootstrap: str, topic: str, compression: str, acks: str
) -> None:
    headers = [("trace", b"abc"), ("empty", b""), ("null", None), ("trace", b"again")]
    sent = [
        {"key": f"k{n}".encode(), "value": f"v{n}".encode() * 20, "headers": headers}
        for n in range(200)
    ]
    sent += [{"key": b"tombstone", "value": None}, {"key": None, "value": b"no key"}]
    config = {"compression.type": compression, "acks": acks}
    produce(bootstrap, topic, sent, **config)
    found = consume(bootstrap, topic, len(sent))
    assert [m.offset() for m in found] == list(range(len(sent)))
    assert [(m.key(), m.value()) for m in found] == [(r["key"], r["value"]) for r in sent]
    assert found[0].headers() == headers
    assert found[-1].headers() is None


def test_an_idempotent_producer(bootstrap: str, topic: str) -> None:
    sent = [{"value": b"%d" % n} for n in range(5000)]
    produce(bootstrap, topic, sent, **{"enable.idempotence": True})
    assert [m.value() for m in consume(bootstrap, topic, 5000)] == [r["value"] for r in sent]


def test_a_group_goes_on_where_it_committed(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, [{"value": b"first"}])
    assert [m.value() for m in consume(bootstrap, topic, 1)] == [b"first"]
    produce(bootstrap, topic, [{"value": b"second"}])
    assert [m.value() for m in consume(bootstrap, topic, 1)] == [b"second"]


@pytest.mark.scenario("confluent-kafka", "rebalance", "consumer protocol")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_share_the_partitions_and_take_over(
    bootstrap: str, topic: str, client: admin.AdminClient, protocol: str
) -> None:
    done(client.create_topics([admin.NewTopic(topic, 4, 1)]))
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": f"g-{topic}",
        "auto.offset.reset": "earliest",
        "group.protocol": protocol,
    }
    if protocol == "classic":
        config |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    members = [ck.Consumer(config) for _ in range(2)]
    try:
        for member in members:
            member.subscribe([topic])
        until(lambda: [len(m.assignment()) for m in members] == [2, 2], members)
        members[0].close()
        until(lambda: len(members[1].assignment()) == 4, members[1:])
    finally:
        members[1].close()


def until(condition: Callable[[], bool], members: list[ck.Consumer]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, [len(m.assignment()) for m in members]
        for member in members:
            member.poll(0.1)


def test_a_consumer_group_is_described_with_the_assignor_that_its_members_ask_for(
    bootstrap: str, topic: str, client: admin.AdminClient
) -> None:
    done(client.create_topics([admin.NewTopic(topic, 1, 1)]))
    member = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"g-{topic}",
            "group.protocol": "consumer",
            "group.remote.assignor": "range",
        }
    )
    try:
        member.subscribe([topic])
        until(lambda: len(member.assignment()) == 1, [member])
        [group] = done(client.describe_consumer_groups([f"g-{topic}"]))
    finally:
        member.close()
    assert group.type is ck.ConsumerGroupType.CONSUMER
    assert group.partition_assignor == "range"


@pytest.mark.scenario("confluent-kafka", "static member")
def test_a_static_member_comes_back_without_a_rebalance(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, [{"value": b"x"}])
    assigned: list[int] = []
    for _ in range(2):
        consumer = ck.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"g-{topic}",
                "group.instance.id": "one",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([topic], on_assign=lambda _, parts: assigned.append(len(parts)))
        poll(consumer, lambda _, held=consumer: bool(held.assignment()))
        consumer.close()
    assert assigned == [1, 1]


@pytest.mark.scenario("confluent-kafka", "seek by time")
def test_seeking_by_time(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, [{"value": b"%d" % n, "timestamp": 1000 * (n + 1)} for n in range(9)])
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": f"g-{topic}"})
    try:
        [found] = consumer.offsets_for_times([ck.TopicPartition(topic, 0, 4500)], timeout=TIMEOUT_S)
        assert found.offset == 4
        assert consumer.get_watermark_offsets(ck.TopicPartition(topic, 0)) == (0, 9)
    finally:
        consumer.close()


@pytest.mark.scenario("confluent-kafka", "create", "alter", "describe", "delete")
def test_administration(bootstrap: str, topic: str, client: admin.AdminClient) -> None:
    done(client.create_topics([admin.NewTopic(topic, 2, 1, config={"retention.ms": "60000"})]))
    with pytest.raises(ck.KafkaException) as refused:
        done(client.create_topics([admin.NewTopic(topic, 2, 1)]))
    assert refused.value.args[0].code() == ck.KafkaError.TOPIC_ALREADY_EXISTS
    done(client.create_partitions([admin.NewPartitions(topic, 5)]))
    described = client.describe_topics(ck.TopicCollection([topic]))
    assert len(done(described)[0].partitions) == 5
    resource = admin.ConfigResource(
        "topic",
        topic,
        incremental_configs=[
            admin.ConfigEntry(
                "retention.ms", "5000", incremental_operation=admin.AlterConfigOpType.SET
            )
        ],
    )
    done(client.incremental_alter_configs([resource]))
    [configs] = done(client.describe_configs([admin.ConfigResource("topic", topic)]))
    assert configs["retention.ms"].value == "5000"
    assert configs["retention.ms"].source == admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    produce(bootstrap, topic, [{"value": b"x", "partition": 1}] * 10)
    [deleted] = done(client.delete_records([ck.TopicPartition(topic, 1, 4)]))
    assert deleted.low_watermark == 4
    offsets = client.list_offsets({ck.TopicPartition(topic, 1): admin.OffsetSpec.earliest()})
    assert done(offsets)[0].offset == 4
    consume(bootstrap, topic, 6)
    groups = client.describe_consumer_groups([f"g-{topic}"])
    assert done(groups)[0].state == ck.ConsumerGroupState.EMPTY
    assert f"g-{topic}" in {
        one.group_id for one in client.list_consumer_groups().result(TIMEOUT_S).valid
    }
    done(client.delete_consumer_groups([f"g-{topic}"]))
    done(client.delete_topics([topic]))
    assert topic not in client.list_topics(timeout=TIMEOUT_S).topics
