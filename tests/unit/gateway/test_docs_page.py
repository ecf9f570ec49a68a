"""The docs page shows everything that openapi.json has, and loads nothing from other sites."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import cast

from odradek_gateway.app import create_app
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.openapi import page_of
from odradek_gateway.rest.v2.instances import Instances
from odradek_gateway.settings import GatewaySettings

EMPTY = {"meta"}


class Page(HTMLParser):
    """Tags that are open, what they refer to, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in EMPTY:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("href", "src"):
                self.links.append(value or "")
            if name == "id":
                self.ids.add(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_docs_page_has_every_path_and_needs_nothing_else() -> None:
    unused = object()
    app = create_app(GatewaySettings(), cast("ClusterAccess", unused), cast("Instances", unused))
    openapi = app.openapi()
    page = Page()
    page.feed(page_of(openapi))
    assert page.open == []
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert set(page.links) - {"openapi.json"} <= {f"#{name}" for name in page.ids}
    for path in openapi["paths"]:
        assert path in page.text


def test_what_comes_from_a_schema_is_escaped() -> None:
    operation = {"tags": ["<b>"], "description": "<script>", "responses": {"200": {}}}
    page = page_of(
        {
            "info": {"title": "t", "description": "d"},
            "paths": {"/<i>": {"get": operation}},
            "components": {"schemas": {}},
        }
    )
    assert "<script>" not in page
    assert "<i>" not in page
    assert "<b>" not in page
