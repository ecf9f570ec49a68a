"""A small thread pool for work that waits for the disk, so that the event loop does not have to wait.

Each function has a callback. The callbacks of all functions that have finished run in one callback of the event loop,
so that a group commit of many partitions wakes the loop once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from odradek_runtime.logs import event_log

T = TypeVar("T")
_log = event_log(__name__)


class Pool(Protocol):
    """Runs functions that block, for an event loop: in a thread pool, or on a simulated disk."""

    pending: int  # number of functions whose callback has not run yet

    def run(self, work: Callable[[], Any], on_done: Callable[[], None]) -> None:
        """Run `work`, which must not raise, outside of the event loop, and then `on_done` on the event loop."""

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` outside of the event loop. Return its result, or raise its exception."""

    async def idle(self) -> None:
        """Wait until no function runs and all callbacks have run."""

    def close(self) -> None:
        """Accept no further functions."""


class Threads(Protocol):
    """The methods of an executor that a DiskPool needs."""

    def submit(self, work: Callable[..., object], /, *args: Any) -> Any:
        """Call `work(*args)` later in a thread. Nobody uses the result of this method."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no further functions."""


def disk_threads(count: int) -> ThreadPoolExecutor:
    """Return an executor with `count` threads of the operating system, for a DiskPool."""
    return ThreadPoolExecutor(count, thread_name_prefix="disk")


class DiskPool:
    """Runs functions that block in threads. It belongs to the event loop in which it was created."""

    def __init__(self, threads: Threads) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._finished: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._is_woken = False
        self._is_idle = asyncio.Event()
        self.pending = 0

    def run(self, work: Callable[[], Any], on_done: Callable[[], None]) -> None:
        """Run `work`, which must not raise, in a thread, and then `on_done` on the event loop."""
        self.pending += 1
        self._threads.submit(self._do, work, on_done)

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread. Return its result, or raise its exception.

        If the caller is cancelled, `work` still runs to its end.
        """
        done: asyncio.Future[T] = self._loop.create_future()
        outcome: list[T] = []
        failure: list[BaseException] = []

        def guarded() -> None:
            try:
                outcome.append(work())
            except BaseException as error:
                failure.append(error)

        def settle() -> None:
            if done.cancelled():
                return
            if failure:
                done.set_exception(failure[0])
            else:
                done.set_result(outcome[0])

        self.run(guarded, settle)
        return await done

    async def idle(self) -> None:
        """Wait until no function runs and all callbacks have run."""
        while self.pending:
            self._is_idle.clear()
            await self._is_idle.wait()

    def close(self) -> None:
        """Accept no further functions. Functions that are running continue to their end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _do(self, work: Callable[[], Any], on_done: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            _log.error("Function on a disk thread raised an exception", exc=error)
        with self._lock:
            self._finished.append(on_done)
            if self._is_woken:
                return
            self._is_woken = True
        # `call_soon_threadsafe` raises RuntimeError if the event loop was closed. Then nothing waits for the callback.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        with self._lock:
            finished, self._finished = self._finished, deque()
            self._is_woken = False
        self.pending -= len(finished)
        for on_done in finished:
            try:
                on_done()
            except Exception as error:
                # The callback concerns one partition. The callbacks of other partitions must run, too.
                _log.error(
                    "Callback raised an exception after its disk operation had ended", exc=error
                )
        if not self.pending:
            self._is_idle.set()
