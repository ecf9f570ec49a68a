"""The gateway refuses all requests that a web page of another site makes a browser send."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from odradek_gateway.auth.allowed_origins import AllowedOrigins
from odradek_gateway.auth.browser_rules import BrowserRules
from odradek_gateway.settings import GatewaySettings

EVIL = "https://attacker.example"


async def served(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def ask(
    *,
    host: str = "127.0.0.1:8082",
    method: str = "POST",
    path: str = "/topics/orders",
    settings: dict[str, Any] | None = None,
    **headers: str,
) -> int:
    chosen = GatewaySettings(**(settings or {}))
    origins = AllowedOrigins(chosen.http_allowed_origins)
    rules = BrowserRules(served, hosts=chosen.known_hosts(), origins=origins)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(rules), base_url="http://ignored"
    ) as http:
        return (await http.request(method, path, headers={"Host": host, **sent})).status_code


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8082", "localhost:8082", "LOCALHOST", "[::1]:8082", "192.168.1.7:8082", "10.0.0.1"],
)
async def test_a_program_that_uses_an_address_or_loopback_name_is_served(host: str) -> None:
    assert await ask(host=host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example:8082",
        "127.0.0.1.attacker.example",
        "localhost.attacker.example",
        "user@127.0.0.1",
        "attacker.example#127.0.0.1",
        "127.0.0.1/attacker.example",
        "",
    ],
)
async def test_a_name_that_is_not_the_gateways_is_refused(host: str) -> None:
    """In DNS rebinding, the page's own host name resolves to this gateway, and the browser lets the
    page read responses.
    """
    assert await ask(host=host, method="GET") == 421


async def test_names_of_settings_and_of_the_advertised_url_are_served() -> None:
    settings = {
        "http_allowed_hosts": ("rest.example",),
        "advertised_url": "http://gw-1.example:8082",
    }
    assert await ask(host="rest.example", settings=settings) == 200
    assert await ask(host="gw-1.example:8082", settings=settings) == 200
    assert await ask(host="other.example", settings=settings) == 421


async def test_with_tls_the_certificate_vouches_for_any_name() -> None:
    tls = {"http_ssl_certificate": "c.pem", "http_ssl_key": "k.pem"}
    assert await ask(host="any.example", settings=tls) == 200


@pytest.mark.parametrize("count", [0, 2])
async def test_a_request_has_one_host(count: int) -> None:
    scope = {
        "type": "http",
        "path": "/topics",
        "method": "GET",
        "scheme": "http",
        "headers": [(b"host", b"localhost")] * count,
    }
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await BrowserRules(served, hosts=(), origins=AllowedOrigins(()))(scope, None, send)
    assert sent[0]["status"] == 400


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": EVIL, "Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "https://127.0.0.1:8082"},
    ],
)
async def test_what_a_page_of_another_site_asks_is_refused(
    method: str, headers: dict[str, str]
) -> None:
    """This includes GET, because reading from a consumer instance moves its position."""
    assert await ask(method=method, **headers) == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec_Fetch_Site": "same-origin"},
        {"Sec_Fetch_Site": "none"},
        {"Origin": "http://127.0.0.1:8082", "Sec_Fetch_Site": "same-origin"},
    ],
)
async def test_programs_and_the_gateways_own_pages_are_served(headers: dict[str, str]) -> None:
    assert await ask(**headers) == 200


async def test_a_person_may_follow_a_link_to_a_page_and_to_nothing_else() -> None:
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert await ask(method="GET", path="/docs", **link) == 200
    assert await ask(method="POST", path="/docs", **link) == 403
    assert await ask(method="GET", path="/topics", **link) == 403


async def test_sites_that_may_are_listed() -> None:
    settings = {"http_allowed_origins": ("https://console.example",)}
    cross = {"Sec_Fetch_Site": "cross-site"}
    assert await ask(settings=settings, Origin="https://console.example", **cross) == 200
    assert await ask(settings=settings, Origin=EVIL, **cross) == 403
    assert await ask(settings=settings, **cross) == 403
    assert await ask(settings={"http_allowed_origins": ("*",)}, **cross) == 200


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_probes_may_come_by_any_name(path: str) -> None:
    assert await ask(host="attacker.example", method="GET", path=path) == 200
