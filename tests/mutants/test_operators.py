"""Each mutation operator changes the code that it should, and no other code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import PATHS, PROCESS_TESTS, START, Judge, Limits
from tests.mutants.coverage_map import CoverageMap
from tests.mutants.equivalents import Equivalent, Equivalents
from tests.mutants.operators import Mutant, mutants_of
from tests.mutants.warm import WarmRunner

HEAD = '"""A module."""\n\nLIMIT = 5\n\n\ndef judge(self, a: int = 3, b: Maybe[1] = None):\n    """Judge."""\n'


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("x = a < b", {"(a <= b)"}),
        ("x = a is not b", {"(a is b)"}),
        ("x = a and b", {"((a) or (b))", "((a))", "((b))"}),
        ("x = not a", {"(a)"}),
        ("x = a + b", {"(a - b)"}),
        ("x = a[7]", {"(8)"}),
        ("x = True", {"False"}),
        ("x = min(a, b)", {"max(a, b)"}),
        ("if why: x = b", {"(not (why))"}),
        ("self.begin()", {"pass"}),
        ("self.x = a", {"pass"}),
        ("assert a < 1", set()),
        ('_log.info("Began", limit=1)', set()),
        ("x: Maybe[1] = a", set()),
    ],
)
def test_one_change_at_a_time(tmp_path: Path, line: str, changes: set[str]) -> None:
    path = tmp_path / "judge.py"
    path.write_text(f"{HEAD}    {line}\n    return x\n")
    found = {m.after: m for m in mutants_of(path) if m.after != "return"}
    assert found.keys() == changes
    for after, mutant in found.items():
        assert mutant.line == 8
        assert (mutant.function, mutant.function_line) == ("judge", 6)
        changed = line.replace(mutant.before, after, 1)
        assert mutant.source == path.read_text().replace(line, changed)


def test_a_function_may_return_at_once(tmp_path: Path) -> None:
    path = tmp_path / "judge.py"
    path.write_text(f"{HEAD}    x = a\n    return x\n")
    (mutant,) = mutants_of(path)
    assert mutant.source == f"{HEAD}    return\n    return x\n"


def test_every_mutant_of_a_package_is_python() -> None:
    for path in PATHS[0].rglob("*.py"):
        for mutant in mutants_of(path):
            compile(mutant.source, str(path), "exec")


def test_the_processes_that_a_test_starts_run_the_mutant(tmp_path: Path) -> None:
    source = tmp_path / "mutant.py"
    source.write_text('print("the mutant")\n')
    environment = {
        **os.environ,
        "MUTANT_MODULE": "odradek_broker.log.storage",
        "MUTANT_SOURCE": str(source),
        "PYTHONPATH": str(START),
    }
    command = [sys.executable, "-c", "import odradek_broker.log.storage"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "the mutant\n"


def a_mutant() -> Mutant:
    return next(mutants_of(next(PATHS[0].rglob("replica.py"))))


@pytest.mark.parametrize(
    ("hanging", "outcome"), [("mutant", "simulator, hung"), ("both", "unclear"), ("", "survived")]
)
def test_a_run_that_hangs_without_its_mutant_too_says_nothing(hanging: str, outcome: str) -> None:
    def run(arguments: list[str], environment: dict[str, str], timeout_s: float) -> int | None:
        is_hung = hanging == "both" or (hanging == "mutant" and "MUTANT_MODULE" in environment)
        return None if is_hung else 0

    limits = Limits(sim_seeds=1, timeout_s=1, process_timeout_s=1)
    assert Judge(CoverageMap(), limits, run).outcome(a_mutant()) == outcome


@pytest.mark.parametrize(
    ("broken", "outcome"), [("", "processes"), ("a::one", "unclear"), ("a::other", "processes")]
)
def test_a_failed_test_counts_if_it_passes_without_the_mutant(broken: str, outcome: str) -> None:
    def run(arguments: list[str], environment: dict[str, str], timeout_s: float) -> int | None:
        if "MUTANT_FAILED" in environment:
            Path(environment["MUTANT_FAILED"]).write_text("a::one")
            return 1
        return int(broken in arguments)

    limits = Limits(sim_seeds=0, timeout_s=1, process_timeout_s=1)
    assert Judge(CoverageMap(), limits, run).outcome(a_mutant()) == outcome


def test_tests_that_execute_the_changed_line_come_first_and_then_the_quickest() -> None:
    mutant = a_mutant()
    place = mutant.line - mutant.function_line
    calls = CoverageMap()
    for test, seconds, line in (("a", 1.0, place + 1), ("b", 3.0, place), ("c", 2.0, place)):
        lines = {mutant.path.as_posix(): {mutant.function: [line], "another": [place]}}
        calls.add({test: {"seconds": seconds, "lines": lines}})
    assert calls.tests_of(mutant, seconds_max=10.0) == ["c", "b", "a"]
    assert calls.tests_of(mutant, seconds_max=5.0) == ["c", "b"]
    assert calls.tests_of(mutant, seconds_max=0.1) == ["c"], "one at least"


def test_a_warm_process_runs_each_job_in_a_fork_and_kills_what_does_not_end(tmp_path: Path) -> None:
    test, mutant = tmp_path / "test_it.py", tmp_path / "mutant.py"
    test.write_text(
        "import os, signal, subprocess\n"
        "def test_it():\n"
        "    import odradek_broker.log.storage as storage\n"
        "    assert storage.IS_MUTANT\n"
        "def test_hang():\n"
        "    subprocess.run(['sleep', '1000'])\n"
    )
    mutant.write_text("IS_MUTANT = True\n")
    changed = {"MUTANT_MODULE": "odradek_broker.log.storage", "MUTANT_SOURCE": str(mutant)}
    runner = WarmRunner()
    try:
        assert runner.run([f"{test}::test_it"], changed, timeout_s=100) == 0
        assert runner.run([f"{test}::test_it"], {}, timeout_s=100) == 1
        assert runner.run([f"{test}::test_hang"], {}, timeout_s=1) is None
        assert runner.run([f"{test}::test_it"], changed, timeout_s=100) == 0
    finally:
        runner.close()


def test_what_judges_a_folder_exists_and_every_folder_is_judged() -> None:
    assert all(test.exists() for tests in PROCESS_TESTS.values() for test in tests)
    for folder in PATHS:
        assert any(place == folder or place in folder.parents for place in PROCESS_TESTS)


def test_every_mutant_that_is_called_equivalent_is_still_one() -> None:
    listed = Equivalents.read()
    paths = {Path(entry.path) for entry in listed.reasons}
    present = {
        Equivalent(mutant.path.as_posix(), mutant.text, mutant.before, mutant.after)
        for path in paths
        for mutant in mutants_of(path)
    }
    assert not listed.reasons.keys() - present, "a listed line changed: judge it again"
    assert all(listed.reasons.values())
