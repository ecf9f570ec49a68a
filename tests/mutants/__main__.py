"""Mutation tests: random single-line mutants of the log, replication and the quorum.

    python -m tests.mutants --count 100 --seed 1
    python -m tests.mutants --count 20 --paths services/broker/odradek_broker/partition

For each mutant, these run until one of them fails: the quickest tests that execute its line, some
seeds of its simulator, and tests with real processes. (The first run makes a map of lines and
tests, which takes minutes and is kept in `.mutants`.) A mutant that survives all of them is printed
with its change: either a test is missing, or the change makes no difference that a caller could
see. Changes of the second kind are listed in `equivalents.toml` with the reason, and are neither
run nor counted.

A test that fails, or a run that does not end in time, counts as noticing the mutant only if it
passes without the mutant, because on a busy machine any test may fail or hang. Otherwise the mutant
is `unclear`, which does not count as noticed.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.coverage_map import CoverageMap, Run, coverage_map
from tests.mutants.equivalents import Equivalents
from tests.mutants.operators import Mutant, mutants_of
from tests.mutants.warm import SEEDS, WarmRunner

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
_INTEGRATION = Path("tests/integration")
# Quick tests with real processes, by folder. The first entry whose folder contains the mutant is used.
_QUORUM_TESTS = ("quorum", "voter_network", "other_voters")
PROCESS_TESTS = {
    _QUORUM: (_INTEGRATION / "quorum/test_voter_processes.py",),
    _BROKER / "odradek_broker/log/directory": (
        Path("tests/unit/sdk/test_strays.py"),
        _INTEGRATION / "broker/test_one_broker.py",
        _INTEGRATION / "broker/test_orphans.py",
        _INTEGRATION / "broker/test_disk_failure.py",
    ),
    _BROKER: (
        _INTEGRATION / "broker/test_one_broker.py",
        _INTEGRATION / "broker/test_failover.py",
    ),
}
START = Path(__file__).parent  # has sitecustomize.py
_FAILED = (1, 2)  # pytest's exit status for failed tests, and for a module that does not import
TESTS = [
    *(Path("tests/unit") / name for name in ("partition", "replication", "log", "quorum")),
    Path("tests/sim/test_directed_schedules.py"),
    # Several voters in one process.
    *(_INTEGRATION / "quorum" / f"test_{name}.py" for name in _QUORUM_TESTS),
]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for one mutant: seeds of its simulator, and the seconds that each run may take."""

    sim_seeds: int
    timeout_s: float
    process_timeout_s: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="which mutants")
    parser.add_argument(
        "--matching",
        help=r"instead of a sample: all mutants of lines that match, such as 'log\.py:41  ' or 'sync'",
    )
    parser.add_argument("--paths", type=Path, nargs="+", default=PATHS, help="files to mutate")
    parser.add_argument("--tests", type=Path, nargs="+", default=TESTS, help="tests to run")
    parser.add_argument("--sim-seeds", type=int, default=6, help="seeds for each mutant")
    parser.add_argument("--timeout", type=float, default=60, help="s for the tests of one mutant")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at once")
    parser.add_argument(
        "--process-timeout",
        type=float,
        default=300,
        help="s for tests with processes; 0: leave them out",
    )
    options = parser.parse_args()
    every = [m for file in _files(options.paths, "*.py") for m in mutants_of(file)]
    if options.matching:
        pattern = re.compile(options.matching)
        chosen = [m for m in every if pattern.search(f"{m.path.as_posix()}:{m.line}  {m.text}")]
    else:
        chosen = random.Random(options.seed).sample(every, min(options.count, len(every)))
    limits = Limits(options.sim_seeds, options.timeout, options.process_timeout)
    runners = Runners(options.jobs)
    try:
        test_files = _files(options.tests, "test_*.py")
        tests = coverage_map(options.paths, test_files, runners.run, jobs=options.jobs)
        outcomes = _judge_all(chosen, Judge(tests, limits, runners.run), jobs=options.jobs)
    finally:
        runners.close()
    survivors = [m for m in chosen if outcomes[m] in ("survived", "unclear")]
    counted = [m for m in chosen if outcomes[m] != "equivalent"]
    killed = len(counted) - len(survivors)
    share = 100 * killed / max(len(counted), 1)
    print(f"\n{killed} of {len(counted)} noticed ({share:.0f} %): {Counter(outcomes.values())}")
    for mutant in survivors:
        print(mutant)
    return int(killed < 0.95 * len(counted))


class Runners:
    """The warm runners of several parallel runs."""

    def __init__(self, jobs: int) -> None:
        self._idle: queue.SimpleQueue[WarmRunner] = queue.SimpleQueue()
        self._all = [WarmRunner() for _ in range(jobs)]
        for runner in self._all:
            self._idle.put(runner)

    def run(
        self, arguments: list[str], environment: dict[str, str], timeout_s: float
    ) -> int | None:
        runner = self._idle.get()
        try:
            return runner.run(arguments, environment, timeout_s=timeout_s)
        finally:
            self._idle.put(runner)

    def close(self) -> None:
        for runner in self._all:
            runner.close()


def _judge_all(mutants: list[Mutant], judge: Judge, *, jobs: int) -> dict[Mutant, str]:
    """Judge mutants, several in parallel, and print each result at once, because a run may be
    interrupted.
    """
    equivalents = Equivalents.read()
    outcomes: dict[Mutant, str] = {}

    def timed(mutant: Mutant) -> tuple[str, float]:
        began_s = time.monotonic()
        if mutant in equivalents:
            return "equivalent", 0.0
        return judge.outcome(mutant), time.monotonic() - began_s

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


class Judge:
    """Runs tests with a mutant instead of the original module."""

    def __init__(self, tests: CoverageMap, limits: Limits, run: Run) -> None:
        self._tests = tests
        self._limits = limits
        self._run = run

    def outcome(self, mutant: Mutant) -> str:
        """Return what notices the mutant: `tests`, `simulator` or `processes`, with `, hung` if the
        run did not end.

        `survived` means that nothing noticed it; `unclear`, that a run did not end in time with and
        without the mutant.
        """
        outcome = "survived"
        with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
            source = Path(directory) / mutant.path.name
            source.write_text(mutant.source)
            environment = {
                "MUTANT_MODULE": _module(mutant.path),
                "MUTANT_SOURCE": str(source),
                "PYTHONPATH": os.pathsep.join(
                    filter(None, [str(START), os.environ.get("PYTHONPATH")])
                ),
            }
            failed = Path(directory) / "failed"
            environment["MUTANT_FAILED"] = str(failed)
            for name, arguments, timeout_s in self._runs(mutant):
                status = self._run(arguments, environment, timeout_s)
                if status == 0:
                    continue
                assert status in (None, *_FAILED), f"{name} ended with {status}: {arguments}"
                if status is not None and failed.exists():
                    arguments = [failed.read_text()]
                if self._run(arguments, {}, timeout_s) == 0:
                    return name if status is not None else f"{name}, hung"
                outcome = "unclear"
        return outcome

    def _runs(self, mutant: Mutant) -> Iterator[tuple[str, list[str], float]]:
        limits = self._limits
        tests = self._tests.tests_of(mutant, seconds_max=limits.timeout_s / 6)
        if tests:
            yield "tests", tests, limits.timeout_s
        if limits.sim_seeds:
            simulator = "quorum" if mutant.path.is_relative_to(_QUORUM) else "cluster"
            yield "simulator", [SEEDS, simulator, str(limits.sim_seeds)], limits.timeout_s
        if limits.process_timeout_s:
            judging = next(
                judging for place, judging in PROCESS_TESTS.items() if place in mutant.path.parents
            )
            arguments = ["-m", "not long", *map(str, judging)]
            yield "processes", arguments, limits.process_timeout_s


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
