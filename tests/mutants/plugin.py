"""A pytest plugin that records which test executes which lines, or which test failed.

`MUTANT_COVERAGE` names the file to which the map is written, and `MUTANT_PATHS` the directories
whose functions are recorded. `MUTANT_FAILED` names the file to which the id of a failed test is
written.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.mutants.functions import Functions

# Limits of the record of one test. A property test repeats the same code, and tracing a line costs more than running
# it.
CALLS_MAX = 200_000
TRACED_CALLS_MAX = 60  # calls of one function


class _Lines:
    """The lines of the selected files that each test executed, by function, and how long the test
    took.
    """

    def __init__(self, directories: tuple[str, ...]) -> None:
        self._directories = directories
        self._is_wanted: dict[CodeType, bool] = {}
        self._functions: dict[str, Functions] = {}
        self._lines: set[tuple[str, int]] = set()
        self._traced: Counter[CodeType] = Counter()
        self._calls_left = 0
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: set[str] = set()

    def _call(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        self._calls_left -= 1
        if self._calls_left <= 0:
            sys.settrace(None)
            return None
        code = frame.f_code
        wanted = self._is_wanted.get(code)
        if wanted is None:
            wanted = code.co_filename.startswith(self._directories)
            self._is_wanted[code] = wanted
        if not wanted:
            return None
        self._traced[code] += 1
        if self._traced[code] > TRACED_CALLS_MAX:
            return None
        self._lines.add((code.co_filename, code.co_firstlineno))
        return self._line

    def _line(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "line":
            self._lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def begin(self) -> float:
        self._lines = set()
        self._traced = Counter()
        self._calls_left = CALLS_MAX
        threading.settrace(self._call)
        sys.settrace(self._call)
        return time.process_time()

    def end(self, test: str, began_s: float) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        if test in self.failed:  # the test fails without a mutant, or under the tracer
            return
        executed: dict[str, dict[str, list[int]]] = {}
        for path, line in sorted(self._lines):
            if path not in self._functions:
                self._functions[path] = Functions.of(Path(path).read_bytes())
            function = self._functions[path].around(line)
            if function is not None:
                lines = executed.setdefault(os.path.relpath(path), {})
                lines.setdefault(function.name, []).append(line - function.first_line)
        seconds = time.process_time() - began_s
        self.tests[test] = {"seconds": seconds, "lines": executed}


_recorded = _Lines(tuple(os.environ.get("MUTANT_PATHS", "").split(os.pathsep)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if "MUTANT_COVERAGE" not in os.environ:
        return (yield)
    began_s = _recorded.begin()
    try:
        return (yield)
    finally:
        _recorded.end(item.nodeid, began_s)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome != "passed":
        _recorded.failed.add(report.nodeid)
    if report.outcome == "failed" and "MUTANT_FAILED" in os.environ:
        Path(os.environ["MUTANT_FAILED"]).write_text(report.nodeid)


def pytest_sessionfinish() -> None:
    if "MUTANT_COVERAGE" in os.environ:
        with open(os.environ["MUTANT_COVERAGE"], "w") as file:
            json.dump(_recorded.tests, file)
