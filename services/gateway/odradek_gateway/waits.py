"""Waiting of requests for records, to come or to be sent: it ends when the gateway stops.

Whoever waits for records to read is answered at once with what there is. Streams of records are read on for half
of the time that requests have to end; what is left is for acknowledging what was taken from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator


class Waits:
    """One a process; on the event loop."""

    def __init__(self, *, shutdown_s: float) -> None:
        """`shutdown_s` is the time that requests at work have to end."""
        self.is_stopping = False
        self._shutdown_s = shutdown_s
        self._polls_end_s = self._streams_end_s = math.inf  # on the loop's clock
        self._polls: set[asyncio.Timeout] = set()
        self._streams: set[asyncio.Timeout] = set()

    @contextlib.asynccontextmanager
    async def long_poll(self, timeout_s: float) -> AsyncIterator[None]:
        """Within it a route may wait; TimeoutError when the time is up or the gateway stops."""
        until_s = min(asyncio.get_running_loop().time() + timeout_s, self._polls_end_s)
        async with asyncio.timeout_at(until_s) as waiting, _among(self._polls, waiting):
            yield

    @contextlib.asynccontextmanager
    async def stream_read(self, idle_s_max: float) -> AsyncIterator[None]:
        """Within it a route may wait for more of a stream; TimeoutError when none comes or the gateway stops."""
        until_s = min(asyncio.get_running_loop().time() + idle_s_max, self._streams_end_s)
        async with asyncio.timeout_at(until_s) as waiting, _among(self._streams, waiting):
            yield

    def stop(self) -> None:
        """The process stops."""
        self.is_stopping = True
        self._polls_end_s = asyncio.get_running_loop().time()
        self._streams_end_s = self._polls_end_s + self._shutdown_s / 2
        for waiting, end_s in (
            *((poll, self._polls_end_s) for poll in self._polls),
            *((stream, self._streams_end_s) for stream in self._streams),
        ):
            waiting.reschedule(min(waiting.when() or math.inf, end_s))


@contextlib.asynccontextmanager
async def _among(
    all_waiting: set[asyncio.Timeout], waiting: asyncio.Timeout
) -> AsyncIterator[None]:
    all_waiting.add(waiting)
    try:
        yield
    finally:
        all_waiting.discard(waiting)
