"""A broker that measures the memory of its objects: on SIGUSR1 it adds a line with their bytes to
MEMORY_FILE.

The bytes are those that Python has allocated since the start (`tracemalloc`), after a full garbage
collection. They do not depend on how much memory the allocator returns to the system.
"""

from __future__ import annotations

import asyncio
import gc
import os
import runpy
import signal
import tracemalloc
from types import FrameType
from typing import Final

MEMORY_FILE: Final = "MEMORY_FILE"


def _measure(_signal: int, _frame: FrameType | None) -> None:
    gc.collect()
    size_bytes, _ = tracemalloc.get_traced_memory()
    with open(os.environ[MEMORY_FILE], "a") as lines:
        lines.write(f"{size_bytes}\n")


def _plant() -> None:
    from odradek_protocol.kafka.response_encoding import warm_up
    from odradek_runtime import lifecycle

    for _ in warm_up():
        pass
    lifecycle._loop_factory = lambda: asyncio.new_event_loop  # uvloop runs no handlers of signals
    tracemalloc.start(1)
    signal.signal(signal.SIGUSR1, _measure)


if __name__ == "__main__":
    _plant()
    runpy.run_module("odradek_broker", run_name="__main__")
