"""Divides long work on the event loop into short pieces that run in fair turns.

Work whose size a client chooses, such as decoding or encoding thousands of items, never runs in one piece. The code
that does such work checks its `Pace` after each item. Once the work has used the event loop for `SLICE_S`, it waits
for its next turn. `turn_order` decides whose piece runs next.

Between any two pieces, even of different clients, the event loop makes `ITERATIONS_BETWEEN` iterations. A short request
takes several iterations: its bytes arrive, a thread writes them, the response is sent. So a short request is delayed by
about one slice in all, however many clients send long requests. Turns only order the work and do not limit its rate:
long work that runs alone hardly takes longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable
from time import perf_counter
from typing import Final, TypeVar

from odradek_runtime.budget.turn_order import SLICE_S, TurnOrder

T = TypeVar("T")
ITERATIONS_BETWEEN: Final = 12
# At most this time is charged to the owner of a request for a piece, because the measured time may include waits.
PIECE_S_MAX: Final = 0.1


class LoopTurns:
    """Runs pieces of long work in turn, with ITERATIONS_BETWEEN iterations of the event loop between two pieces.

    Use this object only on the event loop.
    """

    def __init__(self) -> None:
        self._order: TurnOrder[asyncio.Future[None]] = TurnOrder()
        self._is_giving = False
        self._iterations_left = 0

    def pace(self, owner: str) -> Pace:
        """Return a new `Pace` for a long request that this owner (`shares.owner_of`) has begun."""
        return Pace(self, owner)

    async def turn(self, owner: str) -> None:
        """Wait until the owner may run its next piece of work."""
        loop = asyncio.get_running_loop()
        ticket: asyncio.Future[None] = loop.create_future()
        self._order.wait(owner, ticket)
        if not self._is_giving:
            self._is_giving = True
            loop.call_soon(self._give)
        await ticket

    def spent(self, owner: str, seconds: float) -> None:
        """Charge the owner for the time in which its work kept the event loop busy."""
        self._order.spent(owner, min(seconds, PIECE_S_MAX))

    def _give(self) -> None:
        if self._iterations_left > 0:
            # These iterations are cheap: an iteration without other work takes a few microseconds.
            self._iterations_left -= 1
            asyncio.get_running_loop().call_soon(self._give)
            return
        self._iterations_left = ITERATIONS_BETWEEN
        while (ticket := self._order.next()) is not None:
            if not ticket.done():  # the future of a cancelled task is done already
                ticket.set_result(None)
                break
        self._is_giving = ticket is not None
        if self._is_giving:
            asyncio.get_running_loop().call_soon(self._give)


class Pace:
    """Divides one long request into slices. The first slice begins when this object is created."""

    __slots__ = ("_owner", "_since", "_turns")

    def __init__(self, turns: LoopTurns, owner: str) -> None:
        self._turns = turns
        self._owner = owner
        self._since = perf_counter()

    @property
    def is_due(self) -> bool:
        """Whether the current slice is used up. If so, the caller must await `turn`."""
        return perf_counter() - self._since >= SLICE_S

    async def turn(self) -> None:
        """End the current slice, let other work run, and return when the next slice begins."""
        self._turns.spent(self._owner, perf_counter() - self._since)
        await self._turns.turn(self._owner)
        self._since = perf_counter()

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Run a generator to its end and return its result. Let other work run whenever a slice is used up."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: T = done.value
                return result
            if perf_counter() - self._since >= SLICE_S:
                await self.turn()

    async def items(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items. Let other work run between two items whenever a slice is used up."""
        for item in items:
            yield item
            if perf_counter() - self._since >= SLICE_S:
                await self.turn()
