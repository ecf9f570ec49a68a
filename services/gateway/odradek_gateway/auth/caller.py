"""Who made the request that this task serves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

ACCESS: Final = "odradek.cluster"
"""Where a request's scope has the caller's access to the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`principal` as User:alice, empty where nobody is asked; `host` is the address it came from."""

    principal: str = ""
    host: str = ""


NOBODY = Caller()
_current: ContextVar[Caller] = ContextVar("odradek_http_caller", default=NOBODY)


def current_caller() -> Caller:
    """NOBODY where nobody is asked."""
    return _current.get()


@contextmanager
def serving(caller: Caller) -> Iterator[None]:
    """Within it this task serves that caller."""
    before = _current.set(caller)
    try:
        yield
    finally:
        _current.reset(before)
