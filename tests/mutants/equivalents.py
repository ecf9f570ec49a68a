"""Reads from `equivalents.toml` the mutants that make no difference to any caller, with the reason
for each.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

from tests.mutants.operators import Mutant

LIST = Path(__file__).with_name("equivalents.toml")


class Equivalent(NamedTuple):
    """A change in the list.

    It is recognized by the text of its line, because line numbers change.
    """

    path: str
    text: str
    before: str
    after: str


class Equivalents:
    """The changes in the list."""

    def __init__(self, reasons: dict[Equivalent, str]) -> None:
        self.reasons = reasons

    @classmethod
    def read(cls, path: Path = LIST) -> Equivalents:
        entries = tomllib.loads(path.read_text()).get("mutant", [])
        return cls(
            {Equivalent(e["path"], e["text"], e["before"], e["after"]): e["why"] for e in entries}
        )

    def __contains__(self, mutant: Mutant) -> bool:
        change = (mutant.text, mutant.before, mutant.after)
        return Equivalent(mutant.path.as_posix(), *change) in self.reasons
