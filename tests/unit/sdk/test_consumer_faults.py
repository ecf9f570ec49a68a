"""The consumer against a cluster in memory while leaders move, brokers die and records are
damaged.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from odradek import Client, TopicPartition
from odradek.cluster.methods import FETCH
from odradek.cluster.transport import Method
from odradek.consumer import fetcher
from odradek.consumer.fetcher import monotonic_ms
from odradek.errors import (
    AuthorizationFailed,
    CorruptRecords,
    LogTruncated,
    OdradekError,
    ThrottlingQuotaExceeded,
    UnknownTopic,
)
from odradek.testing import MemoryCluster
from odradek.testing.memory_cluster import MemoryTransport
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.columns import ColumnBuilder
from tests.unit.sdk.numbered_records import fill, numbers, read, until

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize("missing", [TopicPartition("gone", 0), TopicPartition("t", 7)])
async def test_a_missing_partition_does_not_stop_the_others(
    missing: TopicPartition,
    cluster: MemoryCluster,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("odradek.cluster.cluster.UNKNOWN_TOPIC_S_MAX", 0.2)
    cluster.create_topic("t", 1)
    await fill(client, 20)
    async with client.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([missing, T0])
        seen: list[int] = []
        refusals = 0

        async def read_on() -> None:
            nonlocal refusals, seen
            try:
                seen += numbers(await consumer.getmany(30_000))
            except UnknownTopic:  # raised again after each further look-up
                refusals += 1

        while len(seen) < 20 or not refusals:
            await read_on()
        await fill(client, 5, first=20)
        while len(seen) < 25:
            await read_on()
        assert seen == list(range(25))


async def test_it_follows_leaders_through_a_rolling_restart_without_a_gap(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t", 3)
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        sent = 0
        for broker in (1, 2, 3, 1, 2, 3):
            async with client.producer() as producer:
                for _ in range(30):
                    await producer.send("t", b"%d" % sent, partition=sent % 3)
                    sent += 1
            cluster.kill(broker)
            for record in await read(consumer, 30):
                seen[record.partition].append(record.offset)
            cluster.start(broker)
    assert seen == {p: list(range(60)) for p in range(3)}


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_leader_that_moves_is_followed(
    cluster: MemoryCluster, client: Client, is_told: bool
) -> None:
    cluster.create_topic("t")
    await fill(client, 5)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        assert numbers(await read(consumer, 5)) == list(range(5))
        cluster.move_leader("t", 0, 3, tell=is_told)
        cluster.wake()
        await fill(client, 5, first=5)
        assert numbers(await read(consumer, 5)) == list(range(5, 10))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
async def test_errors_that_may_pass_are_not_the_users(
    cluster: MemoryCluster, client: Client, code: ErrorCode
) -> None:
    cluster.create_topic("t")
    await fill(client, 5)
    cluster.fail_next("fetch", "t", 0, code, code, code)
    cluster.fail_next("offsets", "t", 0, ErrorCode.OFFSET_NOT_AVAILABLE)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        assert numbers(await read(consumer, 5)) == list(range(5))


async def test_errors_that_will_not_pass_are_raised(cluster: MemoryCluster, client: Client) -> None:
    cluster.create_topic("t")
    cluster.fail_next("fetch", "t", 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        with pytest.raises(AuthorizationFailed, match="t-0"):
            await consumer.getmany(5_000)


async def test_an_unclean_election_that_took_read_records_back_is_noticed(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    await fill(client, 30)
    async with client.consumer(auto_offset_reset="error") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        await read(consumer, 30)
        cluster.lose_records("t", 0, 20)
        async with client.producer() as other:
            for number in range(200, 215):
                await other.send("t", b"%d" % number)
        with pytest.raises(LogTruncated, match="truncated to offset 20") as caught:
            await read(consumer, 5)
        assert caught.value.truncated_to == 20
        assert numbers(await read(consumer, 15)) == list(range(200, 215))


async def test_a_seek_during_a_lookup_does_not_keep_later_resets_from_happening(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    await fill(client, 20)
    async with client.consumer(auto_offset_reset="earliest") as consumer:
        await consumer.end_offsets([T0])
        cluster.requests.clear()
        cluster.frozen.add(1)
        consumer.assign([T0])
        await until(lambda: "ListOffsets" in cluster.requests)
        consumer.seek(T0, 10)
        cluster.thaw(1)
        assert numbers(await read(consumer, 10)) == list(range(10, 20))
        consumer.seek(T0, 1_000)
        assert numbers(await read(consumer, 20)) == list(range(20))


async def test_a_damaged_batch_is_reported_and_read_again(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    await fill(client, 20)
    log = cluster.log("t")
    good = log.batches[1].data
    log.batches[1].data = good[:-1] + bytes([good[-1] ^ 1])
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        assert numbers(await read(consumer, 10)) == list(range(10))
        with pytest.raises(CorruptRecords, match="t-0: a batch at or after offset 10"):
            await consumer.getmany(5_000)
        log.batches[1].data = good
        async with asyncio.timeout(10):
            seen: list[int] = []
            while len(seen) < 10:
                try:
                    seen += numbers(await consumer.getmany(1_000))
                except CorruptRecords:
                    continue  # what was fetched before it was repaired
    assert seen == list(range(10, 20))


async def test_what_lies_before_a_damaged_batch_is_handed_out_once_as_a_table(
    cluster: MemoryCluster, client: Client
) -> None:
    pytest.importorskip("pyarrow")
    cluster.create_topic("t")
    await fill(client, 20)
    log = cluster.log("t")
    good = log.batches[1].data
    log.batches[1].data = good[:-1] + bytes([good[-1] ^ 1])
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        table = await consumer.getarrow(5_000)
        assert table["offset"].to_pylist() == list(range(10))
        with pytest.raises(CorruptRecords, match="offset 10"):
            await consumer.getarrow(5_000)
        assert await consumer.position(T0) == 10


async def test_an_unclean_election_takes_back_what_was_fetched_and_not_yet_read(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    await fill(client, 30)
    async with client.consumer(auto_offset_reset="error") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        assert numbers(await consumer.getmany(5_000, max_records=10)) == list(range(10))
        await until(lambda: consumer._planner.partitions[T0].fetch_offset == 30)
        cluster.lose_records("t", 0, 20)
        await fill(client, 20, first=200)
        await until(lambda: consumer._planner.partitions[T0].validated_epoch == 1)
        assert numbers(await read(consumer, 30)) == [*range(10, 20), *range(200, 220)]


async def test_a_topic_that_does_not_exist_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.cluster.cluster.UNKNOWN_TOPIC_S_MAX", 0.1)
    with pytest.raises(UnknownTopic, match="'nowhere'"):
        async with client.consumer("nowhere"):
            pass
    async with client.consumer() as consumer:
        consumer.assign([("nowhere", 0)])
        with pytest.raises(UnknownTopic, match="'nowhere'"):
            await consumer.getmany(5_000)


async def test_partitions_that_are_added_are_read_from_their_beginning(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    async with client.consumer("t", auto_offset_reset="latest") as consumer:
        await consumer.position(T0)
        cluster.add_partitions("t", 1)
        async with client.producer() as producer:
            await producer.send_and_wait("t", b"1", partition=1)
        assert numbers(await read(consumer, 1)) == [1]
        assert consumer.assignment() == [("t", 0), ("t", 1)]


async def test_a_topic_that_is_deleted_and_made_anew_at_once_is_read_on(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    await fill(client, 5)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        await read(consumer, 5)
        cluster.delete_topic("t")
        cluster.create_topic("t")  # watchers are told of both at once
        async with cluster.client() as other:
            await fill(other, 3)
        assert numbers(await read(consumer, 3)) == list(range(3))


async def test_a_leader_that_went_and_comes_back_under_the_same_epoch_is_read_on(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    await fill(client, 5)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        await read(consumer, 5)
        cluster.kill(1, elect=False)
        cluster.changed()
        assert await consumer.getmany(200) == []
        reading = asyncio.create_task(consumer.getmany(5_000))
        await asyncio.sleep(0)
        cluster.alive.add(1)
        cluster.changed()
        async with cluster.client() as other:
            await fill(other, 1)
        assert numbers(await reading) == [0]


async def test_connections_that_break_again_and_again_bring_no_more_than_may_be_read_ahead(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    async with client.producer(batch_bytes_max=64_000) as producer:
        for number in range(800):
            await producer.send("t", b"%08d" % number + bytes(9_992))
    async with client.consumer(
        auto_offset_reset="earliest", prefetch_bytes_max=1 << 20, fetch_message_bytes_max=1 << 16
    ) as consumer:
        consumer.assign([T0])
        planner = consumer._planner
        await until(lambda: planner.buffered_bytes >= 1 << 20)
        for _ in range(4):
            cluster.requests.clear()
            cluster.disconnect(1)
            await until(lambda: "Fetch" in cluster.requests)
            for _ in range(100):
                await asyncio.sleep(0)
        assert planner.buffered_bytes < (1 << 20) + (1 << 17)
        records = await read(consumer, 800)
    assert [record.offset for record in records] == list(range(800))


async def test_a_partition_without_a_leader_does_not_keep_the_others_from_being_read(
    cluster: MemoryCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic("t", 2)
    await fill(client, 10, partition=0)
    await fill(client, 10, partition=1, first=10)
    cluster.kill(2, elect=False)
    cluster.changed()
    async with client.consumer(
        "t", auto_offset_reset="earliest", request_timeout_ms=200
    ) as consumer:
        assert numbers(await read(consumer, 10)) == list(range(10))
        assert await consumer.getmany(500) == []
        assert "t-1 has no leader" in caplog.text
        cluster.start(2)
        assert numbers(await read(consumer, 10)) == list(range(10, 20))


async def test_that_nothing_can_be_read_is_an_error(cluster: MemoryCluster, client: Client) -> None:
    cluster.create_topic("t")
    await client.connect()
    cluster.kill(1, elect=False)
    async with client.consumer(
        "t", auto_offset_reset="earliest", request_timeout_ms=200
    ) as consumer:
        with pytest.raises(OdradekError, match=r"t-0 has no leader|is unreachable"):
            await consumer.getmany(5_000)


async def test_an_error_that_repeats_while_nobody_reads_is_told_once(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    refusals = [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 5
    cluster.fail_next("offsets", "t", 0, *refusals)
    await fill(client, 3)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        await until(lambda: cluster.requests.count("ListOffsets") > len(refusals))
        with pytest.raises(AuthorizationFailed):
            await consumer.getmany(5_000)
        assert len(await consumer.getmany(5_000)) == 3


async def test_a_partition_that_waits_to_be_read_out_is_asked_for_again_while_others_have_more(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t", 2)
    await fill(client, 10, partition=0)
    await fill(client, 1_000, partition=1, first=1_000)
    async with client.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        planner = consumer._planner
        await until(lambda: planner.chunks)
        cluster.fail_next("fetch", "t", 0, ErrorCode.OFFSET_OUT_OF_RANGE)
        cluster.wake()
        await until(lambda: planner.partitions[T0].must_drain)
        consumer.assign([T0, ("t", 1)])
        await until(lambda: planner.buffered_bytes > 5_000)
        await until(lambda: planner.wake_ms(monotonic_ms()) is None)
        await fill(client, 10, partition=0, first=10)
        assert numbers(await consumer.getmany(5_000, max_records=10)) == list(range(10))
        assert (await consumer.getmany(5_000, max_records=10))[0].partition == 1
        await until(lambda: planner.partitions[T0].buffered)
        assert numbers(await read(consumer, 1_000))[-10:] == list(range(10, 20))


async def test_what_does_not_fit_into_one_table_is_in_the_next(
    cluster: MemoryCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")

    class SmallBuilder(ColumnBuilder):
        """A builder of columns that allows ten rows instead of 2 GiB."""

        def append_batch(self, *arguments: Any, **more: Any) -> int:
            if self.row_count >= 10:
                raise OverflowError
            return super().append_batch(*arguments, **more)

    monkeypatch.setattr("odradek.consumer.read_ahead.ColumnBuilder", SmallBuilder)
    cluster.create_topic("t")
    await fill(client, 30)
    offsets: list[int] = []
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        while len(offsets) < 30:
            table = await consumer.getarrow(5_000)
            assert table.num_rows == 10
            offsets += table["offset"].to_pylist()
    assert offsets == list(range(30))


def fetch_streams() -> int:
    """Return the number of fetch streams of all consumers of this loop."""
    return sum(
        task.get_name().startswith("consumer: fetch from ")
        and not task.get_name().endswith((": read", ": write"))
        for task in asyncio.all_tasks()
    )


async def test_a_stream_without_partitions_is_closed(
    cluster: MemoryCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "EMPTY_STREAM_S", 0.01)
    cluster.create_topic("t", 3)
    for partition in range(3):
        await fill(client, 5, partition=partition)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        await read(consumer, 15)
        assert fetch_streams() == 3
        consumer.pause(T0)
        await until(lambda: fetch_streams() == 2)
        consumer.pause()
        await until(lambda: fetch_streams() == 0)
        await fill(client, 5, first=5)
        assert fetch_streams() == 0
        consumer.resume()
        assert numbers(await read(consumer, 5)) == list(range(5, 10))
        consumer.seek(T0, 0)
        assert numbers(await read(consumer, 10)) == list(range(10))
    assert fetch_streams() == 0


async def test_a_refused_stream_is_opened_again_and_logged_once(
    client: Client,
    cluster: MemoryCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.create_topic("t")
    await fill(client, 1)
    refused = 0
    opened = MemoryTransport.open

    def refuse(self: MemoryTransport, endpoint: str, method: Method[Any, Any]) -> Any:
        nonlocal refused
        if method is FETCH and refused < 5:
            refused += 1
            raise ThrottlingQuotaExceeded("you hold 9 of 9 streams")
        return opened(self, endpoint, method)

    monkeypatch.setattr(MemoryTransport, "open", refuse)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        assert numbers(await read(consumer, 1)) == [0]
    assert refused == 5
    warnings = [r for r in caplog.records if r.levelname == "WARNING" and "9 of 9" in r.message]
    assert len(warnings) == 1
