"""Long requests in turns with all others: one of 131,072 names kept a broker's loop busy for seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
AT_ONCE: Final = 256  # of them; some ms


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items; everybody else has a turn after every `AT_ONCE` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
