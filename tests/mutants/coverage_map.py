"""A map of which tests execute which lines, made once by running the tests under a tracer, and kept
in files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tests.mutants.operators import Mutant

FILE_TIMEOUT_S = 900
_CACHE = Path(".mutants")

Run: TypeAlias = Callable[[list[str], dict[str, str], float], int | None]


@dataclass(slots=True)
class CoverageMap:
    """The tests that call each function, with the lines of the function that each test executes."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[tuple[str, str], dict[str, frozenset[int]]] = field(default_factory=dict)

    def add(self, tests: dict[str, dict[str, Any]]) -> None:
        for test, run in tests.items():
            self.seconds[test] = run["seconds"]
            for path, functions in run["lines"].items():
                for function, lines in functions.items():
                    self.lines.setdefault((path, function), {})[test] = frozenset(lines)

    def tests_of(self, mutant: Mutant, *, seconds_max: float) -> list[str]:
        """Return the tests that call the mutant's function and take at most `seconds_max` together.

        Tests that execute the changed line come first, then the quickest.
        """
        lines = self.lines.get((mutant.path.as_posix(), mutant.function), {})
        place = mutant.line - mutant.function_line
        chosen: list[str] = []
        total_s = 0.0
        for test in sorted(lines, key=lambda test: (place not in lines[test], self.seconds[test])):
            total_s += self.seconds[test]
            if chosen and total_s > seconds_max:
                break
            chosen.append(test)
        return chosen


def coverage_map(paths: list[Path], test_files: list[Path], run: Run, *, jobs: int) -> CoverageMap:
    """Return the map of these tests for these directories.

    A test file runs again when it has changed.
    """
    _CACHE.mkdir(exist_ok=True)
    result = CoverageMap()
    directories = os.pathsep.join(str(path.resolve()) for path in paths)

    def make(number: int, file: Path) -> str:
        key = hashlib.sha256(file.read_bytes() + repr(paths).encode()).hexdigest()[:16]
        kept = _CACHE / f"{file.stem}-{key}.json"
        if not kept.exists():
            print(f"[{number}/{len(test_files)}] lines that {file} executes", flush=True)
            written = kept.with_suffix(".new")
            environment = {"MUTANT_COVERAGE": str(written), "MUTANT_PATHS": directories}
            run(["--maxfail=0", "-m", "not long", str(file)], environment, FILE_TIMEOUT_S)
            if not written.exists():
                written.write_text("{}")
            written.replace(kept)
        return kept.read_text()

    with ThreadPoolExecutor(jobs) as pool:
        for tests in pool.map(make, range(1, len(test_files) + 1), test_files):
            result.add(json.loads(tests))
    return result
