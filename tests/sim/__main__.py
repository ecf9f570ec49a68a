"""`python -m tests.sim --seeds 500` runs seeds, reports which events happened in them, and prints the command that
repeats each failure.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.sim.planted.bugs import BUGS
from tests.sim.planted.elsewhere import ELSEWHERE
from tests.sim.planted.schedules import SCHEDULES
from tests.sim.regressions import REGRESSIONS
from tests.sim.simulation import Result, run_seed

COVERAGE = (
    "elections",
    "controller elections",
    "fencings",
    "ISR shrinks",
    "ISR expansions",
    "rejoins under load",
    "truncations",
    "incomplete last batches",
    "records lost in power losses",
    "recoveries of the longest log",
    "broker snapshots",
    "controller snapshots",
    "clean shutdowns",
    "streams reset",
    "responses stopped at the gate",
    "responses without a lease",
    "replicas moved",
    "topics deleted",
    "configs changed",
    "log starts advanced",
    "logs reset",
    "production recoveries",
    "deaths in disk operations",
    "moves to the catch_up lane",
    "moves to the hot lane",
    "rebalances",
    "member deaths",
    "members stopped",
    "coordinator loads",
    "coordinator moves with members live",
    "groups migrated",
    "offset commits",
    "fenced commits",
    "waiting fetches woken",
    "epochs validated",
    "batches refused",
    "groups deleted",
    "offsets deleted",
    "topics created by brokers",
    "full disks",
    "replicas failed by a bug",
    "logs damaged",
    "damaged logs truncated",
    "rolling restarts",
)
RERUN_EVERY = 25  # every 25th seed is run twice, and must give the same digest


@dataclass(slots=True)
class Summary:
    """The combined results of all seeds of a run."""

    counters: Counter[str] = field(default_factory=Counter)
    failed: list[Result] = field(default_factory=list)
    different: list[int] = field(default_factory=list)
    seeds: int = 0
    operations: int = 0
    faults: int = 0
    simulated_s: float = 0.0
    operations_least: int = 1 << 60
    faults_least: int = 1 << 60

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.counters.update(result.counters)
        self.operations += result.operations
        self.faults += result.faults
        self.simulated_s += result.simulated_s
        if result.violations:
            self.failed.append(result)
        else:
            self.operations_least = min(self.operations_least, result.operations)
            self.faults_least = min(self.faults_least, result.faults)

    @property
    def uncovered(self) -> list[str]:
        """The events that happened in none of the seeds, so the run proves nothing about them."""
        return [name for name in COVERAGE if not self.counters[name]]

    @property
    def is_good(self) -> bool:
        return not self.failed and not self.different and (self.seeds < 50 or not self.uncovered)


def run_twice(seed: int) -> tuple[Result, bool]:
    """Run a seed. Run every 25th seed a second time; the second value says whether both runs gave the same digest."""
    result = run_seed(seed)
    same = seed % RERUN_EVERY != 0 or run_seed(seed).digest == result.digest
    return result, same


def run(seeds: list[int], *, workers: int, console: Console) -> Summary:
    """Run all seeds; stop at the fifth seed that fails."""
    summary = Summary()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[red]{task.fields[bad]}"),
    )
    with (
        Progress(*columns, console=console) as progress,
        ProcessPoolExecutor(max_workers=workers) as pool,
    ):
        task = progress.add_task("seeds", total=len(seeds), bad="")
        for result, same in pool.map(run_twice, seeds, chunksize=4):
            summary.add(result)
            if not same:
                summary.different.append(result.seed)
            bad = len(summary.failed) + len(summary.different)
            progress.update(task, advance=1, bad=f"{bad} failed" if bad else "")
            if bad >= 5:
                pool.shutdown(cancel_futures=True)
                break
    return summary


def report(summary: Summary, console: Console, elapsed_s: float) -> None:
    """Print a table of the events that happened, and each failure with the command that repeats it."""
    table = Table(title="Events in the seeds", show_header=True)
    table.add_column("event")
    table.add_column("times", justify="right")
    for name in COVERAGE:
        count = summary.counters[name]
        table.add_row(name, f"{count:,}", style="" if count else "red")
    for name in sorted(n for n in summary.counters if n.startswith("fault: ")):
        table.add_row(name, f"{summary.counters[name]:,}", style="dim")
    console.print(table)
    console.print(
        f"{summary.seeds:,} seeds, {summary.operations:,} client operations (at least "
        f"{summary.operations_least:,} each), {summary.faults:,} faults (at least "
        f"{summary.faults_least:,} each), {summary.simulated_s / 3600:.1f} simulated hours in "
        f"{elapsed_s:.0f} s"
    )
    for result in summary.failed:
        console.print(f"[red]seed {result.seed} failed[/red] after {result.simulated_s:.3f} s:")
        for violation in result.violations[:5]:
            console.print(f"  {violation}", highlight=False, markup=False)
        if result.trace:
            console.print(result.trace, highlight=False, markup=False)
        console.print("\n".join(result.story[-25:]), highlight=False, markup=False)
        console.print(f"  repeat with: python -m tests.sim --seed {result.seed}")
    for seed in summary.different:
        console.print(f"[red]seed {seed} is not deterministic[/red]")
    if summary.seeds >= 50 and summary.uncovered:
        console.print(f"[red]never happened: {', '.join(summary.uncovered)}[/red]")


def hunt(numbers: list[int], seeds_max: int, console: Console) -> bool:
    """Plant each bug and count the seeds until a seed finds the bug. Return whether each bug is found by a seed or a
    schedule.
    """
    table = Table(title="Planted bugs")
    for name in ("#", "bug", "seeds", "seed", "found by"):
        table.add_column(name, overflow="fold")
    all_found = True
    for number in numbers:
        if number in ELSEWHERE:
            found = ELSEWHERE[number]
            table.add_row(str(number), found.name, "", "", f"{found.module}: {found.plant}")
            continue
        bug = BUGS[number]
        schedule = SCHEDULES[number].__name__ if number in SCHEDULES else ""
        with bug.planted():
            for count, seed in enumerate(bug.seeds[:seeds_max], 1):
                result = run_seed(seed)
                if result.violations:
                    by = "; ".join(filter(None, (result.violations[0].name, schedule)))
                    table.add_row(str(number), bug.name, str(count), str(seed), by)
                    break
            else:
                where = schedule or "[red]nothing[/red]"
                table.add_row(str(number), bug.name, f"> {seeds_max}", "", where)
                all_found = all_found and bool(schedule)
    console.print(table)
    return all_found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run only this seed, and print its events")
    parser.add_argument("--workers", type=int, default=2, help="number of worker processes")
    parser.add_argument(
        "--planted",
        type=int,
        nargs="*",
        help="count the seeds that find each planted bug (these numbers, or all)",
    )
    options = parser.parse_args()
    console = Console()
    logging.disable(logging.WARNING)  # production code would log the injected faults
    if options.seed is not None:
        result = run_seed(options.seed, is_verbose=True)
        for violation in result.violations:
            console.print(f"[red]{violation}[/red]")
        console.print(result.trace or f"digest {result.digest:08x}", markup=False)
        return 1 if result.violations else 0
    if options.planted is not None:
        numbers = options.planted or sorted(BUGS.keys() | ELSEWHERE.keys())
        return 0 if hunt(numbers, options.seeds, console) else 1
    began = time.monotonic()
    seeds = list(range(options.first, options.first + options.seeds))
    seeds += [seed for seed in REGRESSIONS if seed not in seeds]
    summary = run(seeds, workers=options.workers, console=console)
    report(summary, console, time.monotonic() - began)
    return 0 if summary.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
