"""The lifecycle of a process: event loop, signals, exit of the parent process, exit status.

`run_process(main)` runs `main(stop)` on uvloop. SIGTERM, SIGINT and the exit of the parent process set `stop`. A second
signal ends the process at once. An error with a remedy (`ProcessRefused`, `SettingsError`, `ListenRefused`,
`TlsRefused`) is printed as one line, any other error with its traceback. An uncaught exception in a thread stops the
process, because nothing else would do the work of that thread until a restart.

Nobody would kill a process that hangs after its parent has exited. So a watchdog ends the process if it has not
stopped in time, and writes the stack of each thread to standard error. The watchdog needs neither the event loop nor
the interpreter's lock (GIL).
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
    """The process cannot start or cannot continue. The message names the reason and the remedy."""


class StopRequest:
    """A request to stop the process. Tasks that must run until the stop await `wait`. Only the first `set` counts."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""
        self.failure: BaseException | None = None

    def set(self, reason: str, *, failure: BaseException | None = None) -> None:
        """Request a stop, unless one is already requested. `failure` is raised once `main` has returned."""
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
    """Run `main` on a new event loop until it returns, and return the exit status of the process.

    With `exit_with_parent`, the process stops when its parent exits, and is ended by force if it has not stopped after
    `orphan_s_max` seconds.
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
            lambda: loop.call_soon_threadsafe(stop.set, "the parent process exited"), orphan_s_max
        )

    def on_thread_failed(failed: threading.ExceptHookArgs) -> None:
        name = failed.thread.name if failed.thread is not None else "(unnamed)"
        _log.error("Thread failed; the process stops", thread=name, exc=failed.exc_value)
        with contextlib.suppress(RuntimeError):  # the event loop may be closed already
            reason = f"thread {name} failed"
            loop.call_soon_threadsafe(lambda: stop.set(reason, failure=failed.exc_value))

    threading.excepthook = on_thread_failed
    await main(stop)
    if stop.failure is not None:
        raise stop.failure
    return EXIT_OK


def _watch_parent(on_gone: Callable[[], object], orphan_s_max: float) -> None:
    """Call `on_gone` in a thread when standard input ends. Standard input is a pipe whose other end only the parent has
    open, so the parent has then exited.
    """

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        faulthandler.dump_traceback_later(orphan_s_max, exit=True)
        with contextlib.suppress(RuntimeError):  # the event loop may be closed already
            on_gone()

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def announce_ready(**fields: object) -> None:
    """Report to the parent process that this process is ready: print one line of JSON with `fields`."""
    sys.stdout.buffer.write(orjson.dumps({"event": "ready", **fields}) + b"\n")
    sys.stdout.buffer.flush()


async def bounded(work: Awaitable[object], timeout_s: float, what: str) -> bool:
    """Await `work` for at most `timeout_s`, and return whether it ended in time.

    Otherwise cancel the work and log a warning that the process stopped waiting for `what`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError:
        _log.warning(
            "Stopped waiting because the time limit was reached", what=what, timeout_s=timeout_s
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
