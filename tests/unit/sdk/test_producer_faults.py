"""The producer against a cluster in memory while brokers die, hang, refuse requests and come
back.
"""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from odradek import Client, LinkState, Producer, RecordMetadata
from odradek.cluster.metadata_cache import Change
from odradek.errors import (
    AdvertisedNameUnresolvable,
    AuthorizationFailed,
    ClientClosed,
    InvalidTopic,
    OdradekError,
    UnknownTopic,
)
from odradek.testing import MemoryCluster
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_reader import decode_batch
from tests.unit.sdk.numbered_records import until


def values(cluster: MemoryCluster, topic: str, partition: int = 0) -> list[bytes | None]:
    log = cluster.log(topic, partition)
    return [record.value for batch in log.batches for record in decode_batch(batch.data)]


async def test_a_dead_leaders_records_go_to_the_next_one(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t", 3)
    async with client.producer() as producer:
        futures = []
        for number in range(300):
            futures.append(await producer.send("t", b"%d" % number, partition=number % 3))
            if number in (100, 200):
                await asyncio.sleep(0)
                cluster.kill(number // 100)
        offsets = [(await future).offset for future in futures]
    assert sorted(offsets) == sorted([*range(100)] * 3)


async def test_every_broker_restarts_in_turn_and_nothing_is_lost_or_doubled(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t", 3)
    async with client.producer() as producer:
        sent = 0
        for broker in (1, 2, 3, 1, 2, 3):
            for _ in range(50):
                await producer.send("t", b"%d" % sent, partition=sent % 3)
                sent += 1
            cluster.kill(broker)
            await producer.flush(10)
            cluster.start(broker)
    for partition in range(3):
        assert [int(v or b"") for v in values(cluster, "t", partition)] == list(
            range(partition, sent, 3)
        )


async def test_a_leader_that_hangs_is_left_when_another_one_is_elected(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    async with client.producer() as producer:
        await producer.send_and_wait("t", b"0")
        cluster.freeze(1)
        future = await producer.send("t", b"1")
        await asyncio.sleep(0)
        cluster.move_leader("t", 0, 2)
        assert (await asyncio.wait_for(future, 15)).offset == 1
        cluster.thaw(1)
        await producer.send_and_wait("t", b"2")
    assert values(cluster, "t") == [b"0", b"1", b"2"]


async def test_a_leader_that_nobody_announced_is_found_by_the_hint_of_the_old_one(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    async with client.producer() as producer:
        await producer.send_and_wait("t", b"0")
        cluster.move_leader("t", 0, 3, tell=False)
        began_s = time.monotonic()
        assert (await producer.send_and_wait("t", b"1")).offset == 1
        assert time.monotonic() - began_s < 5


async def test_an_answer_that_never_comes_breaks_the_connection_after_the_request_timeout(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    async with client.producer(request_timeout_ms=200, delivery_timeout_ms=10_000) as producer:
        await producer.send_and_wait("t", b"0")
        cluster.freeze(1)
        future = await producer.send("t", b"1")
        loop = asyncio.get_running_loop()
        loop.call_later(0.5, cluster.thaw, 1)
        assert (await future).offset == 1
    assert cluster.requests.count("Produce") > 1
    assert values(cluster, "t") == [b"0", b"1"]


async def test_records_of_a_deleted_topic_fail_and_its_namesake_takes_new_ones(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    async with client.producer() as producer:
        await producer.send_and_wait("t", b"old")
        cluster.fail_next("produce", "t", 0, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 100)
        future = await producer.send("t", b"caught")
        await asyncio.sleep(0)
        cluster.delete_topic("t")
        with pytest.raises(UnknownTopic, match="was deleted"):
            await asyncio.wait_for(future, 5)
        cluster._faults.clear()
        cluster.create_topic("t", 2)
        assert (await producer.send_and_wait("t", b"new", partition=1)).offset == 0


@pytest.mark.parametrize("name", ["a b", ".", "..", "", "x" * 250, "größe"])
async def test_a_topic_with_an_invalid_name_is_refused_at_once_and_never_created(name: str) -> None:
    cluster = MemoryCluster(auto_create_topics=True)
    async with (
        cluster.client() as client,
        client.producer(allow_auto_create_topics=True) as producer,
    ):
        with pytest.raises(InvalidTopic):
            await producer.send(name, b"x")
    assert not cluster.topics


async def test_a_record_that_is_sent_while_its_topic_is_deleted_fails_at_once(
    cluster: MemoryCluster, client: Client
) -> None:
    """It was kept until its delivery timeout, which blamed a missing leader."""
    cluster.create_topic("t")
    async with client.producer(delivery_timeout_ms=60_000) as producer:
        await producer.send_and_wait("t", b"before")
        late: list[asyncio.Task[RecordMetadata]] = []

        def send_now(change: Change) -> None:
            # The sender has been told of the deletion, and the producer has not.
            if "t" in change.topics and not late:
                late.append(asyncio.create_task(producer.send_and_wait("t", b"late")))

        client._cluster._listeners.insert(1, send_now)
        cluster.delete_topic("t")
        await until(lambda: late)
        with pytest.raises(UnknownTopic):
            await asyncio.wait_for(late[0], 10)


async def test_a_topic_made_anew_does_not_know_the_producer_yet(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    async with client.producer(batch_bytes_max=1) as producer:
        await producer.send_and_wait("t", b"old")
        cluster.delete_topic("t")
        topic_id = cluster.create_topic("t").topic_id  # watchers are told of both at once
        cache = client._cluster.cache
        await until(lambda: cache.topics["t"].topic_id == topic_id)
        cluster.fail_next("produce", "t", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        futures = [await producer.send("t", b"%d" % number) for number in range(4)]
        assert [(await asyncio.wait_for(f, 5)).offset for f in futures] == list(range(4))
    assert values(cluster, "t") == [b"%d" % number for number in range(4)]


async def test_a_refusal_fails_the_record_and_keeps_its_code(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    cluster.fail_next("produce", "t", 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    async with client.producer() as producer:
        with pytest.raises(AuthorizationFailed, match="ACL") as caught:
            await producer.send_and_wait("t", b"x")
    assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not caught.value.retriable


async def test_failures_that_nobody_waits_for_are_logged(
    cluster: MemoryCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic("t")
    cluster.fail_next("produce", "t", 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with caplog.at_level(logging.WARNING):
        async with client.producer() as producer:
            await producer.send("t", b"x")
    assert "Failed to write 1 records to t-0" in caplog.text


async def test_records_that_time_out_or_are_left_at_the_end_are_logged_too(
    cluster: MemoryCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic("t", 2)
    cluster.fail_next("produce", "t", 0, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 100)
    cluster.fail_next("produce", "t", 1, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 100)
    with caplog.at_level(logging.WARNING):
        producer = client.producer(delivery_timeout_ms=100)
        await producer.send("t", b"x", partition=0)
        await producer.flush(10)
        assert (
            "Failed to write 1 records to t-0: 1 records for t-0 were not acknowledged"
            in caplog.text
        )
        await producer.send("t", b"x", partition=1)
        await producer.close(0)
    assert "Failed to write 1 records to t-1: the producer was closed" in caplog.text


@pytest.mark.parametrize("partition", [None, 3])
async def test_a_record_that_waits_for_its_partition_while_the_producer_closes_fails(
    cluster: MemoryCluster, client: Client, partition: int | None
) -> None:
    """Otherwise its batch would never be sent, and its future would never be done."""
    cluster.create_topic("t", 2)
    producer = client.producer()
    if partition is not None:
        await producer.send_and_wait("t", b"x")
    cluster.frozen.update((1, 2, 3))
    late = asyncio.create_task(producer.send_and_wait("t", b"late", partition=partition))
    await asyncio.sleep(0)
    closing = asyncio.create_task(producer.close(0))
    await asyncio.sleep(0)
    if partition is not None:
        cluster.add_partitions("t", 2)
    for broker in (1, 2, 3):
        cluster.thaw(broker)
    await closing
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(late, 10)


async def test_acks_0_is_done_when_it_is_sent_and_1_when_the_leader_has_it(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    async with client.producer(acks=0) as producer:
        assert (await producer.send_and_wait("t", b"0")).offset == -1
    async with client.producer(acks=1) as producer:
        assert (await producer.send_and_wait("t", b"1")).offset == 1


async def test_a_callback_that_raises_is_reported_and_harms_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    reported: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    async with client.producer() as producer:
        future = await producer.send("t", b"x")
        future.add_done_callback(lambda _: 1 / 0)
        other = await producer.send("t", b"y")
        assert (await other).offset == 1
    assert reported == ["the program's delivery callback raised an exception"]


async def test_a_producer_stands_on_its_own(cluster: MemoryCluster) -> None:
    from odradek.cluster.cluster import connect

    cluster.create_topic("t")
    link = connect(cluster.bootstrap, transport=cluster.transport())
    async with Producer(cluster=link) as producer:
        await producer.send_and_wait("t", b"x")
        assert await producer.partitions_for("t") == 1
    await link.close()


async def test_the_links_state_is_told(cluster: MemoryCluster) -> None:
    states: list[str] = []
    lost = asyncio.Event()

    def on_state(state: LinkState) -> None:
        states.append(state.value)
        if state is LinkState.DISCONNECTED:
            lost.set()

    client = Client(cluster.bootstrap, transport=cluster.transport(), on_state=on_state)
    async with client:
        await client.connect(5)
        for broker in (1, 2, 3):
            cluster.kill(broker)
        await asyncio.wait_for(lost.wait(), 5)
        cluster.start(2)
        await client.connect(5)
    assert states == ["connected", "disconnected", "connected", "closed"]
    with pytest.raises(OdradekError):
        await client.connect(1)


async def test_an_address_where_nobody_is_any_more_is_asked_last(cluster: MemoryCluster) -> None:
    """Each call that began with that address would wait until the connection attempt times out."""
    bootstrap = f"gone:9090,{cluster.bootstrap}"
    async with Client(bootstrap, transport=cluster.transport()) as client:
        await client.connect(5)
        for _ in range(8):
            *known, last = client._cluster._candidates()
            assert last == "gone:9090"
            assert sorted(known) == sorted(cluster.endpoints.values())
        assert len({client._cluster._candidates()[0] for _ in range(8)}) == 3, "by turns"


async def test_a_state_listener_that_raises_does_not_end_the_watch(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic("t")
    client = Client(cluster.bootstrap, transport=cluster.transport(), on_state=lambda _: 1 / 0)
    async with client:
        await client.connect(5)
        async with client.producer() as producer:
            await producer.send_and_wait("t", b"x")
            cluster.requests.clear()
            cluster.move_leader("t", 0, 2)
            cache = client._cluster.cache
            await until(lambda: cache.topics["t"].partitions[0].leader_id == 2)
            assert "Metadata" not in cluster.requests, "the watch told it"
    assert "on_state callback raised an exception" in caplog.text


def test_unresolvable_names_have_an_error_of_their_own() -> None:
    error = AdvertisedNameUnresolvable(2, "broker-2.local:9090", "no address")
    assert "broker 2 advertises" in str(error)
    assert "advertised.listeners" in str(error)


async def test_closing_the_client_first_fails_what_is_left_at_once(cluster: MemoryCluster) -> None:
    cluster.create_topic("t")
    client = cluster.client()
    producer = client.producer()
    await producer.send_and_wait("t", b"before")
    cluster.fail_next("produce", "t", 0, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 100)
    future = await producer.send("t", b"left")
    await client.close()
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(future, 5)
    began_s = time.monotonic()
    await producer.close()
    assert time.monotonic() - began_s < 5


async def test_records_with_keys_gather_into_batches_too(
    cluster: MemoryCluster, client: Client
) -> None:
    """If the sender ran after each record, batches would have one record each."""
    cluster.create_topic("t", 8)
    async with client.producer() as producer:
        for number in range(20_000):
            await producer.send("t", b"x" * 50, key=b"%d" % (number % 100))
    batches = sum(len(cluster.log("t", partition).batches) for partition in range(8))
    assert batches < 20_000 / 40


async def test_a_tight_loop_of_sends_lets_other_tasks_run(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t", 8)
    turns = 0
    is_over = False

    async def other() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    async with client.producer() as producer, asyncio.TaskGroup() as tasks:
        await producer.send_and_wait("t", b"first")
        tasks.create_task(other())
        for number in range(10_000):
            await producer.send("t", b"", partition=number % 8)
        is_over = True
    assert turns >= 10_000 / 500 - 1


@pytest.mark.parametrize(
    "code", [code for code in ErrorCode if code.metadata_is_stale], ids=lambda code: code.name
)
async def test_stale_metadata_is_fetched_again(
    cluster: MemoryCluster, client: Client, code: ErrorCode
) -> None:
    cluster.create_topic("t")
    async with client.producer() as producer:
        await producer.send_and_wait("t", b"1", partition=0)
        count_before = cluster.requests.count("Metadata")
        cluster.fail_next("produce", "t", 0, code)
        await producer.send_and_wait("t", b"2", partition=0)
        await until(lambda: cluster.requests.count("Metadata") > count_before)
    assert values(cluster, "t") == [b"1", b"2"]
