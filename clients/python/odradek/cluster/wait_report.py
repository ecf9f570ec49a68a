"""Warnings about calls that take long. They name the cause of the wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final

from odradek.errors import OdradekError

WAIT_REPORT_S: Final = 3.0
"""After this time, a call that still waits logs why."""

NoteError = Callable[[OdradekError], None]
"""Takes the error of each attempt of a call that is repeated."""

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def reported_wait(what: str, reason: Callable[[], str]) -> Iterator[None]:
    """Log a warning if the block takes longer than WAIT_REPORT_S, with what it waits for and the reason. Further
    warnings follow if the reason changes, at most one each WAIT_REPORT_S.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    reported = ""

    timer: asyncio.TimerHandle

    def report() -> None:
        nonlocal timer, reported
        timer = loop.call_later(WAIT_REPORT_S, report)
        current = reason()
        if current != reported:
            reported = current
            log_wait(what, loop.time() - began_s, current)

    timer = loop.call_later(WAIT_REPORT_S, report)
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def reported_call(what: str, explain: Callable[[OdradekError | None], str]) -> Iterator[NoteError]:
    """Log a warning if the block takes longer than WAIT_REPORT_S, as `reported_wait` does. The block gets a function to
    which it passes the error of each attempt; `explain` returns the reason for the last error (None: no error yet).
    """
    last_error: OdradekError | None = None

    def note(error: OdradekError) -> None:
        nonlocal last_error
        last_error = error

    with reported_wait(what, lambda: explain(last_error)):
        yield note


def log_wait(what: str, waited_s: float, reason: str) -> None:
    _log.warning("Waiting for %s, for %.0f s so far: %s", what, waited_s, reason)
