"""Waiting for a client's sake ends when the client goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import Request
from starlette.requests import ClientDisconnect


@contextlib.asynccontextmanager
async def while_connected(request: Request) -> AsyncIterator[None]:
    """What is within is cancelled as soon as the client closes its connection; its body must have been read.

    Raises:
        ClientDisconnect: it did.
    """
    loop = asyncio.get_running_loop()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        within.reschedule(loop.time())

    try:
        async with asyncio.timeout(None) as within:
            watching = asyncio.create_task(watch(), name="is the client there")
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        if not within.expired():
            raise
        raise ClientDisconnect from None
