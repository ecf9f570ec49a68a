"""Long work on the event loop, in short pieces and in fair turns.

Work whose size a client chooses (decoding, answering or encoding thousands of items) never runs in
one piece. It asks its `Pace` after each item; after `SLICE_S` of the loop the pace lets it wait for
its next turn. One piece of all long work runs at a time, and `ITERATIONS_BETWEEN` iterations of the
loop lie between two pieces: a short request takes several iterations (its bytes arrive, a thread
writes them, the response leaves), and waits for about one slice in all of them together, however
many clients send long requests. Whose piece is next is decided by `turn_order`. Nobody is slowed
down while nobody else waits: it is an order, not a rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable
from time import perf_counter
from typing import Final, TypeVar

from odradek_runtime.budget.turn_order import SLICE_S, TurnOrder

T = TypeVar("T")
ITERATIONS_BETWEEN: Final = 12
PIECE_S_MAX: Final = 0.1  # counted for a piece at most: work may wait for others within one


class LoopTurns:
    """Gives turns, one in each iteration of the loop. For the event loop alone."""

    def __init__(self) -> None:
        self._order: TurnOrder[asyncio.Future[None]] = TurnOrder()
        self._is_giving = False
        self._iterations_left = 0

    def pace(self, owner: str) -> Pace:
        """For one piece of long work of that owner, which runs already."""
        return Pace(self, owner)

    async def turn(self, owner: str) -> None:
        """Wait for the owner's turn."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._order.wait(owner, mine)
        if not self._is_giving:
            self._is_giving = True
            loop.call_soon(self._give)
        await mine

    def spent(self, owner: str, seconds: float) -> None:
        """The owner's work took so long of the loop."""
        self._order.spent(owner, min(seconds, PIECE_S_MAX))

    def _give(self) -> None:
        if self._iterations_left > 0:
            # An iteration in which nobody else has work takes some microseconds.
            self._iterations_left -= 1
            asyncio.get_running_loop().call_soon(self._give)
            return
        self._iterations_left = ITERATIONS_BETWEEN
        while (ticket := self._order.next()) is not None:
            if not ticket.done():  # who was cancelled waits no more
                ticket.set_result(None)
                break
        self._is_giving = ticket is not None
        if self._is_giving:
            asyncio.get_running_loop().call_soon(self._give)


class Pace:
    """One long request's way of giving way to others. Its slice begins when it is made."""

    __slots__ = ("_owner", "_since", "_turns")

    def __init__(self, turns: LoopTurns, owner: str) -> None:
        self._turns = turns
        self._owner = owner
        self._since = perf_counter()

    @property
    def is_due(self) -> bool:
        """Whether the slice is used up: time for `turn`."""
        return perf_counter() - self._since >= SLICE_S

    async def turn(self) -> None:
        """Give way; return when the next slice begins."""
        self._turns.spent(self._owner, perf_counter() - self._since)
        await self._turns.turn(self._owner)
        self._since = perf_counter()

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Take the steps, with turns for others where they are due; what they return."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: T = done.value
                return result
            if perf_counter() - self._since >= SLICE_S:
                await self.turn()

    async def items(self, items: Iterable[T]) -> AsyncIterator[T]:
        """The items one after the other, with turns for others where they are due."""
        for item in items:
            yield item
            if perf_counter() - self._since >= SLICE_S:
                await self.turn()
