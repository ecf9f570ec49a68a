"""Disk work in order, off the event loop; the first failure is the last thing that happens.

A job that raises may have left half of its bytes on the disk, and the page cache may have dropped
what it could not write: a later sync that succeeds proves nothing about it. So there is no retry
and no error to handle: `fatal` is called on the spot, on the disk's thread, and no later job runs
and no `done` is called, even where `fatal` returns (as it does in tests).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")
Fatal = Callable[[str, BaseException | None], None]


class DiskQueue(Protocol):
    """Runs jobs one after the other."""

    def submit(self, job: Callable[[], Result], done: Callable[[Result], None]) -> None:
        """Run `job`, later; then `done(result)` on the event loop. Jobs and calls keep order."""


class DiskThread:
    """The real one: a thread. Its queue is bounded by its users, who wait for `done`."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, fatal: Fatal) -> None:
        self._loop = loop
        self._fatal = fatal
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Result], done: Callable[[Result], None]) -> None:
        def run() -> None:
            result = job()
            self._loop.call_soon_threadsafe(done, result)

        self._jobs.put(run)

    async def close(self) -> None:
        """Finish what is queued, then end the thread."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._failed:
                continue
            try:
                job()
            except RuntimeError as error:
                if self._loop.is_closed():
                    return  # the process is ending: nobody is left to hear of it
                self._fail(error)
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._fatal("a write to the quorum's disk failed", error)
