"""Tests with the unmodified client kafka-python."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import kafka
import pytest
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import TopicAuthorizationFailedError

from tests.e2e.kafka.access import (
    MECHANISMS,
    PASSWORD,
    allow,
    make_topic,
    make_user,
    produce,
    static_members,
)
from tests.e2e.kafka.conftest import Guarded
from tests.e2e.kafka.group_shares import assert_shared_and_taken_over

TIMEOUT_S = 60  # so high that a slow machine does not exceed it


def consumer(bootstrap: str, topic: str, **config: Any) -> kafka.KafkaConsumer:
    return kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_S * 1000,
        **config,
    )


@pytest.mark.scenario("kafka-python", "compression", "headers")
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume(bootstrap: str, topic: str, compression: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        compression_type=None if compression == "none" else compression,
    )
    headers = [("h", b"1"), ("empty", b""), ("h", b"2")]
    for number in range(300):
        producer.send(topic, b"v%d" % number, key=b"k", headers=headers)
    producer.flush(TIMEOUT_S)
    producer.close()
    reader = consumer(bootstrap, topic, group_id=f"g-{topic}")
    found = [record for _, record in zip(range(300), reader, strict=False)]
    reader.commit()
    reader.close()
    assert [one.value for one in found] == [b"v%d" % number for number in range(300)]
    assert list(found[0].headers) == headers


@pytest.mark.scenario("kafka-python", "nulls")
def test_nulls(bootstrap: str, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    producer.send(topic, None, key=b"tombstone")
    producer.send(topic, b"no key")
    producer.flush(TIMEOUT_S)
    producer.close()
    reader = consumer(bootstrap, topic)
    found = [record for _, record in zip(range(2), reader, strict=False)]
    reader.close()
    assert [(one.key, one.value) for one in found] == [(b"tombstone", None), (None, b"no key")]


class Polled:
    """A consumer that is polled by a thread."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = consumer(
            bootstrap,
            topic,
            group_id=f"g-{topic}",
            heartbeat_interval_ms=300,
            session_timeout_ms=6000,
        )
        # The consumer must know the topic before it joins. kafka-python 3.0.12 forgets to join again
        # (need_rejoin) for a topic that the group's leader learned of late, if the response to the
        # join comes between two polls.
        assert self._consumer.partitions_for_topic(topic)
        self.owned = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            self._consumer.poll(timeout_ms=100)
            self.owned = len(self._consumer.assignment())
        self._consumer.close()

    def close(self) -> None:
        self._ends.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()


@pytest.mark.scenario("kafka-python", "rebalance")
def test_members_share_the_partitions_and_take_over(bootstrap: str, topic: str) -> None:
    assert_shared_and_taken_over(bootstrap, topic, Polled)


@pytest.mark.scenario("kafka-python", "static member")
def test_a_static_member_comes_back(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, [b"1", b"2"], timestamps_ms=[1, 2])
    for expected in (b"1", b"2"):
        reader = consumer(
            bootstrap,
            topic,
            group_id=f"g-{topic}",
            group_instance_id="one",
            enable_auto_commit=False,
            max_poll_records=1,
        )
        assert next(reader).value == expected
        reader.commit()
        reader.close()
    assert static_members(bootstrap, f"g-{topic}") == ["one"]


@pytest.mark.scenario("kafka-python", "seek by time")
def test_seeking_by_time(bootstrap: str, topic: str) -> None:
    times = [1000 * (n + 1) for n in range(9)]
    produce(bootstrap, topic, [b"%d" % n for n in range(9)], timestamps_ms=times)
    partition = kafka.TopicPartition(topic, 0)
    reader = kafka.KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=TIMEOUT_S * 1000)
    reader.assign([partition])
    reader.seek(partition, reader.offsets_for_times({partition: 4500})[partition].offset)
    assert next(reader).value == b"4"
    reader.close()


@pytest.fixture
def admin(bootstrap: str) -> Iterator[kafka.KafkaAdminClient]:
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


@pytest.mark.scenario("kafka-python", "create", "alter", "describe", "delete")
def test_administration(admin: kafka.KafkaAdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    assert topic in admin.list_topics()
    admin.create_partitions({topic: 5})
    [described] = admin.describe_topics([topic])
    assert len(described["partitions"]) == 5
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "5000"})
    admin.alter_configs([resource])
    described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    assert "5000" in str(described)
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()


@pytest.mark.scenario("kafka-python", "sasl", "sasl over tls", "acl denied")
@pytest.mark.parametrize("mechanism", list(MECHANISMS))
@pytest.mark.parametrize("listener", ["KAFKA_SASL", "KAFKA_TLS"])
def test_login_and_rights(
    open_admin: AdminClient, guarded: Guarded, topic: str, mechanism: str, listener: str
) -> None:
    user = f"u-{uuid.uuid4().hex[:8]}"
    make_user(open_admin, user, mechanism)
    make_topic(open_admin, topic)
    tls: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT"}
    if listener == "KAFKA_TLS":
        tls = {"security_protocol": "SASL_SSL", "ssl_cafile": str(guarded.ca)}
    config = {
        "bootstrap_servers": f"127.0.0.1:{guarded.ports[listener]}",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": PASSWORD,
        "enable_idempotence": False,  # an idempotent producer needs WRITE on some topic
        **tls,
    }
    allow(open_admin, user, ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    producer = kafka.KafkaProducer(**config)
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send(topic, b"denied").get(TIMEOUT_S)
    allow(open_admin, user, ResourceType.TOPIC, topic, AclOperation.WRITE)
    assert producer.send(topic, b"allowed").get(TIMEOUT_S).offset == 0
    producer.close()
