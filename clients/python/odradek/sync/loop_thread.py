"""An event loop on a separate thread, for programs without an event loop.

A program may end without closing its client. So that no record is lost without a message, all open objects of a loop
thread are closed when the interpreter exits, newest first (see `close_open_threads`). A program ends when its main
thread and all other non-daemon threads have ended. Until then, these threads may use the client.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, TypeVar

from odradek.errors import ClientClosed, ForkedProcess

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)


class ClosedAtExit(Protocol):
    """A producer, consumer or client that uses a loop thread."""

    def close_at_exit(self) -> None:
        """Close within a limited time because the interpreter is exiting, and log what was lost."""


_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()


class LoopThread:
    """Runs coroutines for other threads, which wait for the results. Thread-safe. The thread starts in the constructor
    and ends in `close`.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.is_closed = False
        self.is_forked = False
        """Whether this process was forked after the thread was created. The thread then exists only in the parent
        process.
        """
        self.open_parts: dict[ClosedAtExit, None] = {}
        """The objects that use this thread and are not closed yet, oldest first."""
        # Held by `close`, and while work is submitted. So work that is submitted before `close` runs or is cancelled,
        # and later work is refused.
        self._gate = threading.Lock()
        self._thread.start()
        _threads.add(self)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop and wait for its result. KeyboardInterrupt cancels the coroutine.

        Raises:
            ClientClosed: the thread was closed before or during the call.
            ForkedProcess: the thread exists only in the parent process.
        """
        if not self.is_usable:
            work.close()
            self.refuse()
        if self.is_current:
            work.close()
            self.refuse_to_wait()
        with self._gate:
            if self.is_closed:
                work.close()
                self.refuse()
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except CancelledError:
            if not self.is_closed:
                raise
            raise ClientClosed("the client was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread, in a callback. Such a caller blocks the event loop while it waits."""
        return threading.current_thread() is self._thread

    def refuse_to_wait(self) -> NoReturn:
        """Raise the error for a callback that would wait for its own event loop, which would never end."""
        raise RuntimeError(
            "a callback of odradek.sync cannot wait for results of odradek.sync: wait in another thread"
        )

    @property
    def is_usable(self) -> bool:
        """Whether `run` can still run a coroutine."""
        return not (self.is_closed or self.is_forked)

    def refuse(self) -> NoReturn:
        """Raise the error that says why the thread no longer runs anything."""
        if self.is_forked:
            raise ForkedProcess("this client was created before the process was forked")
        raise ClientClosed("the client is closed")

    def call(self, function: Callable[[], T]) -> T:
        """Call a plain function on the event loop and wait for its result."""

        async def work() -> T:
            return function()

        return self.run(work())

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a plain function on the event loop, without waiting. Raises ClientClosed."""
        with self._gate:
            if self.is_closed:
                self.refuse()
            self.loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Stop the event loop and wait for the thread to end. May be called twice."""
        # `_gate` may be locked forever: the thread that held it during the fork does not exist in the forked process.
        if self.is_forked:
            return
        with self._gate:
            if self.is_closed:
                return
            self.is_closed = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        if pending:
            self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())


def _note_fork() -> None:
    for thread in _threads:
        thread.is_forked = True


def close_at_end_of_program() -> None:
    """Close all open objects, now or when the last thread of the program has ended.

    The interpreter calls this function once, at the end of the main thread. It must not wait for the other threads,
    because some of them may wait for the main thread, or for exit callbacks that run after this one.
    """
    if _other_threads():
        # Python 3.12.0 and 3.12.1 cannot start a thread at exit.
        with contextlib.suppress(RuntimeError):
            # The interpreter waits for this thread, because this thread is not a daemon.
            threading.Thread(target=_close_after_other_threads, name="odradek exit").start()
            return
    close_open_threads()


def _other_threads() -> list[threading.Thread]:
    """Return the threads that the interpreter waits for after the main thread: all non-daemon threads except this
    one.
    """
    present = (threading.main_thread(), threading.current_thread())
    return [t for t in threading.enumerate() if not t.daemon and t not in present]


def _close_after_other_threads() -> None:
    while threads := _other_threads():
        for thread in threads:
            thread.join()
    close_open_threads()


def close_open_threads() -> None:
    """Close the open clients, producers and consumers, newest first."""
    for thread in list(_threads):
        for part in reversed(list(thread.open_parts)):
            if not thread.is_usable:
                break
            try:
                part.close_at_exit()
            except Exception:
                _log.exception(
                    "Failed to close a client that was still open when the program ended"
                )
        thread.close()


os.register_at_fork(after_in_child=_note_fork)

# Callbacks of `atexit` run too late: no thread can be started any more, but closing may need one, such as for a login.
# So the callback is registered at `threading`, which runs its callbacks before it refuses new threads.
getattr(threading, "_register_atexit", atexit.register)(close_at_end_of_program)


class Facade(Generic[C_co]):
    """A synchronous object: the asynchronous object `core`, and the thread that runs it."""

    def __init__(self, thread: LoopThread, core: C_co) -> None:
        self._thread = thread
        self._core = core


def waits(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[C], P], T]:
    """Return a synchronous method that runs an asynchronous method and waits for its result."""

    @functools.wraps(method)
    def call(facade: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return facade._thread.run(method(facade._core, *args, **kwargs))

    return call


def calls(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[Facade[C], P], T]:
    """Return a method that calls a plain method of the asynchronous object on the thread of the event loop."""

    @functools.wraps(method)
    def call(facade: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return facade._thread.call(lambda: method(facade._core, *args, **kwargs))

    return call
