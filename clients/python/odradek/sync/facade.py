"""Methods that wait, made of methods that are awaited: same name, same arguments, same words."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from odradek.sync.loop_thread import LoopThread

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class Facade(Generic[C_co]):
    """A `core` of the async SDK, and the thread that it lives on."""

    def __init__(self, thread: LoopThread, core: C_co) -> None:
        self._thread = thread
        self._core = core


def waits(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[C], P], T]:
    """The method of a facade that runs this one of its core and waits for the result."""

    @functools.wraps(method)
    def call(facade: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return facade._thread.run(method(facade._core, *args, **kwargs))

    return call


def calls(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[Facade[C], P], T]:
    """The method of a facade that calls this one of its core, on the loop's thread."""

    @functools.wraps(method)
    def call(facade: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return facade._thread.call(lambda: method(facade._core, *args, **kwargs))

    return call
