"""One consumer instance: the records that it keeps in memory, and its commit when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from typing import Any, cast

import pytest
from fastapi import Request
from starlette.requests import ClientDisconnect

from odradek import Client, Consumer
from odradek.testing import MemoryCluster
from odradek_gateway.cluster_access import Waits
from odradek_gateway.errors import RestError
from odradek_gateway.rest.v2 import consumer_records
from odradek_gateway.rest.v2.instance import Instance, InstanceSpec

DEADLINE_S = 20.0
RECORD_BYTES, RECORDS = 100_000, 60
PREFETCH_BYTES_MAX = 1 << 20
SPEC = InstanceSpec(
    group="g",
    name="i",
    auto_offset_reset="earliest",
    auto_commit=False,
    partitions=(("t", 0),),
)


class Groups:
    """Groups without committed offsets. A request sets `asked` and waits for `answer`."""

    def __init__(self) -> None:
        self.asked, self.answer = asyncio.Event(), asyncio.Event()
        self.answer.set()
        self.commits: list[dict[Any, int]] = []

    async def alter_group_offsets(self, _group: str, offsets: dict[Any, int]) -> None:
        self.commits.append(offsets)

    async def group_offsets(self, _group: str, _names: Any) -> dict[Any, int]:
        self.asked.set()
        await self.answer.wait()
        return {}


class OneClient:
    """A client that stores the consumers that it creates."""

    def __init__(self, client: Client) -> None:
        self.admin = Groups()
        self.consumers: list[Consumer] = []
        self.producer = client.producer
        self._client = client

    def consumer(self, **options: Any) -> Consumer:
        self.consumers.append(self._client.consumer(**options))
        return self.consumers[-1]


@pytest.fixture
async def client() -> AsyncIterator[OneClient]:
    cluster = MemoryCluster()
    cluster.create_topic("t", partitions=1)
    cluster.create_topic("later", partitions=1)
    async with cluster.client() as made:
        async with made.producer() as producer:
            for number in range(RECORDS):
                value = number.to_bytes(4, "big") + bytes(RECORD_BYTES)
                await producer.send("t", value, partition=0)
                await producer.flush(DEADLINE_S)
        yield OneClient(made)


def made_with(client: OneClient) -> Instance:
    return Instance(cast("Client", client), SPEC, PREFETCH_BYTES_MAX)


def held_bytes(consumer: Consumer) -> int:
    return consumer._planner.buffered_bytes


async def read(instance: Instance, records_max: int) -> list[int]:
    consumer = await instance.read_begins()
    records = await consumer.getmany(5_000, records_max)
    return [int.from_bytes(one.value[:4], "big") for one in records]


async def until_read_ahead(consumer: Consumer) -> None:
    while held_bytes(consumer) < PREFETCH_BYTES_MAX - 2 * RECORD_BYTES:
        await consumer._fetcher.arrival()


async def test_an_instance_reads_little_ahead_and_nothing_at_rest(client: OneClient) -> None:
    """One process has thousands of open instances, most of them idle and far behind."""
    instance = made_with(client)
    async with asyncio.timeout(DEADLINE_S):
        told = await read(instance, 2)
        (consumer,) = client.consumers
        while len(told) < RECORDS:
            if told[-1] < RECORDS // 2:
                await until_read_ahead(consumer)
            assert held_bytes(consumer) <= PREFETCH_BYTES_MAX + RECORD_BYTES * 2
            instance.rest()
            assert held_bytes(consumer) == 0
            for _ in range(20):
                await asyncio.sleep(0)
            assert held_bytes(consumer) == 0, "it was fetched again though nobody reads"
            told += await read(instance, 7)
        await instance.end()
    assert told == list(range(RECORDS))


@pytest.mark.parametrize("is_moved", [False, True])
async def test_an_instance_commits_at_its_end_unless_another_gateway_serves_it(
    client: OneClient, is_moved: bool
) -> None:
    instance = Instance(cast("Client", client), replace(SPEC, auto_commit=True), PREFETCH_BYTES_MAX)
    async with asyncio.timeout(DEADLINE_S):
        told = await read(instance, 2)
        await instance.end(is_moved=is_moved)
    assert client.admin.commits == ([] if is_moved else [{("t", 0): told[-1] + 1}])


async def test_an_instance_that_ended_while_it_began_leaves_no_consumer(client: OneClient) -> None:
    """Such a consumer would fetch for ever."""
    instance = made_with(client)
    client.admin.answer.clear()
    async with asyncio.timeout(DEADLINE_S):
        beginning = asyncio.create_task(instance.consumer())
        await client.admin.asked.wait()
        await instance.end()
        client.admin.answer.set()
        with pytest.raises(RestError, match="has just closed"):
            await beginning
    assert client.consumers == []


async def test_only_so_many_requests_wait_for_one_instance(client: OneClient) -> None:
    """Each waiting request counts among all running requests, and may last a minute."""
    instance = made_with(client)
    served = 0

    async def ask() -> None:
        nonlocal served
        async with instance.turn():
            served += 1

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks, instance.turn():
        for _ in range(32):
            tasks.create_task(ask())
        await asyncio.sleep(0)
        with pytest.raises(RestError) as refused:
            await ask()
        assert refused.value.status == 429
    assert served == 32
    await ask()


def test_what_a_newer_gateway_registered_is_served() -> None:
    """During a rolling upgrade of gateways, both versions read the same registry."""
    assert InstanceSpec.from_json({**asdict(SPEC), "of_the_future": 1}) == SPEC


class Poll:
    """The part of a request that a read needs: whether the client is still connected."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.waits = Waits(shutdown_s=1.0)

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_what_waits_for_more_is_not_handed_out_and_so_not_committed(
    client: OneClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, records that waited for `fetch.min.bytes` were committed, and were lost when the
    gateway was killed.
    """
    wanted, poll = RECORD_BYTES * 3, Poll()
    monkeypatch.setattr(consumer_records, "cluster_of", lambda request: request)
    spec = replace(SPEC, partitions=(("later", 0),), fetch_min_bytes=wanted)
    instance = Instance(cast("Client", client), spec, PREFETCH_BYTES_MAX)
    async with asyncio.timeout(DEADLINE_S), client.producer() as producer:
        consumer = await instance.read_begins()
        request = cast("Request", poll)
        reading = asyncio.create_task(
            consumer_records._read(instance, consumer, request, 20_000, 1 << 30)
        )
        for count in range(1, 4):
            assert set(consumer.positions().values()) <= {0}, "nothing is handed out yet"
            assert not reading.done()
            await producer.send_and_wait("later", bytes(RECORD_BYTES), partition=0)
            while count < 3 and held_bytes(consumer) < count * RECORD_BYTES:
                await consumer._fetcher.arrival()
        records = await reading
        assert [one.offset for one in records] == [0, 1, 2]
        await producer.send_and_wait("later", b"few", partition=0)
        while not held_bytes(consumer):
            await consumer._fetcher.arrival()
        few = await consumer_records._read(instance, consumer, request, 50, 1 << 30)
        assert [one.value for one in few] == [b"few"], "time was up: what is there"
        leaving = asyncio.create_task(
            consumer_records._read(instance, consumer, request, 20_000, 1 << 30)
        )
        await producer.send_and_wait("later", b"more", partition=0)
        poll.gone.set()
        with pytest.raises(ClientDisconnect):
            await leaving
        assert consumer.positions() == {("later", 0): 4}, "nobody got it"
        await instance.end()
