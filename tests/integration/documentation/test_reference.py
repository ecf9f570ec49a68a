"""`make docs` builds the reference without a warning; it has every name and operation, and its
links are valid.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import odradek
from tests.integration.documentation.pages import ROOT


class Anchors(HTMLParser):
    """The anchors of a page, and its links."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.add(value or "")
            if name in ("href", "src") and value:
                self.links.append(value)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("reference")
    program = ROOT / "docs" / "reference.py"
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(program), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder


def test_the_sdk_has_every_public_name(reference: Path) -> None:
    page = Anchors(reference / "sdk" / "odradek.html")
    modules = {"errors", "serializers", "sync", "testing"}
    assert set(odradek.__all__) - modules <= page.ids
    for module in modules:
        assert (reference / "sdk" / "odradek" / f"{module}.html").is_file()


def test_rest_has_every_operation_and_needs_no_gateway(reference: Path) -> None:
    start = (reference / "rest" / "docs" / "start.js").read_text()
    (described,) = re.findall(r"^  spec: (.*),$", start, re.MULTILINE)
    paths = json.loads(described)["paths"]
    assert paths == json.loads((reference / "rest" / "openapi.json").read_text())["paths"]
    assert len(paths) > 40
    assert "url:" not in start.replace(described, "")


def test_links_lead_somewhere(reference: Path) -> None:
    pages = {path: Anchors(path) for path in reference.rglob("*.html")}
    assert len(pages) > 5
    dead = []
    for path, page in pages.items():
        for link in page.links:
            if "://" in link or link.startswith("data:"):
                continue
            name, _, place = link.partition("#")
            target = (path.parent / unquote(name)).resolve() if name else path
            known = pages[target].ids if target in pages else {""}
            if not target.is_file() or (place and unquote(place) not in known):
                dead.append(f"{path.relative_to(reference)}: {link}")
    assert not dead
