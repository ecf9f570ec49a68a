"""One question to the cluster for each of many things, some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from odradek.errors import UnknownTopic
from odradek_gateway.rest.errors import RestError

AT_ONCE: Final = 16
T = TypeVar("T")
R = TypeVar("R")


async def ask_for_each(items: Iterable[T], ask: Callable[[T], Awaitable[R]]) -> list[R]:
    """The answers in the items' order, without those of items that were deleted meanwhile (404)."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> list[R]:
        async with room:
            try:
                return [await ask(item)]
            except UnknownTopic:
                return []
            except RestError as error:
                if error.status != 404:
                    raise
                return []

    return [answer for found in await asyncio.gather(*map(one, items)) for answer in found]
