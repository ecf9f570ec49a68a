"""Which tests call which functions: made once, by running the tests under a tracer, and kept in files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE_TIMEOUT_S = 600
_CACHE = Path(".mutants")


@dataclass(slots=True)
class CoverageMap:
    """Tests by the function that they call: its file and first line."""

    seconds: dict[str, float] = field(default_factory=dict)
    tests: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def add(self, runs: dict[str, dict[str, Any]]) -> None:
        for test, run in runs.items():
            self.seconds[test] = run["seconds"]
            for path, functions in run["functions"].items():
                for first_line in functions:
                    self.tests.setdefault((path, first_line), []).append(test)

    def tests_of(self, path: Path, first_line: int, *, seconds_max: float) -> list[str]:
        """The quickest tests that call this function, of at most so many seconds together."""
        chosen: list[str] = []
        total_s = 0.0
        called = self.tests.get((str(path.resolve()), first_line), [])
        for test in sorted(called, key=self.seconds.__getitem__):
            total_s += self.seconds[test]
            if chosen and total_s > seconds_max:
                break
            chosen.append(test)
        return chosen


def coverage_map(paths: list[Path], test_files: list[Path], *, jobs: int) -> CoverageMap:
    """The map of these tests over these directories; a test file is run again when it changed."""
    _CACHE.mkdir(exist_ok=True)
    result = CoverageMap()
    directories = os.pathsep.join(str(path.resolve()) for path in paths)

    def make(number: int, file: Path) -> str:
        key = hashlib.sha256(file.read_bytes() + directories.encode()).hexdigest()[:16]
        kept = _CACHE / f"{file.stem}-{key}.json"
        if not kept.exists():
            print(f"[{number}/{len(test_files)}] functions that {file} calls", flush=True)
            kept.write_text(_run(file, directories, kept.with_suffix(".new")))
        return kept.read_text()

    with ThreadPoolExecutor(jobs) as pool:
        for runs in pool.map(make, range(1, len(test_files) + 1), test_files):
            result.add(json.loads(runs))
    return result


def _run(file: Path, directories: str, output: Path) -> str:
    command = [*PYTEST, "--maxfail=0", "-m", "not long", str(file)]
    environment = {**os.environ, "MUTANT_COVERAGE": str(output), "MUTANT_PATHS": directories}
    try:
        subprocess.run(
            command, env=environment, timeout=FILE_TIMEOUT_S, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        return "{}"
    if not output.exists():
        return "{}"
    text = output.read_text()
    output.unlink()
    return text


PYTEST = [
    *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
    *("-p", "no:randomly", "-p", "tests.mutants.plugin"),
]
