"""asyncio on simulated time: production coroutines run as part of one process of a seed.

Just enough of an event loop for code that waits on futures, queues, timers and task groups. It has
no selector and no threads: every callback is an event of the scheduler, delivered through its
process, so it waits while that is stopped and is gone when that is dead. An exception that no task
handles ends the seed.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.scheduler import SECOND, Process

_DRAIN_MAX = 10_000


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The loop of one process; `close` when that has ended."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._scheduler = process.scheduler
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._soon: dict[asyncio.Handle, None] = {}  # a task that never began must end, too
        self._draining: deque[asyncio.Handle] | None = None
        self._failure: BaseException | None = None
        self._is_closed = False

    # --- what the simulator calls ----------------------------------------------------------------

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it as a task of its own; whatever it raises ends the seed."""
        task = self.create_task(coroutine)
        task.add_done_callback(self._spawned_ended)
        return task

    def close(self) -> None:
        """The process is dead: unwind its tasks, in which nothing is heard from outside any more."""
        if self._is_closed:
            return
        self._is_closed = True
        self._draining = deque(self._soon)
        for task in list(self._tasks):
            task.cancel()
        for _ in range(_DRAIN_MAX):
            if not self._draining:
                break
            self._run(self._draining.popleft())
        self._tasks.clear()

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failure = self._failure or _leaf(error)

    def _run(self, handle: asyncio.Handle) -> None:
        self._soon.pop(handle, None)
        if handle.cancelled():
            return
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(before)
        if self._failure is not None and not self._is_closed:
            failure, self._failure = self._failure, None
            raise failure

    # --- what asyncio calls ----------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self._draining is not None:
            self._draining.append(handle)
        else:
            self._soon[handle] = None
            self._process.after(1, self._run, handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if self._draining is None:
            delay_us = round(when * SECOND) - self._scheduler.now_us
            self._process.after(max(delay_us, 1), self._run, handle)
        return handle

    def time(self) -> float:
        return self._scheduler.now_us / SECOND

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        if len(self._tasks) > 100:
            self._tasks = {task: None for task in self._tasks if not task.done()}
        self._tasks[task] = None
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            self._failure = self._failure or _leaf(error)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._is_closed

    def is_closed(self) -> bool:
        return self._is_closed

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass


def _leaf(error: BaseException) -> BaseException:
    """The first cause inside of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
