"""Records that a read takes from the consumer either are in its response, or are read again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from fastapi.responses import Response

from odradek import Client, Consumer
from odradek.testing import MemoryCluster
from odradek_gateway.cluster_access import Waits
from odradek_gateway.rest.v2 import consumer_records
from odradek_gateway.rest.v2.consumers import Work
from odradek_gateway.rest.v2.instance import Instance, InstanceSpec

DEADLINE_S = 20.0
URL = "http://gateway/consumers/g/instances/i/records?timeout=5000"
NOT_UTF8 = b"caf\xe9 \xe2\x82\xac".decode("utf-8", "surrogateescape")
RECORDS = 3


@dataclass
class Cluster:
    """The part of ClusterAccess that a read needs."""

    waits: Waits
    settings: Any


@dataclass
class Settings:
    consumer_request_timeout_ms_max: int = 10_000


@dataclass
class Reads:
    """One instance, and an HTTP client of the route that reads its records."""

    http: httpx.AsyncClient
    instance: Instance
    accept: str

    async def get(self) -> httpx.Response:
        return await self.http.get(URL, headers={"accept": self.accept})

    async def positions(self) -> dict[Any, int]:
        consumer = await self.instance.consumer()
        assert isinstance(consumer, Consumer)
        return dict(consumer.positions())


@pytest.fixture(params=["binary", "json"])
async def reads(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Reads]:
    memory = MemoryCluster()
    memory.create_topic("t", partitions=1)
    spec = InstanceSpec(
        group="g",
        name="i",
        format=request.param,
        auto_offset_reset="earliest",
        auto_commit=False,
        partitions=(("t", 0),),
    )
    async with memory.client() as client:
        async with client.producer() as producer:
            for number in range(RECORDS):
                headers = [(NOT_UTF8, b"x")] if number == 1 else [("caf\xe9", b"y")]
                value = str(number).encode()
                await producer.send_and_wait("t", value, partition=0, headers=headers)
        instance = Instance(cast("Client", WithoutGroups(client)), spec, 1 << 20)

        async def at_owner(_group: str, _name: str, asked: Any, work: Work, **_: Any) -> Response:
            await asked.body()
            async with instance.turn():
                return await work(cast("Any", None), instance, b"")

        cluster = Cluster(Waits(shutdown_s=1.0), Settings())
        monkeypatch.setattr(consumer_records, "cluster_of", lambda _request: cluster)
        monkeypatch.setattr(consumer_records, "at_owner", at_owner)
        app = FastAPI()
        app.router.routes.extend(consumer_records.router.routes)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport) as http, asyncio.timeout(DEADLINE_S):
            accept = f"application/vnd.kafka.{request.param}.v2+json"
            yield Reads(http, instance, accept)
            await instance.end()


class WithoutGroups:
    """A client whose groups have no committed offsets."""

    def __init__(self, client: Client) -> None:
        self.admin = self
        self.consumer = client.consumer

    async def group_offsets(self, _group: str, _names: Any) -> dict[Any, int]:
        return {}


async def test_a_header_name_that_is_not_utf8_is_returned_with_replacement_characters(
    reads: Reads,
) -> None:
    response = await reads.get()
    assert response.status_code == 200, response.text
    names = [record["headers"][0]["name"] for record in response.json()]
    assert names == ["caf\xe9", "caf\ufffd \u20ac", "caf\xe9"]
    assert [record["offset"] for record in response.json()] == [0, 1, 2]


async def test_records_of_a_response_that_cannot_be_encoded_are_read_again(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_records: Any) -> bytes:
        raise msgspec.EncodeError("no JSON")

    with monkeypatch.context() as failing:
        failing.setattr(consumer_records, "encode", fail)
        for _ in range(2):
            assert (await reads.get()).status_code == 500
            assert await reads.positions() == {("t", 0): 0}, "a commit would skip the records"
    assert [record["offset"] for record in (await reads.get()).json()] == [0, 1, 2]


async def test_records_of_a_cancelled_request_are_read_again(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_records, "_RECORDS_PER_PIECE", 1)
    encode, encoded = consumer_records.encode, asyncio.Event()

    def note(records: Any) -> bytes:
        encoded.set()
        return encode(records)

    monkeypatch.setattr(consumer_records, "encode", note)
    reading = asyncio.create_task(reads.get())
    await encoded.wait()  # The request now lets other tasks run before it encodes the next piece.
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await reads.positions() == {("t", 0): 0}
    assert [record["offset"] for record in (await reads.get()).json()] == [0, 1, 2]
