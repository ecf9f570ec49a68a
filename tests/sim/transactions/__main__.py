"""`python -m tests.sim.transactions --seeds 200` runs seeds with transactional clients; `--planted` counts the seeds
that find planted bugs.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import pytest

from tests.sim.transactions.planted_bugs import FOUND_BY_SEEDS, HUNTED, Patch
from tests.sim.transactions.transactions_run import Outcome, run_seed

T = TypeVar("T")
SEEDS_PER_WORKER = 40
COVERAGE = (
    "transactions committed",
    "transactions aborted",
    "copies committed",
    "steps completed",
    "steps written again",
    "stable fetches that were refused",
    "two processes with one id",
    "producers that began again",
    "outdated connections closed",
    "coordinators killed",
    "interleaved (G0)",
    "elections",
    "controller elections",
)


def show(outcome: Outcome) -> None:
    """Print the violations of a failed seed, and the command that repeats it."""
    print(f"seed {outcome.seed} failed:")
    for violation in outcome.violations[:5]:
        print(f"  {violation}")
    if outcome.trace:
        print(outcome.trace)
    print("\n".join(outcome.story[-25:]))
    print(
        f"  repeat with: python -m tests.sim.transactions --first {outcome.seed} --seeds 1",
        flush=True,
    )


def in_new_workers(
    work: Callable[[int], T], numbers: range, workers: int, *, per_worker: int = SEEDS_PER_WORKER
) -> Iterator[T]:
    """Yield the results of `work` for these numbers, in order. A worker process ends after about `per_worker` of them.

    A simulated process that is killed leaves requests in progress, in structs that the garbage collector cannot see.
    So each seed keeps some memory, 10 MB on average. The option `max_tasks_per_child` of ProcessPoolExecutor would be
    shorter, but hangs in Python 3.11 to 3.14 when the first workers end (CPython issue 115634).
    """
    for start in range(0, len(numbers), workers * per_worker):
        with ProcessPoolExecutor(
            max_workers=workers,
            mp_context=get_context("spawn"),
            initializer=logging.disable,
            initargs=(logging.WARNING,),
        ) as pool:
            yield from pool.map(work, numbers[start : start + workers * per_worker])


def run(seeds: range, workers: int) -> bool:
    """Run the seeds. Return whether no seed has a violation and, in 20 or more seeds, every kind of event happened."""
    began = time.monotonic()
    counters: Counter[str] = Counter()
    failed: list[int] = []
    decided_min = 1 << 60
    for number, outcome in enumerate(in_new_workers(run_seed, seeds, workers), 1):
        counters.update(outcome.counters)
        if outcome.violations:
            failed.append(outcome.seed)
            show(outcome)
        else:
            decided_min = min(decided_min, outcome.decided)
        if number % 50 == 0:
            print(f"{number} seeds, {len(failed)} failed", flush=True)
    for name in COVERAGE:
        print(f"{counters[name]:>10,}  {name}")
    decided = counters["transactions committed"] + counters["transactions aborted"]
    print(
        f"{len(seeds):,} seeds from {seeds.start}, {len(failed)} with violations {failed}; {decided:,} decided"
        f" transactions, at least {decided_min:,} in each; {time.monotonic() - began:.0f} s"
    )
    missed = [name for name in COVERAGE if not counters[name]]
    if len(seeds) >= 20 and missed:
        print(f"never happened: {', '.join(missed)}")
        return False
    return not failed


def hunt(number: int, plant: Patch, seeds: range) -> int | None:
    """Return the first seed that finds a planted bug; None if none of `seeds` finds it."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for seed in seeds:
            outcome = run_seed(seed)
            if outcome.violations:
                print(f"{number} {plant.__name__}: seed {seed}: {outcome.violations[0]}"[:300])
                return seed
    print(f"{number} {plant.__name__}: none of {seeds} finds it")
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.transactions", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=2, help="number of processes")
    parser.add_argument(
        "--planted",
        type=int,
        nargs="*",
        help="find the first seed for each planted bug (these numbers, or all)",
    )
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # production code would log the injected faults
    seeds = range(options.first, options.first + options.seeds)
    if options.planted is None:
        return 0 if run(seeds, options.workers) else 1
    found = True
    for number, plant in [*((number, plant) for number, plant, _ in FOUND_BY_SEEDS), *HUNTED]:
        if not options.planted or number in options.planted:
            found = hunt(number, plant, seeds) is not None and found
            sys.stdout.flush()
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
