"""The consumer against a cluster in memory: all methods that read, and reading on from a
position.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from odradek import Client, TopicPartition, serializers
from odradek.errors import (
    ClientClosed,
    InvalidConfig,
    NotAssigned,
    OffsetOutOfRange,
    SerializationFailed,
)
from odradek.testing import MemoryCluster
from tests.unit.sdk.numbered_records import fill, numbers, read, until

T0 = TopicPartition("t", 0)


async def test_records_come_as_they_were_sent(cluster: MemoryCluster, client: Client) -> None:
    cluster.create_topic("t", 2)
    async with client.producer() as producer:
        await producer.send_and_wait(
            "t", b"v", key=b"k", headers=[("h", b"1")], partition=1, timestamp_ms=7
        )
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        (record,) = await consumer.getmany(5_000)
    assert (record.topic, record.partition, record.offset) == ("t", 1, 0)
    assert (record.key, record.value, record.timestamp_ms) == (b"k", b"v", 7)
    assert record.headers == (("h", b"1"),)


async def test_iterating_gives_every_record_once_and_in_order(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    await fill(client, 95)
    seen = []
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        async for record in consumer:
            seen.append(record.offset)
            assert await consumer.position(T0) == record.offset + 1
            if len(seen) == 95:
                break
    assert seen == list(range(95))


async def test_getmany_gives_at_most_so_many_and_goes_on_where_it_stopped(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    await fill(client, 40)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        sizes, seen = [], []
        while len(seen) < 40:
            records = await consumer.getmany(5_000, max_records=7)
            sizes.append(len(records))
            seen += numbers(records)
            assert await consumer.position(T0) == len(seen)
    assert max(sizes) <= 7
    assert seen == list(range(40))


async def test_without_records_getmany_returns_nothing_in_time(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        began_s = time.monotonic()
        assert await consumer.getmany(100) == []
        assert 0.09 < time.monotonic() - began_s < 15


async def test_a_timeout_is_honoured_with_all_brokers_dead(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    await fill(client, 1)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        assert len(await consumer.getmany(5_000)) == 1
        for broker in (1, 2, 3):
            cluster.kill(broker)
        began_s = time.monotonic()
        assert await consumer.getmany(200) == []
        assert time.monotonic() - began_s < 15


async def test_getarrow_gives_one_table_and_all_rows(
    cluster: MemoryCluster, client: Client
) -> None:
    pytest.importorskip("pyarrow")
    cluster.create_topic("t", 2)
    await fill(client, 60, partition=0)
    await fill(client, 40, partition=1, first=60)
    seen: dict[int, list[int]] = {0: [], 1: []}
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        assert (await consumer.getarrow(0)).num_rows == 0
        while sum(map(len, seen.values())) < 100:
            table = await consumer.getarrow(5_000)
            assert table.column_names == [
                "topic", "partition", "offset", "timestamp", "key", "value", "headers",
            ]  # fmt: skip
            for row in table.to_pylist():
                assert row["topic"] == "t"
                assert row["offset"] == len(seen[row["partition"]])
                seen[row["partition"]].append(int(row["value"]))
    assert seen == {0: list(range(60)), 1: list(range(60, 100))}


async def test_the_ways_of_reading_can_be_mixed(cluster: MemoryCluster, client: Client) -> None:
    pytest.importorskip("pyarrow")
    cluster.create_topic("t")
    await fill(client, 100)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        seen = numbers([await anext(consumer) for _ in range(3)])
        seen += numbers(await consumer.getmany(5_000, max_records=4))
        while len(seen) < 100:
            table = await consumer.getarrow(5_000, bytes_max=1)
            seen += [int(value.as_py()) for value in table["value"]]
    assert seen == list(range(100))


# --- positions ----------------------------------------------------------------------------------------


async def test_seeking_to_an_offset_the_ends_and_a_time(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    await fill(client, 50)
    async with client.consumer() as consumer:
        consumer.assign([("t", 0)])
        for seek, first in (
            (lambda: consumer.seek(T0, 33), 33),
            (lambda: consumer.seek_to_beginning(), 0),
            (lambda: consumer.seek_to_timestamp(1_021, T0), 21),
            (lambda: consumer.seek(("t", 0), 49), 49),
        ):
            seek()
            assert await consumer.position(T0) == first
            assert numbers(await consumer.getmany(5_000, max_records=1)) == [first]
        for seek in (
            lambda: consumer.seek_to_end(),
            lambda: consumer.seek_to_timestamp(9_999_999_999_999),
        ):
            seek()
            assert await consumer.position(T0) == 50
        await fill(client, 1, first=50)
        assert numbers(await consumer.getmany(5_000)) == [50]


async def test_a_seek_forgets_what_was_fetched_for_the_old_place(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    await fill(client, 100)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        for start in (90, 10, 55, 0, 99):
            assert (await anext(consumer)) is not None
            consumer.seek(T0, start)
            assert (await anext(consumer)).offset == start


async def test_offsets_by_end_and_time(cluster: MemoryCluster, client: Client) -> None:
    cluster.create_topic("t", 2)
    await fill(client, 30)
    cluster.log("t").delete_before(10)
    both = [("t", 0), ("t", 1)]
    async with client.consumer() as consumer:
        assert await consumer.beginning_offsets(both) == {("t", 0): 10, ("t", 1): 0}
        assert await consumer.end_offsets(both) == {("t", 0): 30, ("t", 1): 0}
        found = await consumer.offsets_for_times({("t", 0): 1_015, ("t", 1): 1_015})
    assert found[T0] is not None
    assert found[T0][:2] == (15, 1_015)
    assert found[TopicPartition("t", 1)] is None


@pytest.mark.parametrize(("policy", "first"), [("earliest", 20), ("latest", 50)])
async def test_an_offset_out_of_range_is_reset_by_policy(
    cluster: MemoryCluster, client: Client, policy: str, first: int
) -> None:
    cluster.create_topic("t")
    await fill(client, 50)
    cluster.log("t").delete_before(20)
    async with client.consumer(auto_offset_reset=policy) as consumer:  # type: ignore[arg-type]
        consumer.assign([T0])
        consumer.seek(T0, 5)
        if policy == "latest":
            assert await consumer.getmany(200) == []
            await fill(client, 1, first=50)
        assert (await consumer.getmany(5_000, max_records=1))[0].offset == first


async def test_with_the_policy_error_it_raises_until_the_user_seeks(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    await fill(client, 50)
    cluster.log("t").delete_before(20)
    async with client.consumer(auto_offset_reset="error") as consumer:
        consumer.assign([T0])
        with pytest.raises(OffsetOutOfRange, match="t-0 has no position"):
            await consumer.getmany(5_000)
        consumer.seek(T0, 5)
        with pytest.raises(
            OffsetOutOfRange, match="offset 5 is not in the log, which begins at 20"
        ):
            await consumer.getmany(5_000)
        consumer.seek(T0, 20)
        assert (await consumer.getmany(5_000))[0].offset == 20


async def test_pausing_keeps_the_position_and_lets_the_others_flow(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t", 2)
    await fill(client, 50, partition=0)
    await fill(client, 50, partition=1, first=100)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        first = [await anext(consumer) for _ in range(3)]
        name = TopicPartition("t", first[0].partition)
        consumer.pause(name)
        assert consumer.paused() == [name]
        others = await read(consumer, 50)
        assert {record.partition for record in others} == {1 - name.partition}
        assert await consumer.getmany(100) == []
        consumer.resume(name)
        rest = await read(consumer, 47)
        assert [record.offset for record in rest] == list(range(3, 50))


async def test_memory_is_bounded_by_credit_and_every_record_still_comes(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t", 3)
    async with client.producer(batch_bytes_max=50_000) as producer:
        for number in range(6_000):
            await producer.send("t", b"x" * 2_000, partition=number % 3)
    async with client.consumer(
        "t",
        auto_offset_reset="earliest",
        prefetch_bytes_max=1 << 20,
        fetch_message_bytes_max=100_000,
    ) as consumer:
        peak_bytes = 0
        seen = 0
        while seen < 6_000:
            seen += len(await consumer.getmany(5_000, max_records=50))
            for _ in range(20):
                await asyncio.sleep(0)
            peak_bytes = max(peak_bytes, consumer._planner.buffered_bytes)
    assert seen == 6_000
    assert peak_bytes <= 3 * ((1 << 20) + 100_000)


# --- the rest -----------------------------------------------------------------------------------------


async def test_deserializers_make_objects_and_what_they_cannot_read_is_passed_over(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    async with client.producer() as producer:
        for value in (b"1", b"2", b"not json", b"4", None):
            await producer.send("t", value, key=b"\0" * 8)
    async with client.consumer(
        "t",
        auto_offset_reset="earliest",
        key_deserializer=serializers.from_integer,
        value_deserializer=serializers.from_json,
    ) as consumer:
        records = await read(consumer, 2)
        assert [(r.key, r.value) for r in records] == [(0, 1), (0, 2)]
        with pytest.raises(SerializationFailed, match="offset 2 of t-0"):
            await consumer.getmany(5_000)
        assert [r.value for r in await read(consumer, 2)] == [4, None]


async def test_what_is_not_assigned_cannot_be_sought(client: Client) -> None:
    async with client.consumer() as consumer:
        for act in (consumer.pause, consumer.resume, consumer.seek_to_end):
            with pytest.raises(NotAssigned, match="t-0"):
                act(T0)
        with pytest.raises(NotAssigned):
            consumer.seek(T0, 0)
        with pytest.raises(ValueError, match="negative"):
            consumer.seek(T0, -1)


async def test_a_new_assignment_drops_what_left_and_keeps_what_stays(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t", 3)
    for partition in range(3):
        await fill(client, 10, partition=partition)
    async with client.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        await read(consumer, 20)
        consumer.assign([("t", 1), ("t", 2)])
        records = await read(consumer, 10)
        assert {record.partition for record in records} == {2}
        assert await consumer.position(("t", 1)) == 10


async def test_closing_wakes_one_who_waits(cluster: MemoryCluster, client: Client) -> None:
    cluster.create_topic("t")
    consumer = client.consumer("t")
    waiting = asyncio.create_task(consumer.getmany())
    await until(lambda: "Fetch" in cluster.requests)
    await consumer.close()
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(waiting, 30)


async def test_closing_wakes_one_who_waits_for_the_metadata_of_the_topic(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    cluster.frozen.update((1, 2, 3))
    consumer = client.consumer("t")
    waiting = asyncio.create_task(consumer.getmany())
    await until(lambda: "Metadata" in cluster.requests)
    await consumer.close()
    for broker in (1, 2, 3):
        cluster.thaw(broker)
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(waiting, 30)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("auto_offset_reset", "smallest"),
        ("isolation_level", "serializable"),
        ("prefetch_bytes_max", 1),
        ("fetch_message_bytes_max", 1),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(
    cluster: MemoryCluster, name: str, value: object
) -> None:
    from odradek import ConsumerOptions

    with pytest.raises(InvalidConfig, match=rf"{name} is .*; allowed: "):
        ConsumerOptions(**{name: value})  # type: ignore[arg-type]


async def test_closing_the_client_first_wakes_the_reader(cluster: MemoryCluster) -> None:
    cluster.create_topic("t")
    client = cluster.client()
    consumer = client.consumer("t")
    waiting = asyncio.create_task(consumer.getmany())
    await until(lambda: "Fetch" in cluster.requests)
    await client.close()
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(waiting, 30)
    await consumer.close()


async def test_a_read_may_wait_for_more_than_the_first_bytes() -> None:
    """Until then no record is returned, so none is committed either."""
    cluster = MemoryCluster()
    cluster.create_topic("t", partitions=1)
    async with (
        asyncio.timeout(20),
        cluster.client() as client,
        client.consumer("t", auto_offset_reset="earliest") as consumer,
    ):
        await fill(client, 1)
        reading = asyncio.create_task(consumer.getmany(None, min_bytes=200))
        while not consumer._planner.buffered_bytes:
            await consumer._fetcher.arrival()
        assert not reading.done()
        assert await consumer.position(("t", 0)) == 0
        await fill(client, 20, first=1)
        assert numbers(await reading)[:2] == [0, 1]
        left = 21 - (await consumer.position(("t", 0)))
        if left:
            await read(consumer, left)
        await fill(client, 1, first=21)
        while not consumer._planner.buffered_bytes:
            await consumer._fetcher.arrival()
        assert numbers(await consumer.getmany(100, min_bytes=1 << 30)) == [21], "time was up"


async def test_a_read_waits_for_no_more_than_can_be_fetched_ahead() -> None:
    cluster = MemoryCluster()
    cluster.create_topic("t", partitions=1)
    async with (
        asyncio.timeout(20),
        cluster.client() as client,
        client.consumer("t", auto_offset_reset="earliest", prefetch_bytes_max=1 << 20) as consumer,
        client.producer() as producer,
    ):
        for _ in range(20):
            await producer.send_and_wait("t", bytes(100_000), partition=0)
        assert await consumer.getmany(None, min_bytes=1 << 30)


async def test_a_number_of_more_than_64_bits_is_refused_and_does_no_harm(
    cluster: MemoryCluster, client: Client
) -> None:
    """No request can hold it, so the fetches of all partitions of its broker would fail again and again."""
    cluster.create_topic("t")
    await fill(client, 3)
    async with client.consumer("t", auto_offset_reset="earliest", group="g") as consumer:
        assert len(await consumer.getmany(5_000)) == 3
        with pytest.raises(ValueError, match="more than 64 bits"):
            consumer.seek(T0, 2**63)
        with pytest.raises(ValueError, match="more than 64 bits"):
            consumer.seek_to_timestamp(2**63, T0)
        with pytest.raises(ValueError, match="more than 64 bits"):
            await consumer.commit({T0: 2**63})
        consumer.seek(T0, 1)
        assert len(await consumer.getmany(5_000)) == 2


async def test_a_negative_partition_is_refused_at_once(
    cluster: MemoryCluster, client: Client
) -> None:
    """No metadata will ever show its leader, so every call would wait for its whole time limit, or for ever."""
    cluster.create_topic("t")
    async with client.consumer() as consumer:
        with pytest.raises(ValueError, match="partition -1 of topic 't' is negative"):
            await consumer.end_offsets([("t", -1)])
        with pytest.raises(ValueError, match="partition -1 of topic 't' is negative"):
            consumer.assign([("t", -1)])
