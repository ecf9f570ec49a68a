"""Reads the fenced blocks of the documentation's pages, and lists which test runs those of each
page.
"""

from __future__ import annotations

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[3]
_FENCE: Final = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One fenced block: its language, its text and its line on the page."""

    language: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order; `page` is a path below the repository's root."""
    text = (ROOT / page).read_text()
    return [
        Block(found[1].strip(), found[2], text[: found.start()].count("\n") + 1)
        for found in _FENCE.finditer(text)
    ]


def script(page: str, *, heading: str = "") -> str:
    """Return all `sh` blocks of a page as one script, or those below one heading of the second level."""
    text = (ROOT / page).read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    if heading:
        (text,) = [section for section in sections if section.startswith(f"{heading}\n")]
    found = [match[2] for match in _FENCE.finditer(text) if match[1].strip() == "sh"]
    assert found, f"{page} has no commands below {heading!r}"
    return "".join(found)


async def run_part(program: str, **names: Any) -> None:
    """Run a part of a program on a page. `names` are the variables that the earlier parts of the program define."""
    source = f"async def part({', '.join(names)}):\n" + textwrap.indent(program, "    ")
    scope: dict[str, Any] = {}
    exec(source, scope)
    await asyncio.wait_for(scope["part"](**names), 10)
