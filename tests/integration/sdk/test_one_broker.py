"""Producer, consumer and admin against one real broker."""

from __future__ import annotations

import asyncio
import os

import pytest

import odradek.sync
from odradek import Admin, Client, Consumer, Producer, TopicPartition, serializers
from odradek.errors import (
    BrokersUnavailable,
    InvalidConfig,
    InvalidTopic,
    OffsetOutOfRange,
    RecordTooLarge,
    TopicExists,
    UnknownTopic,
)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_records_go_there_and_back_in_order(
    client: Client, topic: str, compression: str
) -> None:
    await client.admin.create_topic(topic, partitions=3, replication_factor=1)
    async with client.producer(
        compression=compression, value_serializer=serializers.integer, batch_bytes_max=2_000
    ) as producer:
        for number in range(2_000):
            await producer.send(topic, number, key=b"key-%d" % (number % 10), headers=[("n", b"h")])
    seen: dict[bytes, list[int]] = {}
    async with client.consumer(
        topic, auto_offset_reset="earliest", value_deserializer=serializers.from_integer
    ) as consumer:
        for _ in range(2_000):
            record = await asyncio.wait_for(anext(consumer), 30)
            assert record.headers == (("n", b"h"),)
            seen.setdefault(record.key, []).append(record.value)
    assert seen == {b"key-%d" % n: list(range(n, 2_000, 10)) for n in range(10)}


async def test_arrow_tables_hold_what_was_sent(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=1, replication_factor=1)
    async with client.producer() as producer:
        await producer.send_many(topic, [b"%d" % n for n in range(10_000)])
    values: list[bytes] = []
    async with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        while len(values) < 10_000:
            table = await consumer.getarrow(30_000)
            assert table.num_rows, "nothing came"
            values += table["value"].to_pylist()
    assert values == [b"%d" % n for n in range(10_000)]


async def test_positions_by_offset_end_and_time(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=1, replication_factor=1)
    name = TopicPartition(topic, 0)
    async with client.producer() as producer:
        for number in range(100):
            await producer.send(topic, b"%d" % number, timestamp_ms=1_000_000 + number)
            if number % 10 == 9:
                await producer.flush(10)
    async with client.consumer(auto_offset_reset="error") as consumer:
        assert await consumer.end_offsets([name]) == {name: 100}
        assert await consumer.beginning_offsets([name]) == {name: 0}
        found = await consumer.offsets_for_times({name: 1_000_042})
        assert found[name] is not None
        assert found[name][:2] == (42, 1_000_042)
        consumer.assign([name])
        consumer.seek(name, 57)
        assert (await consumer.getmany(10_000))[0].offset == 57
        consumer.seek_to_timestamp(1_000_031)
        assert (await consumer.getmany(10_000))[0].offset == 31
        consumer.seek(name, 1_000)
        with pytest.raises(OffsetOutOfRange, match="offset 1000"):
            await consumer.getmany(10_000)
        consumer.seek_to_end()
        assert await consumer.position(name) == 100


async def test_deleted_records_are_gone_for_readers(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=1, replication_factor=1)
    async with client.producer() as producer:
        await producer.send_many(topic, [b"x"] * 50)
    (outcome,) = await client.admin.delete_records({(topic, 0): 20})
    assert (outcome.error, outcome.offset) == (None, 20)
    async with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        consumer.seek((topic, 0), 5)
        assert (await consumer.getmany(30_000, max_records=1))[0].offset == 20


async def test_a_consumer_waits_at_the_end_and_gets_what_comes(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=1, replication_factor=1)
    async with client.consumer(topic) as consumer, client.producer() as producer:
        await consumer.position((topic, 0))
        for number in range(20):
            waiting = asyncio.create_task(consumer.getmany(30_000))
            await producer.send_and_wait(topic, b"%d" % number)
            assert [record.value for record in await waiting] == [b"%d" % number]


async def test_configs_and_the_cluster_are_described(client: Client, topic: str) -> None:
    await client.admin.create_topic(
        topic, partitions=2, replication_factor=1, configs={"retention.ms": "12345"}
    )
    configs = await client.admin.describe_topic_configs(topic)
    assert configs["retention.ms"].value == "12345"
    await client.admin.alter_topic_configs(topic, set={"retention.ms": "54321"})
    async with asyncio.timeout(10):
        while True:  # until this broker has learned of it
            configs = await client.admin.describe_topic_configs(topic)
            if configs["retention.ms"].value == "54321":
                break
    described = await client.admin.describe_cluster()
    assert [broker.broker_id for broker in described.brokers] == [1]
    assert described.active_controller_id == 1
    assert topic in [t.name for t in await client.admin.list_topics()]
    await client.admin.delete_topic(topic)


async def test_refusals_are_the_leaf_for_the_remedy(client: Client, topic: str) -> None:
    await client.admin.create_topic(
        topic, partitions=1, replication_factor=1, configs={"max.message.bytes": "10000"}
    )
    with pytest.raises(TopicExists, match=topic):
        await client.admin.create_topic(topic, partitions=1, replication_factor=1)
    with pytest.raises(InvalidConfig):
        await client.admin.create_topic(f"{topic}-2", partitions=1, configs={"no.such": "1"})
    with pytest.raises(UnknownTopic):
        await client.admin.delete_topic(f"{topic}-nowhere")
    async with client.producer(batch_bytes_max=50_000) as producer:
        with pytest.raises(InvalidTopic, match="'bad name': a topic's name may have only ASCII"):
            await producer.send("bad name", b"")
        with pytest.raises(RecordTooLarge):
            await producer.send_and_wait(topic, os.urandom(20_000))
        assert (await producer.send_and_wait(topic, b"fits")).offset == 0


def test_the_synchronous_facade_does_the_same(bootstrap: str, topic: str) -> None:
    with odradek.sync.Client(bootstrap) as client:
        client.admin.create_topic(topic, partitions=1, replication_factor=1)
        with client.producer() as producer:
            producer.send_many(topic, [b"%d" % n for n in range(1_000)])
        with client.consumer(topic, auto_offset_reset="earliest") as consumer:
            assert [int(next(consumer).value) for _ in range(1_000)] == list(range(1_000))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:9090"])
async def test_nobody_at_the_address_is_said_with_the_address(address: str) -> None:
    async with Client(address) as client:
        with pytest.raises(BrokersUnavailable, match=address) as caught:
            await client.connect(1.0)
    assert caught.value.tried == [address]
    if "invalid" in address:
        assert "cannot be resolved" in str(caught.value)


async def test_producer_consumer_and_admin_stand_on_their_own(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=1, replication_factor=1)
    async with Producer(bootstrap) as producer:
        await producer.send_and_wait(topic, b"x" * 500_000)
    async with Consumer(topic, bootstrap=bootstrap, auto_offset_reset="earliest") as consumer:
        (record,) = await consumer.getmany(30_000)
    assert record.value == b"x" * 500_000


def test_it_runs_on_uvloop(bootstrap: str, topic: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def run() -> list[int]:
        async with Client(bootstrap) as client:
            await client.admin.create_topic(topic, partitions=1, replication_factor=1)
            async with client.producer() as producer:
                await producer.send_many(topic, [b"%d" % n for n in range(5_000)])
            seen: list[int] = []
            async with client.consumer(topic, auto_offset_reset="earliest") as consumer:
                while len(seen) < 5_000:
                    seen += [int(record.value) for record in await consumer.getmany(30_000)]
            return seen

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == list(range(5_000))


async def test_twelve_hundred_consumers_of_one_client_read_at_once(
    client: Client, topic: str
) -> None:
    """A gateway is such a client. Each consumer has a fetch stream, which the broker charges to one owner."""
    await client.admin.create_topic(topic, partitions=1, replication_factor=1)
    async with client.producer() as producer:
        await producer.send(topic, b"for each of them")

    async def read_one(consumer: Consumer) -> bytes:
        (record,) = await consumer.getmany(60_000)
        return record.value

    consumers = [client.consumer(topic, auto_offset_reset="earliest") for _ in range(1_200)]
    try:
        values = await asyncio.gather(*map(read_one, consumers))
    finally:
        await asyncio.gather(*(consumer.close() for consumer in consumers))
    assert values == [b"for each of them"] * 1_200
