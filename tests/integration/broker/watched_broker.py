"""Runs a program of Odradek whose event loop reports how long it was blocked in one piece, in CPU
time of its thread.

WATCHED_PROGRAM names the program; the default is a broker. CPU time is used, so that a busy machine
does not matter. Each callback that took `HELD_S_MIN` or more is a line in the file that HELD_FILE
names. The line has, separated by tabs: the seconds; the seconds of Python's garbage collector among
them; and the callback, or, if it took longer, the functions that were running when samples were
taken each `LOOK_S` of CPU time.
"""

from __future__ import annotations

import asyncio
import gc
import os
import runpy
import signal
from collections import Counter
from time import thread_time
from types import FrameType
from typing import Any, Final

HELD_S_MIN: Final = 0.002
HELD_FILE: Final = "HELD_FILE"
WATCHED_PROGRAM: Final = "WATCHED_PROGRAM"
LOOK_S: Final = 0.004
LONG_S: Final = 0.010
_FRAMES_MAX: Final = 4


def _plant() -> None:
    from odradek_protocol.kafka.response_encoding import warm_up
    from odradek_runtime import lifecycle

    for _ in warm_up():  # a broker generates its codecs in the background, during its first minute
        pass
    held = os.open(os.environ[HELD_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    original = asyncio.Handle._run

    collecting = began_collecting = 0.0

    def collected(phase: str, _: Any) -> None:
        nonlocal collecting, began_collecting
        if phase == "start":
            began_collecting = thread_time()
        else:
            collecting += thread_time() - began_collecting

    began, seen = 0.0, Counter[str]()

    def look(_: int, frame: FrameType | None) -> None:
        if thread_time() - began >= LONG_S:
            seen[_stack(frame)] += 1

    def run(self: Any) -> None:
        nonlocal collecting, began
        collecting = 0.0
        seen.clear()
        began = thread_time()
        original(self)
        seconds = thread_time() - began
        if seconds >= HELD_S_MIN:
            what = " ".join(repr(self).split())
            if seen:
                what = " | ".join(stack for stack, _ in seen.most_common(2))
            os.write(held, f"{seconds:.6f}\t{collecting:.6f}\t{what:.300}\n".encode())

    gc.callbacks.append(collected)
    signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, LOOK_S, LOOK_S)

    asyncio.Handle._run = run  # type: ignore[method-assign]
    asyncio.TimerHandle._run = run  # type: ignore[method-assign]
    lifecycle._loop_factory = lambda: asyncio.new_event_loop  # uvloop's handles cannot be watched


def _stack(frame: FrameType | None) -> str:
    names: list[str] = []
    while frame is not None and len(names) < _FRAMES_MAX:
        names.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(names)


if __name__ == "__main__":
    _plant()
    runpy.run_module(os.environ.get(WATCHED_PROGRAM, "odradek_broker"), run_name="__main__")
