"""Background tasks that belong to an object, which starts and cancels them, and threads for blocking calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)


class BackgroundTasks:
    """The background tasks of one object. A TaskGroup would bind the tasks to an `async with` block instead.

    A task that raises an exception is a bug. The exception is logged with its traceback, and passed to the event loop's
    exception handler, which makes tests fail.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` until it ends or `stop` is called."""
        assert not self._is_stopped, f"{self._owner} is stopped"
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended. May be called twice. If one of the tasks calls this method,
        that task is not cancelled.
        """
        self._is_stopped = True
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("Background task failed: %s", task.get_name(), exc_info=error)
            task.get_loop().call_exception_handler(
                {"message": f"{task.get_name()} failed", "exception": error, "task": task}
            )


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function in a new thread, and return its result.

    No executor is used, nor `asyncio.to_thread`, because executors accept no calls after the main thread has ended.
    Clients still flush, log in and leave their groups at that time.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if outcome.done():  # The caller was cancelled.
            return
        if error is None:
            outcome.set_result(result)  # type: ignore[arg-type]  # T may include None.
        else:
            outcome.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = function(*args, **kwargs)
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # The loop was closed while the function ran.
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, name="odradek call", daemon=True).start()
    return await outcome
