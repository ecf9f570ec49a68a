"""A pool that is waited for: who finds no room stands in line until others give back.

Each owner has a line of its own, first come, first served; the lines are looked at in turn, so an
owner whose share is used up holds up nobody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from odradek_runtime.budget.shares import Shares

_Line = deque[tuple["asyncio.Future[None]", int]]


class ShareLines:
    """Shares and those who wait for one. For the event loop alone."""

    def __init__(self, shares: Shares) -> None:
        self.shares: Final = shares
        self._lines: dict[str, _Line] = {}

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return sum(map(len, self._lines.values()))

    @asynccontextmanager
    async def held(self, owner: str, amount: int) -> AsyncIterator[None]:
        """Hold so much while the body runs; wait for it first where there is no room.

        More than an owner's share counts as the whole share, or it would wait for ever.
        """
        amount = min(amount, self.shares.owner_max)
        if owner in self._lines or not self.shares.has_room(owner, amount):
            await self._wait(owner, amount)
        else:
            self.shares.take(owner, amount)
        try:
            yield
        finally:
            self.shares.give_back(owner, amount)
            self._grant()

    async def _wait(self, owner: str, amount: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(owner, deque()).append((granted, amount))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.shares.give_back(owner, amount)
            self._grant()
            raise

    def _grant(self) -> None:
        for owner in tuple(self._lines):
            line = self._lines[owner]
            while line:
                granted, amount = line[0]
                if not granted.done():
                    if not self.shares.has_room(owner, amount):
                        break
                    self.shares.take(owner, amount)
                    granted.set_result(None)
                line.popleft()
            if not line:
                del self._lines[owner]
                # The next grant begins with another owner.
            else:
                self._lines[owner] = self._lines.pop(owner)
