"""A planted bug: a patch that removes one rule from the production code for the length of a `with`
block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

Plant = Callable[[ExitStack], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A rule of the production code, and the patch `plant` that removes the rule.

    One of `seeds` finds the bug, unless `is_rare` is set: then a directed schedule finds it instead. `found_by` is the
    seed that found the bug when `python -m tests.sim --planted` last ran. This seed is tried first, to save time; after
    a change of the simulator or of production code another seed may find the bug.
    """

    number: int
    name: str
    plant: Plant
    is_rare: bool = False
    seeds: range = range(200)  # the seeds that are run to find the bug
    found_by: int | None = None

    @property
    def seeds_in_order(self) -> Iterable[int]:
        """The seeds, beginning with the one that found the bug last."""
        return self.seeds if self.found_by is None else (self.found_by, *self.seeds)

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Run the `with` block with this bug in the production code."""
        with ExitStack() as stack:
            self.plant(stack)
            yield


def replace_in(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Replace an attribute until the stack unwinds."""
    stack.enter_context(patch.object(owner, name, value))
