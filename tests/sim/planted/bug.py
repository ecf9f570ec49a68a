"""A planted bug: one rule taken out of the production code, and put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

Plant = Callable[[ExitStack], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One rule that is missing; `is_rare`: its `seeds` may miss it, so it has a schedule."""

    number: int
    name: str
    plant: Plant
    is_rare: bool = False
    seeds: range = range(200)  # those that may meet it

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Run the `with` block with this bug in the production code."""
        with ExitStack() as stack:
            self.plant(stack)
            yield


def replace_in(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Replace an attribute until the stack unwinds."""
    stack.enter_context(patch.object(owner, name, value))
