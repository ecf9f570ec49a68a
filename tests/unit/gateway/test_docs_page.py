"""The docs page sends requests from the browser, and loads nothing from other sites."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import cast

import httpx
import pytest

from odradek_gateway.app import create_app
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.openapi import PAGE_FILES, page_of
from odradek_gateway.rest.v2.instances import Instances
from odradek_gateway.settings import GatewaySettings


class Page(HTMLParser):
    """A parser of a page, which collects its links and whether it has a script of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.inline = ""
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_script = tag == "script"
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.inline += data


async def get(path: str, **headers: str) -> httpx.Response:
    unused = object()
    app = create_app(GatewaySettings(), cast("ClusterAccess", unused), cast("Instances", unused))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8082") as client:
        return await client.get(path, headers=headers)


async def test_a_browser_is_sent_to_the_page_and_a_program_is_not() -> None:
    browser = await get("/", accept="text/html,application/xhtml+xml,*/*;q=0.8")
    assert (browser.status_code, browser.headers["location"]) == (303, "docs")
    program = await get("/")
    assert (program.status_code, program.text) == (200, "{}")


async def test_the_page_loads_its_files_from_the_gateway_alone() -> None:
    response = await get("/docs")
    policy = dict(
        part.split(" ", 1) for part in response.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    page = Page()
    page.feed(response.text)
    icon, *page.links = page.links
    assert icon == "data:,", "without one, browsers ask for /favicon.ico"
    assert sorted(page.links) == sorted(f"docs/{name}" for name in PAGE_FILES)
    assert page.inline == "", "the policy forbids it"
    for link in page.links:
        found = await get(f"/{link}")
        assert found.status_code == 200
        expected = "text/css" if link.endswith(".css") else "text/javascript"
        assert found.headers["content-type"].startswith(expected)
        assert found.content
    start = (await get("/docs/start.js")).text
    (described,) = re.findall(r'url: "(.*)"', start)
    assert (await get(f"/{described}")).json()["paths"]


async def test_each_body_has_an_example_that_the_page_offers() -> None:
    """From the schema alone the page makes bodies with the largest numbers and long random keys, which are refused."""
    paths = (await get("/openapi.json")).json()["paths"]
    bodies = {
        f"{method} {path} {media_type}": content
        for path, item in paths.items()
        for method, operation in item.items()
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items()
    }
    assert len(bodies) > 20
    assert [name for name, content in bodies.items() if not content.get("example")] == []
    first = next(iter(paths["/topics/{topic}"]["post"]["requestBody"]["content"]))
    assert first == "application/vnd.kafka.json.v2+json"


@pytest.mark.parametrize("name", ["nosuch.js", "..%2fapp.py", "redoc.standalone.js", "favicon.png"])
async def test_no_other_file_is_served(name: str) -> None:
    assert (await get(f"/docs/{name}")).status_code == 404


def test_the_title_is_escaped() -> None:
    assert "<b>" not in page_of("<b>")
