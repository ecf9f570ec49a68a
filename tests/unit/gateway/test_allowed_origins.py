"""Browsers let pages of `http.allowed.origins` use the gateway, and pages of no other site."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute

from odradek_gateway.app import create_app
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.v2.instances import Instances
from odradek_gateway.settings import GatewaySettings

SITE, EVIL = "https://console.example", "https://attacker.example"
ALLOW = "access-control-allow-origin"


class Login:
    """Authentication that refuses every request but those for /ok, /stream and /broken."""

    def __init__(self, app: Any, **_: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] in ("/stream", "/broken", "/ok"):
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def gateway(
    *origins: str, login: Any = Login
) -> AsyncIterator[tuple[httpx.AsyncClient, FastAPI]]:
    settings = GatewaySettings(http_allowed_origins=origins)
    cluster = ClusterAccess(settings, url="http://here")
    app = create_app(settings, cluster, cast("Instances", None), login)

    async def stream() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"a"
            yield b"b"

        return StreamingResponse(pieces())

    async def broken() -> None:
        raise ZeroDivisionError

    app.add_api_route("/stream", stream)
    app.add_api_route("/broken", broken)
    transport = httpx.ASGITransport(cast("Any", app), raise_app_exceptions=False)
    async with cluster, httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http, app


def preflight(origin: str, **headers: str) -> dict[str, str]:
    return {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
        "Sec-Fetch-Site": "cross-site",
        **headers,
    }


def cors_of(response: httpx.Response) -> set[str]:
    return {name for name in response.headers if name.startswith("access-control-")}


@pytest.mark.parametrize("origins", [(SITE,), (f"{SITE.upper()}/", EVIL), ("*",)])
async def test_a_preflight_of_an_allowed_origin_is_answered_before_the_login(
    origins: tuple[str, ...],
) -> None:
    async with gateway(*origins) as (http, app):
        answer = await http.options("/topics/orders", headers=preflight(SITE))
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers.get_list(ALLOW) == [SITE]
        assert answer.headers.get_list("vary") == ["Origin"]
        assert int(answer.headers["access-control-max-age"]) > 0
        allowed = answer.headers["access-control-allow-headers"].split(", ")
        assert sorted(allowed) == ["accept", "authorization", "content-type"]
        methods = set(answer.headers["access-control-allow-methods"].split(", "))
        routes = [route for route in app.routes if isinstance(route, APIRoute)]
        assert methods == {method for route in routes for method in route.methods or ()}
        assert "access-control-allow-credentials" not in answer.headers
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "status"), [("/topics", 401), ("/stream", 200), ("/broken", 500), ("/a%2Fb", 404)]
)
async def test_a_page_of_an_allowed_origin_may_read_every_response(path: str, status: int) -> None:
    async with gateway(SITE) as (http, _):
        response = await http.get(path, headers={"Origin": SITE, "Sec-Fetch-Site": "cross-site"})
        assert response.status_code == status
        assert response.headers.get_list(ALLOW) == [SITE]
        assert response.headers.get_list("vary") == ["Origin"]
        assert "Retry-After" in response.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in response.headers


@pytest.mark.parametrize("origins", [(), (SITE,)])
@pytest.mark.parametrize("origin", [EVIL, f"{SITE}.attacker.example", "null", "http://localhost"])
async def test_no_other_origin_is_allowed(origins: tuple[str, ...], origin: str) -> None:
    """The gateway's own pages need no permission."""
    async with gateway(*origins) as (http, _):
        asked = await http.options("/topics/orders", headers=preflight(origin))
        assert asked.status_code == (401 if origin == "http://localhost" else 403)
        read = await http.get("/stream", headers={"Origin": origin})
        assert cors_of(asked) | cors_of(read) == set()
        two = [("Origin", origin), ("Origin", SITE)]
        assert cors_of(await http.get("/stream", headers=two)) == set()


async def test_a_preflight_to_a_foreign_host_name_is_refused() -> None:
    async with gateway(SITE) as (http, _):
        headers = preflight(SITE, Host="attacker.example")
        refused = await http.options("/topics/orders", headers=headers)
        assert refused.status_code == 421
        assert "access-control-allow-methods" not in refused.headers


async def test_other_options_requests_are_not_preflights() -> None:
    async with gateway(SITE, login=None) as (http, _):
        for headers in ({"Origin": SITE}, {"Access-Control-Request-Method": "POST"}, {}):
            response = await http.options("/topics", headers=headers)
            assert response.status_code == 405
            assert "access-control-allow-methods" not in response.headers
