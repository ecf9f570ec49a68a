"""Splits long work on the event loop into pieces, and lets all other tasks run after each piece.

A topic may have thousands of partitions, and a cluster thousands of topics or groups. To process all of them in one
piece would block every other task of the program for a tenth of a second or more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")
ITEMS_PER_TURN: Final = 200
"""An item costs up to 20 us, so a piece takes a few milliseconds."""


async def in_turns(items: Iterable[T], every: int = ITEMS_PER_TURN) -> AsyncIterator[T]:
    """Iterate over the items. After every `every` items, other tasks of the event loop can run."""
    for number, item in enumerate(items, 1):
        yield item
        if number % every == 0:
            await asyncio.sleep(0)


async def slices_in_turns(
    items: Sequence[T], every: int = ITEMS_PER_TURN
) -> AsyncIterator[Sequence[T]]:
    """Iterate over slices of `every` items. Between two slices, other tasks of the event loop can run.

    Use this function where the work per item costs no more than a step of `in_turns` itself, such as for the records of
    a request.
    """
    for start in range(0, len(items), every):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + every] if len(items) > every else items


async def run_in_turns(work: Generator[None, None, R], every: int = ITEMS_PER_TURN) -> R:
    """Run a generator that yields after each item, and return its result. After every `every` items, other tasks of the
    event loop can run.
    """
    number = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: R = end.value
            return result
        number += 1
        if number % every == 0:
            await asyncio.sleep(0)
