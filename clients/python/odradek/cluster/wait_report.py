"""Warnings about calls that take long. They name the cause of the wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Final

from odradek.errors import OdradekError

WAIT_REPORT_S: Final = 3.0
"""After this time, a call that still waits logs why."""
REPEATED_REPORT_S: Final = 15.0
NoteError = Callable[[OdradekError], None]
"""Takes the error of each attempt of a call that is repeated."""

LOGGED_MAX: Final = 1_000
_logged_s: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], float]] = (
    weakref.WeakKeyDictionary()
)
"""For each event loop, when it last logged a wait: by the thing that was waited for, and the reason."""
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def reported_wait(what: str, reason: Callable[[], str], *, waited_s: float = 0.0) -> Iterator[None]:
    """Log a warning with the reason if the block, which waits for `what`, takes longer than WAIT_REPORT_S.

    A warning follows WAIT_REPORT_S or more later if the reason has changed, otherwise after REPEATED_REPORT_S. If many
    calls wait for the same thing for the same reason, only one of them logs the wait. `waited_s` is the time that the
    caller had waited before the block.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time() - waited_s
    reported, reported_s = "", -math.inf

    timer: asyncio.TimerHandle

    def report() -> None:
        nonlocal timer, reported, reported_s
        timer = loop.call_later(WAIT_REPORT_S, report)
        current = reason()
        if current != reported or loop.time() >= reported_s + REPEATED_REPORT_S:
            reported, reported_s = current, loop.time()
            if _is_news(loop, what, current):
                log_wait(what, loop.time() - began_s, current)

    timer = loop.call_later(WAIT_REPORT_S, report)
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def reported_call(
    what: str, explain: Callable[[OdradekError | None], str], *, waited_s: float = 0.0
) -> Iterator[NoteError]:
    """Log a warning if the block takes longer than WAIT_REPORT_S, as `reported_wait` does. The block gets a function to
    which it passes the error of each attempt; `explain` returns the reason for the last error (None: no error yet).
    """
    last_error: OdradekError | None = None

    def note(error: OdradekError) -> None:
        nonlocal last_error
        last_error = error

    with reported_wait(what, lambda: explain(last_error), waited_s=waited_s):
        yield note


def _is_news(loop: asyncio.AbstractEventLoop, what: str, reason: str) -> bool:
    """Return whether no call of this event loop has logged this wait and reason within WAIT_REPORT_S."""
    logged_s = _logged_s.setdefault(loop, {})
    is_news = loop.time() >= logged_s.get((what, reason), -math.inf) + WAIT_REPORT_S
    if is_news:
        if len(logged_s) >= LOGGED_MAX:
            logged_s.clear()
        logged_s[what, reason] = loop.time()
    return is_news


def log_wait(what: str, waited_s: float, reason: str) -> None:
    _log.warning("Waiting for %s, for %.0f s so far: %s", what, waited_s, reason)
