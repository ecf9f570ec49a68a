"""Fixtures and options for all tests."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.tools import LEAVE_OUT_NOTHING, table

# The processes that tests start write and use bytecode: without it each of them compiles 250 modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Processes that tests start do not warn that the codec in C is missing, so tests can compare their whole output.
if importlib.util.find_spec("odradek_protocol.records._codec") is None:
    os.environ.setdefault("ODRADEK_PURE_PYTHON", "1")

# Wheels and tests of the compiled broker share what was compiled from the same sources.
os.environ.setdefault(
    "ODRADEK_COMPILED_CACHE", str(Path(__file__).parents[1] / "build/compiled-cache")
)

# hypothesis has no deadline, because a first example includes imports, and other work may slow the machine down.
# pytest-timeout limits the time of each test.
settings.register_profile("odradek", deadline=None)
settings.load_profile("odradek")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Reset the log levels and remove the log handler that commands set when they run in this process. The handler
    would write to a stream that its test has closed.
    """
    root, sdk = logging.getLogger(), logging.getLogger("odradek")
    levels = root.level, sdk.level
    yield
    root.setLevel(levels[0])
    sdk.setLevel(levels[1])
    for handler in [each for each in root.handlers if type(each) is logging.StreamHandler]:
        root.removeHandler(handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Kill the processes that a test started if it still runs a minute after its timeout.

    pytest-timeout raises in the test, and a `with Popen(...)` then waits for its process without limit.
    """
    marker = item.get_closest_marker("timeout")
    limit_s = marker.args[0] if marker else float(item.config.getini("timeout") or 120)
    others = _children()
    watchdog = threading.Timer(limit_s + 60, lambda: _kill(_children() - others))
    watchdog.daemon = True
    watchdog.start()
    try:
        return (yield)
    finally:
        watchdog.cancel()


def _children() -> set[int]:
    pids: set[int] = set()
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            pids.update(map(int, children.read_text().split()))
    return pids


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failed test at once, for the case that the run does not reach its summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.outcome} in {report.when}: {report.nodeid}", file=sys.__stderr__)


class ByFixtures(LoadScopeScheduling):
    """Assigns tests that share a cluster or a JVM to one worker: whole folders of e2e and
    integration tests, else files.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        folders = path.split("/")
        return "/".join(folders[:3]) if folders[1] in {"e2e", "integration"} else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFixtures:
    return ByFixtures(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that were left out because a tool is missing, and how to install the tool."""
    skipped = terminalreporter.stats.get("skipped", [])
    lines = table(
        str(report.longrepr[2]) for report in skipped if isinstance(report.longrepr, tuple)
    )
    if lines:
        terminalreporter.section("left out: tools that are not on this machine")
        for line in lines:
            terminalreporter.line(line)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if tests were left out and ODRADEK_TESTS_LEAVE_OUT_NOTHING is set."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get(LEAVE_OUT_NOTHING) or session.exitstatus != 0:
        return
    skipped = reporter.stats.get("skipped", [])
    if table(str(report.longrepr[2]) for report in skipped if isinstance(report.longrepr, tuple)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
