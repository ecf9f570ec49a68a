"""Mutation tests: random single-line mutants of the log, replication and the quorum.

    python -m tests.mutants --count 100 --seed 1
    python -m tests.mutants --count 20 --paths services/broker/odradek_broker/partition

Each mutant is run by the quickest tests that call its function (a map of functions and tests is
made first, once, which takes minutes; it is kept in `.mutants`), then by some seeds of its
simulator, then by tests with real processes. A mutant that survives all of them is printed with its
change: either a test is missing, or the change makes no difference that a caller could see. The
latter are listed in `equivalents.toml` with the reason, and are neither run nor counted.

A run that does not end in time notices its mutant only if the same run without the mutant does end:
on a busy machine everything hangs now and then. Otherwise the mutant is `unclear`, which is not noticed.
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
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.coverage_map import PYTEST, CoverageMap, coverage_map
from tests.mutants.equivalents import Equivalents
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
START = Path(__file__).parent  # has sitecustomize.py
_FAILED = (1, 2)  # pytest's exit status for failed tests, and for a module that does not import
TESTS = [Path("tests/unit") / name for name in ("partition", "replication", "log", "quorum")]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a mutant is looked for: seeds of its simulator, and the seconds that each run may take."""

    sim_seeds: int
    timeout_s: float
    process_timeout_s: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="which mutants")
    parser.add_argument("--paths", type=Path, nargs="+", default=PATHS, help="what is mutated")
    parser.add_argument("--tests", type=Path, nargs="+", default=TESTS, help="who has to notice")
    parser.add_argument("--sim-seeds", type=int, default=6, help="simulator seeds for the rest")
    parser.add_argument("--timeout", type=float, default=60, help="s for the tests of one mutant")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at once")
    parser.add_argument(
        "--process-timeout",
        type=float,
        default=300,
        help="s for tests with processes; 0: leave them out",
    )
    options = parser.parse_args()
    calls = coverage_map(options.paths, _files(options.tests, "test_*.py"), jobs=options.jobs)
    if options.process_timeout:
        for tests in PROCESS_TESTS.values():
            code = _run(_process_tests(tests), dict(os.environ), options.process_timeout)
            assert code == 0, f"{tests} fail without a mutant: {code}"
    every = [m for file in _files(options.paths, "*.py") for m in mutants_of(file)]
    chosen = random.Random(options.seed).sample(every, min(options.count, len(every)))
    limits = Limits(options.sim_seeds, options.timeout, options.process_timeout)
    outcomes = _judge_all(chosen, calls, limits, jobs=options.jobs)
    survivors = [m for m in chosen if outcomes[m] in ("survived", "unclear")]
    counted = [m for m in chosen if outcomes[m] != "equivalent"]
    killed = len(counted) - len(survivors)
    share = 100 * killed / max(len(counted), 1)
    print(f"\n{killed} of {len(counted)} noticed ({share:.0f} %): {Counter(outcomes.values())}")
    for mutant in survivors:
        print(mutant)
    return int(killed < 0.95 * len(counted))


def _judge_all(
    mutants: list[Mutant], calls: CoverageMap, limits: Limits, *, jobs: int
) -> dict[Mutant, str]:
    """Judge mutants, several at once, and print each as soon as it is judged: a run may be ended before its end."""
    equivalents = Equivalents.read()
    outcomes: dict[Mutant, str] = {}

    def timed(mutant: Mutant) -> tuple[str, float]:
        began_s = time.monotonic()
        if mutant in equivalents:
            return "equivalent", 0.0
        return judge(mutant, calls, limits), time.monotonic() - began_s

    with ThreadPoolExecutor(jobs) as pool:
        judged = {pool.submit(timed, mutant): mutant for mutant in mutants}
        for number, future in enumerate(as_completed(judged), 1):
            mutant = judged[future]
            outcomes[mutant], took_s = future.result()
            if outcomes[mutant] in ("survived", "unclear"):
                print(mutant)
            place = f"{mutant.path}:{mutant.line}"
            print(f"{number:4} {outcomes[mutant]:16} {took_s:5.1f} s  {place}", flush=True)
    return outcomes


def judge(mutant: Mutant, calls: CoverageMap, limits: Limits) -> str:
    """Return what notices the mutant: `tests`, `simulator` or `processes`, and `, hung` if by not ending.

    `survived`: nothing does. `unclear`: something did not end in time, with and without the mutant.
    """
    service = next(service for service in PROCESS_TESTS if mutant.path.is_relative_to(service))
    simulator = "quorum" if service == _QUORUM else "cluster"
    tests = calls.tests_of(mutant.path, mutant.function_line, seconds_max=limits.timeout_s / 2)
    runs: list[tuple[str, list[str], float]] = []
    if tests:
        runs.append(("tests", [*PYTEST, *tests], limits.timeout_s))
    if limits.sim_seeds:
        seeds = ["-m", "tests.mutants.seeds", simulator, str(limits.sim_seeds)]
        runs.append(("simulator", [sys.executable, *seeds], limits.timeout_s))
    if limits.process_timeout_s:
        processes = _process_tests(PROCESS_TESTS[service])
        runs.append(("processes", processes, limits.process_timeout_s))
    outcome = "survived"
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        source = Path(directory) / mutant.path.name
        source.write_text(mutant.source)
        environment = {
            **os.environ,
            "MUTANT_MODULE": _module(mutant.path),
            "MUTANT_SOURCE": str(source),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(START), os.environ.get("PYTHONPATH")])),
        }
        for name, command, timeout_s in runs:
            code = _run(command, environment, timeout_s)
            if name != "simulator":
                assert code in (None, 0, *_FAILED), f"pytest ended with {code}: {command}"
            if code is None and _run(command, dict(os.environ), timeout_s) is None:
                outcome = "unclear"
            elif code != 0:
                return name if code is not None else f"{name}, hung"
    return outcome


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
