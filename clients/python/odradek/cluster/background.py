"""Background tasks that belong to an object, which starts and cancels them, and threads for calls that block.

A failure of a task is always reported.
"""

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
    """The tasks of one owner. A TaskGroup would bind tasks to an `async with` block; these tasks are bound to an
    object.

    A task that raises is a bug: it is logged with its trace and passed to the loop's exception handler, which
    makes tests fail.
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
        """Cancel all tasks and wait until they have ended. May be called twice. If one of the tasks calls it, that task
        goes on.
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
    """Call a function that blocks in a new thread, and return its result.

    Executors, and with them `asyncio.to_thread`, refuse all calls from the end of the main thread on. Clients still
    flush, log in and leave their groups then.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if outcome.done():  # the caller was cancelled
            return
        if error is None:
            outcome.set_result(result)  # type: ignore[arg-type]  # T may be None itself
        else:
            outcome.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = function(*args, **kwargs)
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, name="odradek call", daemon=True).start()
    return await outcome
