"""What a handler decides: records to write, and answers that may leave once those are committed."""

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
    """A request met a bug before anything of it was applied: the state is as it was."""


def judges(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function that only looks at a request and at the state, before a handler changes anything.

    Whatever it raises becomes NothingApplied. Do not mark what replays a record.
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
    """The response to a request that the host named so when it handed it in."""

    request_id: RequestId
    response: Any  # one of groups.messages: the caller knows which, since it asked


@dataclass(frozen=True, slots=True)
class Step:
    """A decision. Its records are replayed already; the host appends them as one batch, and lets an answer
    leave when everything appended before it is committed, so that nobody is told what may yet be lost. If an
    append fails, the host drops the shard and loads it again from the log."""

    records: tuple[GroupRecord, ...] = ()
    answers: tuple[Answer, ...] = ()

    def __add__(self, other: Step) -> Step:
        return Step(self.records + other.records, self.answers + other.answers)


NOTHING = Step()


def answer(request_id: RequestId, response: Any) -> Step:
    """Only an answer."""
    return Step(answers=(Answer(request_id, response),))
