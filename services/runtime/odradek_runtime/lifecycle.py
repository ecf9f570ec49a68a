"""The lifecycle of a process: the event loop, signals, the parent's end, one exit status.

`run_process(main)` runs `main(stop)` on uvloop; `stop` is set by SIGTERM, SIGINT or the parent's
end. A second signal ends the process at once. Errors that have a remedy (`ProcessRefused` and the
like) are printed as one line, everything else with its traceback. A thread that ends by an uncaught
error ends the process too: its work is no longer done, and a restart helps.

A process whose parent is gone has no one to kill it. So a watchdog that needs neither the event loop nor the
interpreter's lock ends an orphan that did not stop in time, whatever it is busy with, and writes the stack of
each thread to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import orjson

from odradek_runtime.listeners import ListenRefused
from odradek_runtime.logs import event_log
from odradek_runtime.settings import SettingsError
from odradek_runtime.tls import TlsRefused

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
ORPHAN_S_MAX: Final = 30.0
_log = event_log(__name__)


class ProcessRefused(RuntimeError):
    """The process cannot start or continue; the message names the reason and the remedy."""


class StopRequest:
    """A request to stop the process. It is set once, with a reason; tasks that run for ever wait for it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""
        self.failure: BaseException | None = None

    def set(self, reason: str, *, failure: BaseException | None = None) -> None:
        """Request a stop. The first reason counts; a `failure` is raised when the process ends."""
        if not self._event.is_set():
            self.reason = reason
            self.failure = failure
            self._event.set()

    async def wait(self) -> None:
        """Wait until a stop is requested."""
        await self._event.wait()


def run_process(
    main: Callable[[StopRequest], Coroutine[Any, Any, None]],
    *,
    program: str,
    exit_with_parent: bool = False,
    orphan_s_max: float = ORPHAN_S_MAX,
) -> int:
    """Run `main` until it returns, and return the exit status.

    With `exit_with_parent` the process ends within `orphan_s_max` of its parent, by force if necessary.
    """
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_supervise(main, exit_with_parent, orphan_s_max))
    except (ProcessRefused, SettingsError, ListenRefused, TlsRefused) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except BaseExceptionGroup as group:
        refused = _find_refusal(group)
        if refused is None:
            raise
        print(f"{program}: {refused}", file=sys.stderr)
        return EXIT_FAILED


async def _supervise(
    main: Callable[[StopRequest], Coroutine[Any, Any, None]],
    exit_with_parent: bool,
    orphan_s_max: float,
) -> int:
    stop = StopRequest()
    loop = asyncio.get_running_loop()
    is_second = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal is_second
        if is_second:
            os._exit(128 + number)
        is_second = True
        stop.set(f"signal {number.name}")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    if exit_with_parent:
        _watch_parent(
            lambda: loop.call_soon_threadsafe(stop.set, "the parent is gone"), orphan_s_max
        )

    def on_thread_failed(failed: threading.ExceptHookArgs) -> None:
        name = failed.thread.name if failed.thread is not None else "(unnamed)"
        _log.error("Thread failed; the process stops", thread=name, exc=failed.exc_value)
        with contextlib.suppress(RuntimeError):  # the event loop may have ended before
            reason = f"thread {name} failed"
            loop.call_soon_threadsafe(lambda: stop.set(reason, failure=failed.exc_value))

    threading.excepthook = on_thread_failed
    await main(stop)
    if stop.failure is not None:
        raise stop.failure
    return EXIT_OK


def _watch_parent(on_gone: Callable[[], object], orphan_s_max: float) -> None:
    """Call `on_gone` at the end of standard input, which means that the parent has ended, normally or by a crash."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        faulthandler.dump_traceback_later(orphan_s_max, exit=True)
        with contextlib.suppress(RuntimeError):  # the event loop may have ended before
            on_gone()

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def announce_ready(**fields: object) -> None:
    """Tell the parent process that this process serves, by one line of JSON on standard output."""
    sys.stdout.buffer.write(orjson.dumps({"event": "ready", **fields}) + b"\n")
    sys.stdout.buffer.flush()


async def bounded(work: Awaitable[object], timeout_s: float, what: str) -> bool:
    """Await `work` for at most `timeout_s`. Returns False, after a warning, if it took longer."""
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError:
        _log.warning(
            "Stopped waiting, because the time limit was reached", what=what, timeout_s=timeout_s
        )
        return False
    return True


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # the module does not exist on Windows
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _find_refusal(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    for error in group.exceptions:
        if isinstance(error, ProcessRefused | SettingsError | ListenRefused | TlsRefused):
            return error
        if isinstance(error, BaseExceptionGroup) and (refusal := _find_refusal(error)) is not None:
            return refusal
    return None
