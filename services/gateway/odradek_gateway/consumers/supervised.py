"""Tasks that run as long as the process does: one that ends by an error tells who can do something about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def supervised(
    work: Coroutine[Any, Any, None], name: str, on_failure: Callable[[BaseException], object]
) -> asyncio.Task[None]:
    """Start it; `on_failure` gets the error that ends it, if one does. Cancelling it is not one."""
    task = asyncio.create_task(work, name=name)

    def ended(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            on_failure(error)

    task.add_done_callback(ended)
    return task
