"""Fixtures and options for all tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.tools import LEAVE_OUT_NOTHING, table

# A first example pays for imports, and machines are shared: time is pytest-timeout's business.
settings.register_profile("odradek", deadline=None)
settings.load_profile("odradek")


@pytest.fixture(autouse=True)
def sdk_log_level() -> Iterator[None]:
    """Give the SDK's log its level back: a command of the program that ran in this process has quietened it."""
    logger = logging.getLogger("odradek")
    level = logger.level
    yield
    logger.setLevel(level)


class ByFixtures(LoadScopeScheduling):
    """Tests that share a cluster or a JVM go to one worker: a folder of e2e or integration, a file else."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        folders = path.split("/")
        return "/".join(folders[:3]) if folders[1] in {"e2e", "integration"} else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFixtures:
    return ByFixtures(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was left out because a tool is missing, and the way to bring it."""
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
    """Fail a run that left something out where nothing may be left out."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get(LEAVE_OUT_NOTHING) or session.exitstatus != 0:
        return
    skipped = reporter.stats.get("skipped", [])
    if table(str(report.longrepr[2]) for report in skipped if isinstance(report.longrepr, tuple)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
