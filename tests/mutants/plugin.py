"""A pytest plugin that records which test calls which function.

`MUTANT_COVERAGE` names the file that the map is written to, and `MUTANT_PATHS` the directories whose
functions are recorded.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

CALLS_MAX = 200_000  # of a test, that are noted: a property test repeats itself


class _Calls:
    """The functions of the wanted files that each test called, and how long the test took."""

    def __init__(self, directories: tuple[str, ...]) -> None:
        self._directories = directories
        self._is_wanted: dict[CodeType, bool] = {}
        self._called: set[tuple[str, int]] = set()
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: set[str] = set()
        self._calls_left = 0

    def _trace(self, frame: FrameType, event: str, _: object) -> None:
        self._calls_left -= 1
        if self._calls_left <= 0:
            sys.settrace(None)
        code = frame.f_code
        wanted = self._is_wanted.get(code)
        if wanted is None:
            wanted = code.co_filename.startswith(self._directories)
            self._is_wanted[code] = wanted
        if wanted:
            self._called.add((code.co_filename, code.co_firstlineno))

    def begin(self) -> float:
        self._called = set()
        self._calls_left = CALLS_MAX
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        return time.monotonic()

    def end(self, test: str, began_s: float) -> None:
        sys.settrace(None)
        if test in self.failed:  # also without a mutant, or under the tracer: it would tell nothing
            return
        functions: dict[str, list[int]] = {}
        for name, line in sorted(self._called):
            functions.setdefault(name, []).append(line)
        self.tests[test] = {"seconds": time.monotonic() - began_s, "functions": functions}


_calls = _Calls(tuple(os.environ.get("MUTANT_PATHS", "").split(os.pathsep)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if "MUTANT_COVERAGE" not in os.environ:
        return (yield)
    began_s = _calls.begin()
    try:
        return (yield)
    finally:
        _calls.end(item.nodeid, began_s)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome != "passed":
        _calls.failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    if "MUTANT_COVERAGE" in os.environ:
        with open(os.environ["MUTANT_COVERAGE"], "w") as file:
            json.dump(_calls.tests, file)
