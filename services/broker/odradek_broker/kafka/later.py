"""Responses to Kafka requests that are sent after the handler has returned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

T = TypeVar("T")


class Later(Generic[T]):
    """A response that the handler delivers after it has returned, by calling `respond` once, on the event loop.

    This costs less than a future, and the response is sent in the same iteration of the event loop. The caller of the
    handler either sets `respond` or awaits this object. A response after the connection has closed is discarded.
    """

    __slots__ = ("respond",)

    def __init__(self) -> None:
        self.respond: Callable[[T], None] = _dropped

    def __await__(self) -> Generator[object, None, T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.respond = lambda response: None if future.done() else future.set_result(response)
        return (yield from future)


def _dropped(response: object) -> None:
    raise AssertionError(f"the handler called `respond` with {response} before it returned")
