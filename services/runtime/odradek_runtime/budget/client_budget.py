"""Limits for each client of a process: its shares of resources, its time on the event loop, its failed logins and its
audit log lines.

Each process has one `ClientBudget`, which all its listeners use (Kafka, gRPC and HTTP). So a client gets no second
share by using a second protocol. The limits cannot be turned off. They are far above the needs of a normal client, and
far below the resources of a process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from odradek_protocol.kafka.api_keys import ITEMS_MAX
from odradek_runtime.budget.loop_turns import LoopTurns
from odradek_runtime.budget.refusals import FailedLogins, RefusalLines
from odradek_runtime.budget.shares import Shares

_Line = deque[tuple["asyncio.Future[None]", int]]


class ShareLines:
    """A pool of one resource whose callers wait while too little of the resource is free.

    Each owner (`shares.owner_of`) has a queue of waiting callers. The queues are served in turn, so an owner whose
    share is used up does not delay other owners. Use the pool only on the event loop.
    """

    def __init__(self, shares: Shares) -> None:
        self.shares: Final = shares
        self._lines: dict[str, _Line] = {}

    @property
    def waiting(self) -> int:
        """The number of callers that wait for their amount."""
        return sum(map(len, self._lines.values()))

    @asynccontextmanager
    async def held(self, owner: str, amount: int) -> AsyncIterator[None]:
        """Reserve an amount of the resource while the `with` block runs. Wait first until the amount is free.

        An amount above the owner's whole share is reduced to that share. `Shares.has_room` would grant the whole amount
        to an idle owner, but only while the pool has that much free; callers of other owners could take whatever
        becomes free first, and this caller would wait for ever.
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
            # `_grant` has reserved the amount already, but this task was cancelled before it could continue.
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
            # An owner with waiting callers goes to the end of the order, so the next grant begins with another owner.
            else:
                self._lines[owner] = self._lines.pop(owner)


__all__ = ["ITEMS_MAX", "LONG_REQUEST_BYTES_MIN", "ClientBudget", "decoded_bytes"]

LONG_REQUEST_BYTES_MIN: Final = 4096
"""Requests of at least this size are decoded, handled and encoded in slices, between which other work runs
(`loop_turns`).
"""
DECODED_FACTOR: Final = 50
"""The most bytes of memory that one byte of a request takes after decoding. Only requests with many small items come
near this factor.
"""
_ITEM_BYTES: Final = 500


def decoded_bytes(request_bytes: int) -> int:
    """Return the memory that a request of this size may need once it is decoded."""
    return request_bytes + min(DECODED_FACTOR * request_bytes, _ITEM_BYTES * ITEMS_MAX)


class ClientBudget:
    """The limits that all listeners of one process share. Use this object only on the event loop."""

    def __init__(
        self,
        *,
        decoded_bytes_max: int = 256 << 20,
        decoded_bytes_owner_max: int = 64 << 20,
        proofs_max: int = 16,
        proofs_owner_max: int = 4,
    ) -> None:
        """Set the limits: `*_max` is for all clients together, `*_owner_max` for one owner.

        `decoded_*` limit the memory of long requests in progress (`decoded_bytes`). `proofs_*` limit the number of
        password checks in progress. The owner of a password check is an address, because the client has no principal
        yet.
        """
        self.turns = LoopTurns()
        self.decoded = ShareLines(
            Shares(total_max=decoded_bytes_max, owner_max=decoded_bytes_owner_max)
        )
        self.proofs = ShareLines(Shares(total_max=proofs_max, owner_max=proofs_owner_max))
        self.failed_logins = FailedLogins()
        self.refusals = RefusalLines()
