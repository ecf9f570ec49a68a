"""Bounds on requests: how many are at work, and how long half a body is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from fastapi import Request

from odradek_gateway.admin.request_metrics import RequestMetrics
from odradek_gateway.app import Limits
from odradek_gateway.rest.errors import RestError
from odradek_gateway.rest.request_bodies import chunks_of

DEADLINE_S = 20.0


def scope(path: str) -> dict[str, Any]:
    return {"type": "http", "method": "GET", "path": path, "scheme": "http", "headers": []}


async def status_of(app: Any, path: str) -> int:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope(path), None, send)
    status: int = sent[0]["status"]
    return status


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/_health"])
async def test_probes_are_answered_however_many_requests_are_at_work(path: str) -> None:
    """A kubelet that hears 429 restarts the pod, and with it everything that is at work."""
    ending = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await ending.wait()
        await send({"type": "http.response.start", "status": 200})

    limits = Limits(app, requests_max=1, metrics=RequestMetrics())
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        slow = tasks.create_task(status_of(limits, "/slow"))
        await asyncio.sleep(0)
        assert await status_of(limits, "/topics") == 429
        assert await status_of(limits, path) == 200
        ending.set()
        assert await slow == 200
    assert await status_of(limits, "/topics") == 200


def body_of(pieces: Iterable[bytes]) -> Request:
    """One that sends these pieces and then nothing."""
    left = iter(pieces)

    async def receive() -> dict[str, Any]:
        piece = next(left, None)
        if piece is None:
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": piece, "more_body": True}

    return Request(scope("/"), receive)


async def test_half_a_body_is_waited_for_only_so_long() -> None:
    chunks = chunks_of(body_of([b"ab", b"c"]), 20)
    async with asyncio.timeout(DEADLINE_S):
        assert [await anext(chunks), await anext(chunks)] == [b"ab", b"c"]
        with pytest.raises(RestError) as refused:
            await anext(chunks)
    assert (refused.value.status, refused.value.ends_connection) == (408, True)


async def test_a_slow_body_is_taken_as_long_as_something_comes() -> None:
    """Not its whole length is bounded: each wait is."""
    more = [True] * 7 + [False]

    async def receive() -> dict[str, Any]:
        waiting = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.03, waiting.set_result, None)
        await waiting
        return {"type": "http.request", "body": b"x", "more_body": more.pop(0)}

    pieces = [piece async for piece in chunks_of(Request(scope("/"), receive), 150) if piece]
    assert pieces == [b"x"] * 8
