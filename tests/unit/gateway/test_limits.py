"""Bounds on HTTP requests: how many run at once, and how long the gateway waits for the rest of a body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI, Request
from prometheus_client import generate_latest

from odradek_gateway.app import Limits, create_app
from odradek_gateway.auth.allowed_origins import AllowedOrigins
from odradek_gateway.auth.caller_limits import RequestShares
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import RestError
from odradek_gateway.monitoring import RequestMetrics
from odradek_gateway.rest.requests import chunks_of
from odradek_gateway.rest.v2.instances import Instances
from odradek_gateway.settings import GatewaySettings
from odradek_runtime.settings import SettingsError

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
    """A kubelet that gets 429 restarts the pod, and ends all running requests."""
    ending = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await ending.wait()
        await send({"type": "http.response.start", "status": 200})

    shares = RequestShares(requests_max=1, body_bytes_max=1, bodies_bytes_max=1)
    limits = Limits(app, shares=shares, metrics=RequestMetrics(), origins=AllowedOrigins(()))
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        slow = tasks.create_task(status_of(limits, "/slow"))
        await asyncio.sleep(0)
        assert await status_of(limits, "/topics") == 429
        assert await status_of(limits, path) == 200
        ending.set()
        assert await slow == 200
    assert await status_of(limits, "/topics") == 200


def body_of(pieces: Iterable[bytes]) -> Request:
    """Return a request whose body sends these pieces, and then never ends."""
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


async def test_a_slow_body_is_taken_as_long_as_something_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time of each wait is bounded, and not that of the whole body."""
    more = [True] * 7 + [False]
    loop = asyncio.get_running_loop()
    real_s, ahead_s = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real_s() + ahead_s)

    async def receive() -> dict[str, Any]:
        nonlocal ahead_s
        ahead_s += 10.0
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"x", "more_body": more.pop(0)}

    pieces = [piece async for piece in chunks_of(Request(scope("/"), receive), 30_000) if piece]
    assert pieces == [b"x"] * 8


@asynccontextmanager
async def gateway(**settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, FastAPI]]:
    """Yield a client of a gateway without a cluster; none of these requests needs one."""
    chosen = GatewaySettings(**settings)
    cluster = ClusterAccess(chosen, url="http://here")
    app = create_app(chosen, cluster, cast("Instances", None))
    transport = httpx.ASGITransport(cast("Any", app), raise_app_exceptions=False)
    headers = {"content-type": "application/vnd.kafka.json.v2+json"}
    async with (
        cluster,
        httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers
        ) as http,
    ):
        yield http, app


async def test_bodies_of_all_requests_together_have_a_bound() -> None:
    """2,000 requests may run at once, of 64 MiB each."""
    arrived, more = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 1_500
        arrived.set()
        await more.wait()
        yield b"x"

    async with (
        asyncio.timeout(DEADLINE_S),
        gateway(body_bytes_max=3_000, bodies_bytes_max=3_000) as (http, app),
        asyncio.TaskGroup() as tasks,
    ):
        first = tasks.create_task(http.post("/topics/t", content=slow()))
        await arrived.wait()
        refused = await http.post("/topics/t", content=b"x" * 1_501)
        assert (refused.status_code, refused.json()["error_code"]) == (429, 42901)
        assert refused.headers["connection"] == "close", "the rest of it is not read"
        assert (await http.post("/topics/t", content=b"x" * 1_500)).status_code == 400
        more.set()
        assert (await first).status_code == 400
        assert app.state.shares.bodies.total == 0
        assert app.state.shares.requests.total == 0
        assert (await http.post("/topics/t", content=b"x" * 2_000)).status_code == 400


async def test_a_caller_that_holds_its_share_leaves_room_for_others() -> None:
    """Before, 19 connections with half bodies blocked a gateway, and so did 2,000 requests of one byte."""
    shares = RequestShares(requests_max=8, body_bytes_max=100, bodies_bytes_max=400)
    mallory = [scope("/") | {"client": ("10.0.0.1", n)} for n in range(5)]
    alice = scope("/") | {"client": ("10.0.0.2", 1)}
    told = [shares.begin(one) for one in mallory]
    assert told[:4] == [None] * 4
    assert told[4] == "host 10.0.0.1 holds 4 of 4 running requests: finish or close some first"
    assert shares.begin(alice) is None
    assert shares.take_body(mallory[0], 100) is None
    refused = shares.take_body(mallory[1], 1)
    assert refused is not None
    assert "holds 100 of 100 bytes of bodies" in refused
    assert shares.take_body(alice, 100) is None
    for one in (*mallory, alice):
        shares.end(one)
    assert (shares.requests.total, shares.bodies.total) == (0, 0)


async def test_a_request_is_its_principals_once_it_is_known() -> None:
    shares = RequestShares(requests_max=4, body_bytes_max=1, bodies_bytes_max=4)
    behind_a_proxy = [scope("/") | {"client": ("10.0.0.1", n)} for n in range(4)]
    for number, one in enumerate(behind_a_proxy):
        assert shares.begin(one) is None
        assert shares.identified(one, f"User:{number % 2}") is None
    assert (shares.requests.of("User:0"), shares.requests.of("host 10.0.0.1")) == (2, 0)


async def test_a_body_that_drips_is_refused() -> None:
    """Before, one byte within each idle time-out kept a request and its share for ever."""

    async def drip() -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0.05)
            yield b"x"

    async with asyncio.timeout(DEADLINE_S), gateway(body_idle_timeout_ms=1_000) as (http, _):
        refused = await http.post("/topics/t", content=drip())
    assert refused.status_code == 408
    assert "too slowly" in refused.json()["message"]


@pytest.mark.parametrize("body", [b"{}", None])
async def test_a_body_without_a_media_type_is_refused(body: bytes | None) -> None:
    """A page of another site can send such a body without a CORS preflight."""

    async def chunked() -> AsyncIterator[bytes]:
        yield b"{}"

    async with gateway() as (http, _):
        del http.headers["content-type"]
        refused = await http.post("/topics/t", content=body or chunked())
    assert refused.status_code == 415


def test_a_bound_of_all_bodies_below_that_of_one_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"request\.bodies\.bytes\.max"):
        GatewaySettings(body_bytes_max=2_048, bodies_bytes_max=2_047).check(insecure=False)


async def test_a_bug_is_answered_and_counted_as_any_other_request() -> None:
    """Before, it was counted as if the client had disconnected, so alerts on 5xx did not fire."""
    async with asyncio.timeout(DEADLINE_S), gateway() as (http, app):

        @app.get("/bug")
        async def bug() -> None:
            raise RuntimeError("a bug")

        told = await http.get("/bug")
        assert (told.status_code, told.json()["error_code"]) == (500, 500)
        assert told.headers["x-content-type-options"] == "nosniff"
        counted = generate_latest(app.state.request_metrics.registry).decode()
        assert 'requests_total{method="GET",status="500"} 1.0' in counted


@pytest.mark.parametrize(
    ("path", "raw_path", "served"),
    [
        ("/topics/", b"/topics/", ("/topics", b"/topics")),
        ("/v3/clusters/", b"/v3/clusters/", ("/v3/clusters", b"/v3/clusters")),
        ("/topics", b"/topics", ("/topics", b"/topics")),
        ("/", b"/", ("/", b"/")),
        ("/topics//", b"/topics//", ("/topics/", b"/topics/")),  # names nothing
    ],
)
async def test_a_trailing_slash_is_off_the_path_before_anything_looks_at_it(
    path: str, raw_path: bytes, served: tuple[str, bytes]
) -> None:
    seen: list[tuple[str, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["path"], scope["raw_path"]))
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        pass

    shares = RequestShares(requests_max=1, body_bytes_max=1, bodies_bytes_max=1)
    limits = Limits(app, shares=shares, metrics=RequestMetrics(), origins=AllowedOrigins(()))
    await limits({**scope(path), "raw_path": raw_path}, None, send)
    assert seen == [served]


@pytest.mark.parametrize(
    "raw_path", ["/v3/clusters/c/consumer-groups/gh%2Flags", "/consumers/g%2f", "/topics/%2F"]
)
async def test_a_path_with_an_escaped_slash_is_refused(raw_path: str) -> None:
    """Routes match the decoded path, which is that of another resource: the lags of group gh."""
    async with gateway() as (http, _app):
        refused = await http.get(raw_path)
        assert refused.status_code == 404
        assert "escaped slash (%2F)" in refused.json()["message"]
        assert refused.headers["x-content-type-options"] == "nosniff"
        no_slash = await http.get("/nothing/a%252Fb")
        assert "escaped slash" not in no_slash.json()["message"]
