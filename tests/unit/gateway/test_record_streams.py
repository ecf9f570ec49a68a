"""Streams of records (v3): which records are refused before they are written, and how a stream ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from fastapi import Request

from odradek.producer.delivery import RecordMetadata
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import RestError
from odradek_gateway.rest.v3 import records
from odradek_gateway.rest.v3.resources import Names
from odradek_gateway.settings import GatewaySettings

DEADLINE_S = 20.0
NAMES = cast("Names", SimpleNamespace(cluster_id="c"))


def request_of(body: bytes) -> Request:
    """Return a request that sends this body as a whole."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


class Broken:
    """A producer that raises an unexpected exception."""

    async def send(self, *_: Any, **__: Any) -> Any:
        raise KeyError("a bug")

    async def close(self, _timeout_s: float) -> None:
        pass


async def test_a_bug_ends_a_stream_instead_of_leaving_its_client_waiting() -> None:
    async with asyncio.timeout(DEADLINE_S), ClusterAccess(GatewaySettings(), url="") as cluster:
        cluster.producer = cast("Any", Broken())
        request = request_of(b'{"value": {"data": 1}} {"value": {"data": 2}}')
        results = records._results(request, cluster, NAMES, "t", 1)
        decoded = [msgspec.json.decode(result) async for result in results]
    assert [result["error_code"] for result in decoded] == [500]


class Slow(Broken):
    """A producer that acknowledges when the test says so."""

    def __init__(self) -> None:
        self.acknowledged = asyncio.Event()

    async def send(self, *_: Any, **__: Any) -> Any:
        async def acknowledged() -> RecordMetadata:
            await self.acknowledged.wait()
            return RecordMetadata("t", 0, 7, -1)

        return acknowledged()


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "busy"])
async def test_a_gateway_that_stops_sends_results_of_the_records_it_read_and_ends_the_stream(
    is_idle: bool,
) -> None:
    """The stream used to be cut off, so its client did not know which of up to 1,000 records were written."""
    settings = GatewaySettings(shutdown_timeout_ms=200)
    read = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if read.is_set():
            if is_idle:
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(0)
            return {"type": "http.request", "body": b" ", "more_body": True}
        read.set()
        return {"type": "http.request", "body": b'{"value": {"data": 1}}', "more_body": True}

    request = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)
    async with asyncio.timeout(DEADLINE_S), ClusterAccess(settings, url="") as cluster:
        producer = Slow()
        cluster.producer = cast("Any", producer)

        async def all_results() -> list[Any]:
            results = records._results(request, cluster, NAMES, "t", 1)
            return [msgspec.json.decode(result) async for result in results]

        reading = asyncio.create_task(all_results())
        await read.wait()
        cluster.waits.stop()
        producer.acknowledged.set()
        assert [(result["error_code"], result["offset"]) for result in await reading] == [(200, 7)]


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("9999-12-31T23:59:59.999Z", True),
        ("9999-12-31T23:59:59-01:00", False),
        ("1970-01-01T00:00:00Z", True),
        ("1970-01-01T00:30:00+01:00", False),
    ],
)
def test_a_time_that_cannot_be_written_is_refused_before_the_record_is_written(
    text: str, is_taken: bool
) -> None:
    """Before, the record was written and the response failed (500), so the client sent it again."""
    record = msgspec.json.decode(f'{{"timestamp": "{text}"}}', type=records.ProducedRecord)
    if is_taken:
        assert records._iso(records.outgoing(record).timestamp_ms or 0)[:19] == text[:19]
        return
    with pytest.raises(RestError) as refused:
        records.outgoing(record)
    assert refused.value.status == 422
