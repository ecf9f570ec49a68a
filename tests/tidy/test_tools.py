"""Tests that are skipped because a tool is missing are counted and named, and fail a run that may skip none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import LEAVE_OUT_NOTHING, ROOT, TOOLS, table, tool_of

TEST_FILE = """
import pytest
from tests.tools import TOOLS, Tool, need

TOOLS["a tool that nobody has"] = Tool(lambda: False, "apt-get install nothing")

def test_that_needs_it():
    need("a tool that nobody has")

def test_that_is_skipped_for_another_reason():
    pytest.skip("of no meaning here")

def test_that_passes():
    need("Python") if "Python" in TOOLS else None
"""


def run(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_something.py").write_text(TEST_FILE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c"]
    (folder / "pytest.ini").write_text("[pytest]\n")
    plugin = ["-p", "tests.conftest", str(folder)]
    without = (LEAVE_OUT_NOTHING, "PYTEST_ADDOPTS")
    env = {name: value for name, value in os.environ.items() if name not in without}
    env |= {"PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [*command, str(folder / "pytest.ini"), *plugin],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_run_names_what_it_left_out_and_the_way_to_bring_it(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "    1 tests  need a tool that nobody has: apt-get install nothing" in done.stdout
    assert "1 passed, 2 skipped" in done.stdout


def test_a_run_that_may_leave_nothing_out_fails(tmp_path: Path) -> None:
    done = run(tmp_path, **{LEAVE_OUT_NOTHING: "1"})
    assert done.returncode == 1
    assert "need a tool that nobody has" in done.stdout


def test_a_module_that_cannot_be_imported_for_want_of_a_tool_is_left_out_and_counted(
    tmp_path: Path,
) -> None:
    module = "from tests.tools import leave_out_module\nleave_out_module('a C compiler')\n"
    (tmp_path / "test_codec.py").write_text(module)
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"    1 tests  need a C compiler: {TOOLS['a C compiler'].bring}" in done.stdout


def test_only_skips_for_want_of_a_tool_are_counted() -> None:
    kcat = "Skipped: left out: needs kcat"
    assert table([kcat, "Skipped: another reason", kcat]) == [
        f"    2 tests  need kcat: {TOOLS['kcat'].bring}"
    ]
    assert tool_of("Skipped: another reason") is None


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_can_be_looked_for(name: str) -> None:
    assert TOOLS[name].is_here() in (True, False)
    assert TOOLS[name].bring


def test_no_plugin_parses_code_when_a_run_ends(pytestconfig: pytest.Config) -> None:
    """Threads of tests may parse code at that moment, and CPython before 3.11.8 mixes up two
    parsers that run at the same time.
    """
    assert not pytestconfig.pluginmanager.has_plugin("schemathesis")
    assert "schemathesis" not in sys.modules
