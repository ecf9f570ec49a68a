"""The example programs in the documentation run exactly as they are printed."""

from __future__ import annotations

import asyncio
import re
import textwrap
import types
from pathlib import Path

import pytest

import odradek
from odradek.testing import MemoryCluster

README = Path(__file__).parents[3] / "clients/python/README.md"


class _EnoughSeen(Exception):
    """Raised to end a program that reads for ever."""


def readme_programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.S)


def docstring_program() -> str:
    lines = (odradek.__doc__ or "").splitlines()
    return textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))


@pytest.mark.parametrize("program", [readme_programs()[0], docstring_program()])
async def test_the_first_program_sends_a_record_and_reads_it_back(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = MemoryCluster(auto_create_topics=True)
    real = odradek.Client

    def client(bootstrap: str) -> odradek.Client:
        assert bootstrap == "localhost:9090"
        return real(cluster.bootstrap, transport=cluster.transport())

    printed: list[tuple[object, ...]] = []

    def note(*things: object) -> None:
        printed.append(things)
        if len(things) == 3:
            raise _EnoughSeen

    module = types.SimpleNamespace(Client=client)
    source = "async def main():\n" + textwrap.indent(program, "    ")
    scope: dict[str, object] = {"odradek": module, "print": note}
    exec(source, scope)
    with pytest.raises(_EnoughSeen):
        await asyncio.wait_for(scope["main"](), 10)  # type: ignore[operator]
    assert printed[-1] == (0, b"world", b"hello")


async def test_the_levers_that_the_readme_names_exist() -> None:
    program = readme_programs()[1]
    assert "MemoryCluster(brokers=3)" in program
    for name in ("kill", "freeze", "move_leader", "fail_next", "lose_next_answers", "lose_records"):
        assert name in program
        assert callable(getattr(MemoryCluster, name))
