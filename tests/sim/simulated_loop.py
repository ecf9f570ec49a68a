"""An event loop for asyncio on simulated time: production coroutines run as part of one process of a seed.

It supports only code that waits for futures, queues, timers and task groups; it has no selector and no threads. Its
iterations and timers are events of the scheduler, which are delivered through its process: they wait while the process
is stalled, and are dropped when it has ended. An exception that no task handles ends the seed.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Self

from tests.sim.scheduler import SECOND, Process, ProcessKilled

_DRAIN_MAX = 10_000


class SimulatedHandle:
    """A callback that is due now or later. It has the part of asyncio.Handle that is used."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.is_cancelled


class _NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set, such as that of asyncio.TaskGroup, does not depend on its memory address."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, number: int, **arguments: Any) -> None:
        self._number = number  # set before super().__init__, which adds the task to a set
        super().__init__(coro, **arguments)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The event loop of one process. Call `close` when the process has ended."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._scheduler = process.scheduler
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._tasks_swept_at = 100
        self._tasks_made = 0
        self._ready: deque[SimulatedHandle] = deque()
        self._is_turn_due = False
        self._failure: BaseException | None = None
        self._is_closed = False

    @classmethod
    def of(cls, process: Process) -> Self:
        """Return the loop of a process. It has the methods of an event loop that the production code calls."""
        return cls(process)

    # --- called by the simulator ------------------------------------------------------------------

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a new task. An exception in it ends the seed."""
        task = self.create_task(coroutine)
        task.add_done_callback(self._spawned_ended)
        return task

    def close(self) -> None:
        """Cancel and finish the tasks of the dead process. They receive nothing from outside any more."""
        if self._is_closed:
            return
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        for _ in range(_DRAIN_MAX):
            if not self._ready:
                break
            self._run(self._ready.popleft())
        self._tasks.clear()

    def run_here(self, action: Callable[..., Any], *args: Any) -> Any:
        """Call a function as a callback of this loop."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return action(*args)
        finally:
            events._set_running_loop(before)

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        leaf = _leaf(error)
        if not isinstance(leaf, ProcessKilled):
            self._failure = self._failure or leaf

    def _turn(self) -> None:
        """Run the callbacks that were ready when this iteration began. Callbacks that become ready later run in the
        next iteration.
        """
        self._is_turn_due = False
        ready, process = self._ready, self._process
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                if not ready:
                    break
                self._call(ready.popleft())
                if not process.is_alive:
                    return
        finally:
            events._set_running_loop(before)
        if ready:
            self._wake()

    def _wake(self) -> None:
        if not self._is_turn_due and not self._is_closed:
            self._is_turn_due = True
            self._scheduler.deliver_after(1, self._process, self._turn, ())

    def _run(self, handle: SimulatedHandle) -> None:
        if handle.is_cancelled:
            return
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            self._call(handle)
        finally:
            events._set_running_loop(before)

    def _call(self, handle: SimulatedHandle) -> None:
        """Run a callback. This loop must be the running loop."""
        if handle.is_cancelled:
            return
        try:
            handle.context.run(handle.callback, *handle.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._failed(error)
        if self._failure is not None and not self._is_closed:
            failure, self._failure = self._failure, None
            raise failure

    # --- called by asyncio ------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimulatedHandle:
        handle = SimulatedHandle(callback, args, context)
        self._ready.append(handle)
        if not self._is_turn_due and not self._is_closed:
            self._is_turn_due = True
            self._scheduler.deliver_after(1, self._process, self._turn, ())
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimulatedHandle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimulatedHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimulatedHandle:
        handle = SimulatedHandle(callback, args, context)
        if not self._is_closed:
            scheduler = self._scheduler
            delay_us = round(when * SECOND) - scheduler.now_us
            scheduler.deliver_after(max(delay_us, 1), self._process, self._run, (handle,))
        return handle

    def time(self) -> float:
        return self._scheduler.now_us / SECOND

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        self._tasks_made += 1
        task = _NumberedTask(coro, number=self._tasks_made, loop=self, name=name, context=context)
        if len(self._tasks) > self._tasks_swept_at:
            self._tasks = {task: None for task in self._tasks if not task.done()}
            self._tasks_swept_at = 2 * len(self._tasks) + 100
        self._tasks[task] = None
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            self._failed(error)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._is_closed

    def is_closed(self) -> bool:
        return self._is_closed


def _leaf(error: BaseException) -> BaseException:
    """Return the first exception inside of exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
