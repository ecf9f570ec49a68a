"""Tests with the unmodified client aiokafka."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAuthorizationFailedError
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType

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

TIMEOUT_S = 60  # so high that a slow machine does not exceed it


@pytest.mark.scenario("aiokafka", "compression", "headers")
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_produce_and_consume(bootstrap: str, topic: str, compression: str) -> None:
    compress: Any = None if compression == "none" else compression
    headers = [("h", b"1"), ("null", None), ("h", b"2")]
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, compression_type=compress
    ) as producer:
        for number in range(300):
            await producer.send(topic, b"v%d" % number, key=b"k", headers=headers)
        await producer.flush()
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=f"g-{topic}", auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(TIMEOUT_S):
            found = [await consumer.getone() for _ in range(300)]
        assert [one.value for one in found] == [b"v%d" % number for number in range(300)]
        assert list(found[0].headers) == headers
        await consumer.commit()
        partition = TopicPartition(topic, 0)
        assert await consumer.committed(partition) == 300
        assert await consumer.end_offsets([partition]) == {partition: 300}


@pytest.mark.scenario("aiokafka", "nulls")
async def test_nulls(bootstrap: str, topic: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, None, key=b"tombstone")
        await producer.send_and_wait(topic, b"no key", key=None)
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(TIMEOUT_S):
            found = [await consumer.getone() for _ in range(2)]
    assert [(one.key, one.value) for one in found] == [(b"tombstone", None), (None, b"no key")]


@pytest.mark.scenario("aiokafka", "rebalance")
async def test_members_share_the_partitions_and_take_over(bootstrap: str, topic: str) -> None:
    make_topic(AdminClient({"bootstrap.servers": bootstrap}), topic, 4)
    members = [
        AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=f"g-{topic}",
            heartbeat_interval_ms=300,
            session_timeout_ms=6000,
            metadata_max_age_ms=1000,
        )
        for _ in range(2)
    ]
    await asyncio.gather(*(member.start() for member in members))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while sorted(len(m.assignment()) for m in members) != [2, 2]:
                await asyncio.gather(*(m.getmany(timeout_ms=100) for m in members))
            await members.pop().stop()
            while len(members[0].assignment()) != 4:
                await members[0].getmany(timeout_ms=100)
    finally:
        await asyncio.gather(*(member.stop() for member in members))


@pytest.mark.scenario("aiokafka", "static member")
async def test_a_static_member_comes_back(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, [b"1", b"2"], timestamps_ms=[1, 2])
    for expected in (b"1", b"2"):
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=f"g-{topic}",
            group_instance_id="one",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=1,
        ) as consumer:
            async with asyncio.timeout(TIMEOUT_S):
                found = await consumer.getone()
            assert found.value == expected
            await consumer.commit({TopicPartition(topic, 0): found.offset + 1})
    assert static_members(bootstrap, f"g-{topic}") == ["one"]


@pytest.mark.scenario("aiokafka", "seek by time")
async def test_seeking_by_time(bootstrap: str, topic: str) -> None:
    times = [1000 * (n + 1) for n in range(9)]
    produce(bootstrap, topic, [b"%d" % n for n in range(9)], timestamps_ms=times)
    partition = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([partition])
        found = await consumer.offsets_for_times({partition: 4500})
        consumer.seek(partition, found[partition].offset)
        async with asyncio.timeout(TIMEOUT_S):
            assert (await consumer.getone()).value == b"4"


@pytest.mark.scenario("aiokafka", "create", "alter", "describe", "delete")
async def test_administration(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 2, 1)])
        await admin.create_partitions({topic: NewPartitions(5)})
        [described] = await admin.describe_topics([topic])
        assert len(described["partitions"]) == 5
        change = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "5000"})
        await admin.alter_configs([change])
        asked = ConfigResource(ConfigResourceType.TOPIC, topic)
        [answer] = await admin.describe_configs([asked])
        configs = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        assert configs["retention.ms"] == "5000"
        await admin.delete_topics([topic])
        assert topic not in await admin.list_topics()
    finally:
        await admin.close()


@pytest.mark.scenario("aiokafka", "sasl", "sasl over tls", "acl denied")
@pytest.mark.parametrize("mechanism", list(MECHANISMS))
@pytest.mark.parametrize("listener", ["KAFKA_SASL", "KAFKA_TLS"])
async def test_login_and_rights(
    open_admin: AdminClient, guarded: Guarded, topic: str, mechanism: str, listener: str
) -> None:
    user = f"u-{uuid.uuid4().hex[:8]}"
    make_user(open_admin, user, mechanism)
    make_topic(open_admin, topic)
    tls: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT"}
    if listener == "KAFKA_TLS":
        from aiokafka.helpers import create_ssl_context

        context = create_ssl_context(cafile=str(guarded.ca))
        tls = {"security_protocol": "SASL_SSL", "ssl_context": context}
    config = {
        "bootstrap_servers": f"127.0.0.1:{guarded.ports[listener]}",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": PASSWORD,
        **tls,
    }
    allow(open_admin, user, ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    async with AIOKafkaProducer(**config) as producer:
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait(topic, b"denied")
    allow(open_admin, user, ResourceType.TOPIC, topic, AclOperation.WRITE)
    async with AIOKafkaProducer(**config) as producer:
        assert (await producer.send_and_wait(topic, b"allowed")).offset == 0
