"""Mutation tests: random single-line mutants of the log, replication and the quorum.

    python -m tests.mutants --count 100 --seed 1
    python -m tests.mutants --count 20 --paths services/broker/odradek_broker/partition

Each mutant is run by the quickest tests that call its function (a map of functions and tests is
made first, once, which takes minutes; it is kept in `.mutants`), then by some seeds of its
simulator, then by tests with real processes. A mutant that survives all of them is printed with its
change: either a test is missing, or the change makes no difference that a caller could see, and
then it says something about the code.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.mutants.coverage_map import PYTEST, CoverageMap, coverage_map
from tests.mutants.operators import Mutant, mutants_of

_BROKER = Path("services/broker")
_QUORUM = Path("services/metadata_quorum")
PATHS = [
    _BROKER / "odradek_broker/partition",
    _BROKER / "odradek_broker/log",
    _BROKER / "odradek_broker/replication",
    _QUORUM / "odradek_metadata_quorum/storage",
    _QUORUM / "odradek_metadata_quorum/network",
    _QUORUM / "odradek_metadata_quorum/raft",
    _QUORUM / "odradek_metadata_quorum/quorum",
]
PROCESS_TESTS = {
    _BROKER: [
        Path("tests/integration/broker/test_one_broker.py"),
        Path("tests/integration/broker/test_failover.py"),
    ],
    _QUORUM: [
        Path("tests/integration/quorum/test_voter_network.py"),
        Path("tests/integration/quorum/test_voter_processes.py"),
        Path("tests/integration/quorum/test_quorum.py"),
    ],
}
START = Path(__file__).parent / "start"
_FAILED = (1, 2)  # pytest's exit status for failed tests, and for a module that does not import
TESTS = [Path("tests/unit") / name for name in ("partition", "replication", "log", "quorum")]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="which mutants")
    parser.add_argument("--paths", type=Path, nargs="+", default=PATHS, help="what is mutated")
    parser.add_argument("--tests", type=Path, nargs="+", default=TESTS, help="who has to notice")
    parser.add_argument("--sim-seeds", type=int, default=6, help="simulator seeds for the rest")
    parser.add_argument("--timeout", type=float, default=60, help="s for the tests of one mutant")
    parser.add_argument(
        "--process-timeout",
        type=float,
        default=300,
        help="s for tests with processes; 0: leave them out",
    )
    options = parser.parse_args()
    calls = coverage_map(options.paths, _files(options.tests, "test_*.py"))
    if options.process_timeout:
        for tests in PROCESS_TESTS.values():
            code = _run(_process_tests(tests), dict(os.environ), options.process_timeout)
            assert code == 0, f"{tests} fail without a mutant: {code}"
    every = [m for file in _files(options.paths, "*.py") for m in mutants_of(file)]
    chosen = random.Random(options.seed).sample(every, min(options.count, len(every)))
    outcomes: Counter[str] = Counter()
    survivors: list[Mutant] = []
    for number, mutant in enumerate(chosen, 1):
        began_s = time.monotonic()
        outcome = judge(
            mutant,
            calls,
            sim_seeds=options.sim_seeds,
            timeout_s=options.timeout,
            process_timeout_s=options.process_timeout,
        )
        outcomes[outcome] += 1
        if outcome == "survived":
            survivors.append(mutant)
            print(mutant, flush=True)  # a run may be ended before its end
        took_s = time.monotonic() - began_s
        print(f"{number:4} {outcome:16} {took_s:5.1f} s  {mutant.path}:{mutant.line}", flush=True)
    killed = sum(outcomes.values()) - len(survivors)
    print(f"\n{killed} of {len(chosen)} noticed ({100 * killed / len(chosen):.0f} %): {outcomes}")
    for mutant in survivors:
        print(mutant)
    return int(killed < 0.95 * len(chosen))


def judge(
    mutant: Mutant,
    calls: CoverageMap,
    *,
    sim_seeds: int,
    timeout_s: float,
    process_timeout_s: float,
) -> str:
    """Return what notices the mutant: `tests`, `tests, hung`, `simulator`, `processes`; `survived` if nothing does."""
    service = next(service for service in PROCESS_TESTS if mutant.path.is_relative_to(service))
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        source = Path(directory) / mutant.path.name
        source.write_text(mutant.source)
        environment = {
            **os.environ,
            "MUTANT_MODULE": _module(mutant.path),
            "MUTANT_SOURCE": str(source),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(START), os.environ.get("PYTHONPATH")])),
        }
        tests = calls.tests_of(mutant.path, mutant.function_line, seconds_max=timeout_s / 2)
        if tests:
            code = _run([*PYTEST, *tests], environment, timeout_s)
            assert code in (None, 0, *_FAILED), f"pytest ended with {code}: {tests}"
            if code != 0:
                return "tests" if code is not None else "tests, hung"
        if sim_seeds:
            simulator = "quorum" if service == _QUORUM else "cluster"
            command = [sys.executable, "-m", "tests.mutants.seeds", simulator, str(sim_seeds)]
            if _run(command, environment, timeout_s) != 0:
                return "simulator"
        processes = _process_tests(PROCESS_TESTS[service])
        if process_timeout_s and _run(processes, environment, process_timeout_s) != 0:
            return "processes"
    return "survived"


def _process_tests(tests: list[Path]) -> list[str]:
    return [*PYTEST, "-m", "not long", *map(str, tests)]


def _run(command: list[str], environment: dict[str, str], timeout_s: float) -> int | None:
    """The exit status; None after `timeout_s`."""
    try:
        done = subprocess.run(
            command, env=environment, timeout=timeout_s, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    package = next(i for i, part in enumerate(parts) if part.startswith("odradek_"))
    return ".".join(parts[package:]).removesuffix(".__init__")


def _files(places: list[Path], pattern: str) -> list[Path]:
    return sorted(
        file for place in places for file in ([place] if place.is_file() else place.rglob(pattern))
    )


if __name__ == "__main__":
    sys.exit(main())
