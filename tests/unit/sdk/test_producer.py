"""The producer against a cluster in memory: known problems of other SDKs, and limits."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from odradek import Client, serializers
from odradek.errors import (
    BrokersUnavailable,
    BufferFull,
    ClientClosed,
    DeliveryTimedOut,
    FlushTimedOut,
    RecordTooLarge,
    SerializationFailed,
    UnknownTopic,
)
from odradek.testing import MemoryCluster
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_reader import decode_batch
from tests.unit.sdk.numbered_records import until


def values(cluster: MemoryCluster, topic: str, partition: int = 0) -> list[bytes | None]:
    log = cluster.log(topic, partition)
    return [record.value for batch in log.batches for record in decode_batch(batch.data)]


async def test_a_record_arrives_as_it_was_sent(cluster: MemoryCluster, client: Client) -> None:
    cluster.create_topic("t", 2)
    async with client.producer() as producer:
        metadata = await producer.send_and_wait(
            "t", b"v", key=b"k", headers=[("h", b"1"), ("n", None)], partition=1, timestamp_ms=5
        )
    assert metadata == ("t", 1, 0, -1)
    (record,) = decode_batch(cluster.log("t", 1).batches[0].data)
    assert (record.key, record.value, record.timestamp_ms) == (b"k", b"v", 5)
    assert record.headers == (("h", b"1"), ("n", None))


async def test_a_null_value_and_the_clocks_time_are_what_is_sent_by_default(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    before_ms = time.time_ns() // 1_000_000
    async with client.producer() as producer:
        await producer.send_and_wait("t")
    (record,) = decode_batch(cluster.log("t").batches[0].data)
    assert record.value is None
    assert before_ms - 5 <= record.timestamp_ms <= time.time_ns() // 1_000_000 + 5


async def test_batches_shrink_to_what_a_topic_takes(cluster: MemoryCluster, client: Client) -> None:
    await client.admin.create_topic("t", partitions=1, configs={"max.message.bytes": "2000"})
    async with client.producer() as producer:
        futures = [await producer.send("t", b"%04d" % i + b"x" * 96) for i in range(2_000)]
        with pytest.raises(RecordTooLarge):
            await producer.send_and_wait("t", b"x" * 3_000)
        offsets = [(await future).offset for future in futures]
    assert offsets == list(range(2_000))
    assert [int(value[:4]) for value in values(cluster, "t") if value] == list(range(2_000))
    assert max(len(batch.data) for batch in cluster.log("t").batches) <= 2_000


async def test_records_of_a_key_stay_in_order_and_in_one_partition(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t", 3)
    async with client.producer(batch_bytes_max=200) as producer:
        for number in range(300):
            await producer.send("t", b"%d" % number, key=b"key-%d" % (number % 7))
    seen: dict[bytes | None, list[int]] = {}
    for partition in range(3):
        for batch in cluster.log("t", partition).batches:
            for record in decode_batch(batch.data):
                seen.setdefault(record.key, []).append(int(record.value or b""))
    assert len(seen) == 7
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert sum(len(numbers) for numbers in seen.values()) == 300


async def test_records_without_a_key_are_spread_evenly(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t", 4)
    async with client.producer(batch_bytes_max=1_000) as producer:
        for _ in range(8_000):
            await producer.send("t", b"x" * 20)
    counts = [len(values(cluster, "t", partition)) for partition in range(4)]
    assert sum(counts) == 8_000
    assert min(counts) > 1_500


async def test_futures_are_awaitable_in_all_the_usual_ways(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    called: list[int] = []
    async with client.producer() as producer:
        futures = [await producer.send("t", b"%d" % n) for n in range(3)]
        futures[0].add_done_callback(lambda future: called.append(future.result().offset))
        assert not futures[0].done()
        with pytest.raises(asyncio.InvalidStateError):
            futures[0].result()
        gathered = await asyncio.gather(*futures)
        assert [m.offset for m in gathered] == [0, 1, 2]
        assert (await asyncio.wait_for(futures[1], 30)).offset == 1
        futures[2].add_done_callback(lambda future: called.append(future.result().offset))
        await asyncio.sleep(0)
    assert called == [0, 2]


async def test_cancelling_one_who_waits_for_a_record_does_not_disturb_the_others(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    cluster.freeze(1)
    async with client.producer() as producer:
        cluster.thaw(1)
        future = await producer.send("t", b"x")
        impatient = asyncio.ensure_future(future)
        patient = asyncio.ensure_future(future)
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient).offset == 0
        assert impatient.cancelled()


# --- bounds -------------------------------------------------------------------------------------------


async def test_send_waits_for_buffer_space_and_goes_on_when_there_is_some(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    cluster.fail_next("produce", "t", 0, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 3)
    async with client.producer(buffer_bytes_max=5_000, batch_bytes_max=1_000) as producer:
        for _ in range(200):
            await producer.send("t", b"x" * 100)
            assert producer.buffered_bytes <= 5_000 + 1_000
    assert len(values(cluster, "t")) == 200


async def test_a_buffer_that_stays_full_is_an_error_that_tells_why(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    cluster.fail_next("produce", "t", 0, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 1_000)
    producer = client.producer(buffer_bytes_max=1_000, max_block_ms=200)
    await producer.send("t", b"x")
    accumulator = producer._accumulator
    await until(lambda: any(batch.last_error for batch in accumulator.pending_batches()))
    with pytest.raises(BufferFull, match=r"min\.insync\.replicas"):
        await producer.send_many("t", [b"x" * 100] * 100)
    await producer.close(0)


async def test_who_waits_for_a_batch_is_woken_though_another_one_was_opened_meanwhile(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    async with client.producer(linger_ms=1_000) as producer:
        await producer.send_and_wait("t", b"first")
        cluster.frozen.add(1)
        await producer.send("t", b"waited for")
        flushing = asyncio.create_task(producer.flush(60))
        sender, accumulator = producer._sender, producer._accumulator
        await until(lambda: any(batch.attempt for batch in accumulator.pending_batches()))
        (sent,) = accumulator.pending_batches()
        await producer.send("t", b"opened")
        accumulator.responded(
            sent, 1, ErrorCode.NONE, "", base_offset=1, log_append_time_ms=-1, now_ms=0, draw=0
        )
        sender._signal_progress()
        await asyncio.wait_for(flushing, 30)
        cluster.thaw(1)


async def test_close_and_flush_are_bounded_with_all_brokers_dead(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    producer = client.producer()
    await producer.send_and_wait("t", b"before")
    for broker in (1, 2, 3):
        cluster.kill(broker)
    future = await producer.send("t", b"after")
    began_s = time.monotonic()
    with pytest.raises(FlushTimedOut, match="1 records in 1 batches"):
        await producer.flush(0.2)
    await producer.close(0.2)
    assert time.monotonic() - began_s < 30
    with pytest.raises(ClientClosed, match="still unacknowledged"):
        await future
    with pytest.raises(ClientClosed):
        await producer.send("t", b"too late")


async def test_a_record_times_out_with_the_reason_of_its_last_failure(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    async with client.producer(delivery_timeout_ms=1_000) as producer:
        await producer.send_and_wait("t", b"before")
        for broker in (1, 2, 3):
            cluster.kill(broker, elect=False)
        with pytest.raises(DeliveryTimedOut, match="refused") as caught:
            await producer.send_and_wait("t", b"after")
    assert not caught.value.retriable


async def test_a_topic_that_does_not_exist_is_given_up_soon_and_named(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.cluster.cluster.UNKNOWN_TOPIC_S_MAX", 0.2)
    async with client.producer() as producer:
        with pytest.raises(UnknownTopic, match=r"'nowhere' does not exist; create it"):
            await producer.send("nowhere", b"x")


async def test_a_topic_that_does_not_exist_is_named_however_short_the_wait(client: Client) -> None:
    """The wait may end before the next attempt.

    The error must be that of the brokers' response, not that they were unreachable.
    """
    async with client.producer(max_block_ms=1) as producer:
        with pytest.raises(UnknownTopic, match=r"'nowhere' does not exist"):
            await producer.send("nowhere", b"x")


async def test_a_misspelt_topic_is_refused_although_the_brokers_create_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("odradek.cluster.cluster.UNKNOWN_TOPIC_S_MAX", 0.01)
    cluster = MemoryCluster(auto_create_topics=True)
    cluster.create_topic("orders")
    async with cluster.client() as client, client.producer() as producer:
        with pytest.raises(UnknownTopic) as refused:
            await producer.send("ordres", b"x")
    assert str(refused.value) == (
        "topic 'ordres' does not exist; did you mean 'orders'? If not, create it (`odradek topic create ordres`)"
    )
    assert list(cluster.topics) == ["orders"]


async def test_a_topic_that_is_created_automatically_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = MemoryCluster(auto_create_topics=True)
    cluster.create_topic("orders")
    async with cluster.client() as client:
        for _ in range(2):
            async with client.producer(allow_auto_create_topics=True) as producer:
                await producer.send_and_wait("orders", b"x")
                await producer.send_and_wait("ordres", b"x")
    assert [(record.levelname, record.message) for record in caplog.records] == [
        (
            "WARNING",
            "topic 'ordres' did not exist and was created with 1 partition; similar topics: 'orders'",
        )
    ]


async def test_brokers_that_create_no_topics_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odradek.cluster.cluster.UNKNOWN_TOPIC_S_MAX", 0.01)
    cluster = MemoryCluster()
    async with (
        cluster.client() as client,
        client.producer(allow_auto_create_topics=True) as producer,
    ):
        with pytest.raises(
            UnknownTopic, match=r"auto\.create\.topics\.enable of the cluster is false"
        ):
            await producer.send("ordres", b"x")


async def test_a_partition_that_does_not_exist_is_named_with_how_many_there_are(
    cluster: MemoryCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.cluster.cluster.UNKNOWN_TOPIC_S_MAX", 0.2)
    cluster.create_topic("t", 2)
    async with client.producer() as producer:
        with pytest.raises(UnknownTopic, match="'t' has 2 partitions, but no partition 2"):
            await producer.send("t", b"x", partition=2)
        monkeypatch.setattr("odradek.cluster.cluster.UNKNOWN_TOPIC_S_MAX", 30)
        cluster.add_partitions("t", 1)
        assert (await producer.send_and_wait("t", b"x", partition=2)).partition == 2


async def test_no_broker_is_an_error_that_names_those_tried() -> None:
    cluster = MemoryCluster(brokers=2)
    for broker in (1, 2):
        cluster.kill(broker)
    async with cluster.client() as client:
        with pytest.raises(BrokersUnavailable, match="refused") as caught:
            await client.connect(1.5)
        assert sorted(caught.value.tried) == ["memory-1:9090", "memory-2:9090"]
        assert caught.value.last_error is not None
        with pytest.raises(BrokersUnavailable, match=r"memory-1:9090.*refused"):
            await client.producer(max_block_ms=1_500).send("t", b"x")


async def test_an_advertised_name_that_does_not_resolve_is_named_with_its_broker() -> None:
    cluster = MemoryCluster(brokers=2)
    cluster.create_topic("t", 2)
    cluster.endpoints[2] = "broker-2.invalid:9090"
    async with Client("memory-1:9090", transport=cluster.transport()) as client:
        async with client.producer(delivery_timeout_ms=1_500) as producer:
            with pytest.raises(DeliveryTimedOut) as caught:
                await producer.send_and_wait("t", b"x", partition=1)
        assert "broker 2 advertises the name 'broker-2.invalid:9090'" in str(caught.value)
        assert "advertised.listeners" in str(caught.value)


# --- what is wrong with a record ----------------------------------------------------------------------


async def test_a_record_that_is_too_large_is_refused_at_once_and_others_go_on(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t", configs={"max.message.bytes": "5000"})
    async with client.producer(request_bytes_max=10_000, batch_bytes_max=10_000) as producer:
        with pytest.raises(RecordTooLarge, match="request_bytes_max is 10000"):
            await producer.send("t", b"x" * 20_000)
        with pytest.raises(RecordTooLarge, match="bytes is 5000"):
            await producer.send_and_wait("t", b"x" * 8_000)
        assert (await producer.send_and_wait("t", b"fits")).offset == 0


@pytest.mark.parametrize(("key", "value"), [("text", b""), (b"", "text"), (b"", 5)])
async def test_what_is_not_bytes_is_refused_with_the_way_out(
    cluster: MemoryCluster, client: Client, key: object, value: object
) -> None:
    cluster.create_topic("t")
    async with client.producer() as producer:
        with pytest.raises(SerializationFailed, match="serializer"):
            await producer.send("t", value, key=key)
        assert producer.buffered_bytes == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"headers": {"name": b"value"}}, "headers as pairs"),
        ({"headers": [("name", "text")]}, "a header's value is"),
        ({"timestamp_ms": -5}, "-5 ms is before 1970"),
        ({"timestamp_ms": 1.5}, "timestamps as integers in ms"),
        ({"partition": -1}, "partition -1 is negative; omit the argument"),
    ],
)
async def test_what_a_record_cannot_have_is_refused_at_once(
    cluster: MemoryCluster, client: Client, options: dict[str, Any], said: str
) -> None:
    cluster.create_topic("t")
    async with client.producer() as producer:
        with pytest.raises(SerializationFailed, match=said):
            await producer.send("t", b"", **options)
        assert producer.buffered_bytes == 0


async def test_serializers_make_the_bytes_and_their_failures_are_named(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    async with client.producer(
        key_serializer=serializers.integer, value_serializer=serializers.json
    ) as producer:
        await producer.send_and_wait("t", {"a": [1, None]}, key=1)
        with pytest.raises(SerializationFailed, match="the value of a record for 't'"):
            await producer.send("t", object(), key=1)
    assert values(cluster, "t") == [b'{"a":[1,null]}']
