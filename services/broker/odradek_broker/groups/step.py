"""The result of a handler: records to write, and responses to send once the records are committed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NewType, ParamSpec, TypeVar

from odradek_broker.groups.records import GroupRecord

RequestId = NewType("RequestId", int)
P = ParamSpec("P")
T = TypeVar("T")


class NothingApplied(Exception):
    """A request met a bug before any of it was applied: the state is unchanged."""


def judges(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function that only reads a request and the state, before a handler changes anything.

    Any exception that it raises becomes NothingApplied. Do not mark a function that replays a record.
    """

    @functools.wraps(function)
    def judging(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise NothingApplied(f"{function.__qualname__}: {error}") from error

    return judging


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to the request to which the host gave this id."""

    request_id: RequestId
    response: Any  # a class of groups.messages, which depends on the request


@dataclass(frozen=True, slots=True)
class Step:
    """The result of a handler, whose records have been replayed already.

    The host appends the records as one batch, and sends a response when everything that was appended before it
    is committed, so that no response reports what may still be lost. If an append fails, the host drops the
    shard and loads it again from the log.
    """

    records: tuple[GroupRecord, ...] = ()
    answers: tuple[Answer, ...] = ()

    def __add__(self, other: Step) -> Step:
        return Step(self.records + other.records, self.answers + other.answers)


NOTHING = Step()


def answer(request_id: RequestId, response: Any) -> Step:
    """Return a step with a response and no records."""
    return Step(answers=(Answer(request_id, response),))
