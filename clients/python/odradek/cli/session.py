"""Run one piece of asynchronous work of a command with a client."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from odradek.cli.connection import connect_s_max, open_client
from odradek.cli.output import EXIT_TERMINATED, EXIT_USAGE, fail

if TYPE_CHECKING:
    from odradek.client import Client

Result = TypeVar("Result")
PATIENCE_S: Final = 3.0
"""How long a command waits before it says what it waits for."""


def with_client(
    bootstrap: str, work: Callable[[Client], Awaitable[Result]], *, is_quick: bool = True
) -> Result:
    """Connect, do the work, close; the SDK's errors come through as they are.

    A command that `is_quick` says after PATIENCE_S, once, what it still waits for; others wait for
    records, or say it themselves, and only connecting is expected to be quick.
    SIGTERM ends the command as Ctrl-C does, in order: what was sent is flushed, groups are left.
    """
    import asyncio

    async def explain() -> None:
        await asyncio.sleep(PATIENCE_S)
        print(f"odradek: waiting: {client.explain_waiting()}", file=sys.stderr)

    async def run() -> Result:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        explaining = asyncio.create_task(explain())
        try:
            async with client:
                await client.connect(connect_s_max())
                if not is_quick:
                    explaining.cancel()
                return await work(client)
        finally:
            explaining.cancel()

    client = open_client(bootstrap)
    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        sys.exit(EXIT_TERMINATED)


async def chosen_partitions(
    client: Client, topics: list[str], chosen: list[int] | None
) -> list[tuple[str, int]]:
    """All partitions of these topics, or those of the numbers given; ends the command for one that is not there."""
    named = []
    for name in topics:
        described = await client.admin.describe_topic(name)
        there = [p.partition for p in described.partitions]
        for index in chosen if chosen is not None else there:
            if index not in there:
                fail(f"{name} has partitions 0 to {len(there) - 1}, not {index}", status=EXIT_USAGE)
            named.append((name, index))
    return named
