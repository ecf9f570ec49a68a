"""aiokafka, kafka-python and kcat, unmodified, against the same cluster."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from kafka.admin import NewTopic as SyncNewTopic

TIMEOUT_S = 20
COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_aiokafka_produces_and_consumes(bootstrap: str, topic: str, compression: str) -> None:
    compress: Any = None if compression == "none" else compression
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, compression_type=compress
    ) as producer:
        for number in range(300):
            await producer.send(topic, b"v%d" % number, key=b"k", headers=[("h", b"1")])
        await producer.flush()
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=f"g-{topic}", auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(TIMEOUT_S):
            found = [await consumer.getone() for _ in range(300)]
        assert [one.value for one in found] == [b"v%d" % number for number in range(300)]
        assert found[0].headers == (("h", b"1"),)
        await consumer.commit()
        partition = TopicPartition(topic, 0)
        assert await consumer.committed(partition) == 300
        assert await consumer.end_offsets([partition]) == {partition: 300}


async def test_aiokafka_rebalances(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 4, 1)])
    await admin.close()
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
    finally:
        await asyncio.gather(*(member.stop() for member in members))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_kafka_python_produces_and_consumes(bootstrap: str, topic: str, compression: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        compression_type=None if compression == "none" else compression,
    )
    for number in range(300):
        producer.send(topic, b"v%d" % number, key=b"k", headers=[("h", b"1")])
    producer.flush(TIMEOUT_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=f"g-{topic}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_S * 1000,
    )
    found = [record for _, record in zip(range(300), consumer, strict=False)]
    consumer.commit()
    consumer.close()
    assert [one.value for one in found] == [b"v%d" % number for number in range(300)]


def test_kafka_python_administers(bootstrap: str, topic: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics([SyncNewTopic(topic, 2, 1)])
        assert topic in admin.list_topics()
        [described] = admin.describe_topics([topic])
        assert len(described["partitions"]) == 2
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()
    finally:
        admin.close()


def kcat(*arguments: str, stdin: str = "") -> str:
    found = shutil.which("kcat")
    assert found is not None, "kcat is not installed: apt-get install kcat"
    ran = subprocess.run(
        [found, *arguments],
        input=stdin,
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_kcat_produces_and_consumes(bootstrap: str, topic: str, compression: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(500))
    kcat("-b", bootstrap, "-P", "-t", topic, "-z", compression, "-H", "h=1", stdin=lines)
    assert kcat("-b", bootstrap, "-C", "-t", topic, "-o", "beginning", "-e") == lines
    last = kcat("-b", bootstrap, "-C", "-t", topic, "-o", "-1", "-e", "-f", "%o %h %s")
    assert last == "499 h=1 line 499"
    assert f'topic "{topic}" with 1 partitions' in kcat("-b", bootstrap, "-L", "-t", topic)


def test_kcat_in_a_group(bootstrap: str, topic: str) -> None:
    kcat("-b", bootstrap, "-P", "-t", topic, stdin="a\nb\nc\n")
    read = kcat(
        "-b", bootstrap, "-G", f"g-{topic}", topic, "-c", "3", "-X", "auto.offset.reset=earliest"
    )
    assert read == "a\nb\nc\n"
