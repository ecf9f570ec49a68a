"""Streams of records (v3): what is refused before it is written, and how a stream ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from fastapi import Request

from odradek_gateway.rest.errors import RestError
from odradek_gateway.rest.v3 import records
from odradek_gateway.settings import GatewaySettings

DEADLINE_S = 20.0


def request_of(body: bytes) -> Request:
    """One that sends this body as a whole."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


class Broken:
    """A producer with a bug."""

    async def send(self, *_: Any, **__: Any) -> None:
        raise KeyError("a bug")


async def test_a_bug_ends_a_stream_instead_of_leaving_its_client_waiting() -> None:
    cluster = SimpleNamespace(settings=GatewaySettings(), producer=Broken())
    answers = records._answers(
        request_of(b'{"value": {"data": 1}} {"value": {"data": 2}}'),
        cast("Any", cluster),
        cast("Any", None),
        "t",
        1,
    )
    async with asyncio.timeout(DEADLINE_S):
        told = [msgspec.json.decode(one) async for one in answers]
    assert [one["error_code"] for one in told] == [500]


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("9999-12-31T23:59:59.999Z", True),
        ("9999-12-31T23:59:59-01:00", False),
        ("1970-01-01T00:00:00Z", True),
        ("1970-01-01T00:30:00+01:00", False),
    ],
)
def test_a_time_that_cannot_be_told_is_refused_before_the_record_is_written(
    text: str, is_taken: bool
) -> None:
    """The record was written and the answer failed (500), so it was sent again."""
    record = msgspec.json.decode(f'{{"timestamp": "{text}"}}', type=records.ProducedRecord)
    if is_taken:
        assert records._iso(records._outgoing(record).timestamp_ms or 0)[:19] == text[:19]
        return
    with pytest.raises(RestError) as refused:
        records._outgoing(record)
    assert refused.value.status == 422
