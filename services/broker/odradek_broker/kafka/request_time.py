"""How long a request keeps the event loop busy: its steps count, what it waits for between them does not."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from time import perf_counter
from types import coroutine
from typing import Any, TypeVar

from odradek_broker.kafka.answer_line import Slot

T = TypeVar("T")


@coroutine
def timed(steps: Coroutine[Any, Any, T], slot: Slot) -> Generator[Any, Any, T]:
    """The same coroutine; the seconds that its steps take are added to the slot's."""
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        began = perf_counter()
        try:
            waits_for = steps.send(sent) if thrown is None else steps.throw(thrown)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            slot.seconds += perf_counter() - began
        sent = thrown = None
        try:
            sent = yield waits_for
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:
            thrown = error
