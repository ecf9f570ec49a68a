"""The example programs in the documentation run exactly as they are printed."""

from __future__ import annotations

import asyncio
import re
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

import odradek
from odradek import sync
from odradek.testing import MemoryCluster
from tests.integration.documentation.pages import blocks, run_part

TRANSACTIONS = "docs/transactions.md"
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
    cluster = MemoryCluster()
    cluster.create_topic("greetings")
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


def test_the_test_that_the_readme_prints_passes_and_its_levers_exist() -> None:
    program = readme_programs()[1]
    scope: dict[str, Any] = {}
    exec(program, scope)
    scope["test_my_service"]()
    for name in ("kill", "freeze", "move_leader", "fail_next", "lose_next_answers", "lose_records"):
        assert name in program
        assert callable(getattr(MemoryCluster, name))


@pytest.fixture
def priced() -> MemoryCluster:
    """Return a cluster with the topics of docs/transactions.md and one record to read."""
    cluster = MemoryCluster()
    for topic in ("orders", "payments", "priced-orders", "totals"):
        cluster.create_topic(topic)
    with (
        sync.Client(cluster.bootstrap, transport=cluster.transport()) as client,
        client.producer() as producer,
    ):
        producer.send("orders", b"7", key=b"42")
    return cluster


async def test_the_programs_about_transactions_run(priced: MemoryCluster) -> None:
    write, transform, stage = [b.text for b in blocks(TRANSACTIONS) if b.language == "python"]
    async with priced.client() as client:
        await run_part(write, client=client)
        assert priced.log("payments", 0).log_end_offset == 2  # a record and a marker
        async with (
            client.consumer("orders", group="prices", auto_offset_reset="earliest") as consumer,
            client.producer(transactional_id="prices-1") as producer,
        ):
            records = await consumer.getmany(timeout_ms=5_000)
            offsets = {(record.topic, record.partition): record.offset + 1 for record in records}
            await run_part(
                transform,
                producer=producer,
                consumer=consumer,
                records=records,
                offsets=offsets,
                price=lambda value: value,
            )
            (committed,) = (await consumer.committed(offsets)).values()
        assert committed is not None
        assert priced.log("priced-orders", 0).log_end_offset == len(records) + 1
        await run_part(stage, client=client)
        assert priced.log("totals", 0).log_end_offset == 2
