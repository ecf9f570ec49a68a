"""Run one piece of asynchronous work of a command with a client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from odradek.cli.connection import open_client

if TYPE_CHECKING:
    from odradek.client import Client

Result = TypeVar("Result")


def with_client(bootstrap: str, work: Callable[[Client], Awaitable[Result]]) -> Result:
    """Connect, do it, close; the SDK's errors come through as they are."""
    import asyncio

    async def run() -> Result:
        async with client:
            await client.connect(10.0)
            return await work(client)

    client = open_client(bootstrap)
    return asyncio.run(run())
