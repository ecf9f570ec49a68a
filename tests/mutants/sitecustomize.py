"""Loads a mutant instead of its module in every Python process of a run, services included.

Python imports `sitecustomize` from PYTHONPATH before any other code; a run with a mutant puts this
folder on PYTHONPATH. `MUTANT_MODULE` and `MUTANT_SOURCE` name the module and the file that replaces it. No
file of the source tree is changed.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType


class _MutantFinder:
    """Loads one module from another file."""

    def __init__(self, module: str, path: str) -> None:
        self._module, self._path = module, path

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        return importlib.util.spec_from_file_location(name, self._path)


def install() -> None:
    """Make the next import of the module that the environment names load the mutant, if there is
    one.
    """
    if module := os.environ.get("MUTANT_MODULE"):
        assert module not in sys.modules, f"{module} is imported already"
        sys.meta_path.insert(0, _MutantFinder(module, os.environ["MUTANT_SOURCE"]))  # type: ignore[arg-type]


if __name__ == "sitecustomize":
    install()
