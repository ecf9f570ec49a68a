"""The output of the demo: progress bars while it is running, and tables at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from odradek_demo.flights import Flight
from odradek_demo.ledger import carrier_delays
from odradek_demo.run import Kill, Outcome

SILENCE_S_MAX = 2.0


class Bars:
    """Progress bars, one for each stage, created when the stage first reports its progress.

    If the output is not a terminal, a line is printed when a stage begins, and another one whenever nothing was printed
    for SILENCE_S_MAX.
    """

    def __init__(self, console: Console, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock_s = console, clock_s
        self._printed_s = clock_s()
        self._stage = ""
        self._began_s: dict[str, float] = {}
        self._counts: dict[str, tuple[int, int]] = {}
        self._ended = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="demo progress", daemon=True)
        self._progress = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        if not self._console.is_terminal:
            self._ticking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if not self._console.is_terminal:
            self._ticking.join()
        self._progress.stop()

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._printed_s = self._clock_s()
        self._progress.console.print(line)

    def update(self, stage: str, done: int, total: int) -> None:
        """Set the progress of a stage."""
        self._counts[stage] = (done, total)
        if stage not in self._tasks:
            self._stage, self._began_s[stage] = stage, self._clock_s()
            if not self._console.is_terminal:
                self.say(stage)
            self._tasks[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(self._tasks[stage], completed=done, total=total)

    def break_silence(self) -> None:
        """If nothing was printed for SILENCE_S_MAX, print the progress of the latest stage."""
        now_s, stage = self._clock_s(), self._stage
        if stage and now_s - self._printed_s >= SILENCE_S_MAX:
            done, total = self._counts[stage]
            self.say(f"{stage}: {done:,} of {total:,} after {now_s - self._began_s[stage]:.0f} s")

    def _tick(self) -> None:
        while not self._ended.wait(SILENCE_S_MAX / 8):
            self.break_silence()


def print_report(console: Console, outcome: Outcome, flights: list[Flight]) -> None:
    """Print all tables, followed by the verdict."""
    _print_counts(console, outcome)
    _print_kills(console, outcome)
    _print_replicas(console, outcome)
    _print_group(console, outcome)
    _print_pipeline(console, outcome)
    _print_carriers(console, outcome, flights)
    faults = outcome.faults()
    verdict = (
        "[red]FAILED[/red]: " + "; ".join(faults)
        if faults
        else "[green]no record was lost or duplicated[/green]"
    )
    console.print(f"\n{verdict}")


def _table(console: Console, title: str, *columns: str) -> Table:
    console.print(f"\n[bold]{title}[/bold]")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


def _print_counts(console: Console, outcome: Outcome) -> None:
    read, log = outcome.read_back, outcome.acknowledgements
    table = _table(console, "Records", "what", "figure")
    rows: list[tuple[str, str]] = [
        ("sent", f"{len(read.flights):,}"),
        ("acknowledged (acks=all)", f"{log.count:,}"),
        ("read back", f"{read.read:,}"),
        ("duplicates", f"{read.duplicates:,}"),
        ("missing", f"{read.missing(log):,}"),
        ("out of order within a key", f"{read.out_of_order:,}"),
        ("longest pause in acknowledgements", f"{log.longest_pause_s:.2f} s"),
        ("produced", f"{log.count / outcome.produce_s:,.0f} records/s (limited by --rate)"),
        ("consumed", f"{read.read / max(outcome.consume_s, 1e-9):,.0f} records/s"),
        ("memory of the largest broker", f"{outcome.broker_resident_bytes / 1e6:,.0f} MB"),
        ("SHA-256 sent", outcome.read_back.source_sha256()),
        ("SHA-256 read", outcome.read_back.sha256()),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_kills(console: Console, outcome: Outcome) -> None:
    table = _table(
        console,
        "Killed with SIGKILL",
        "process",
        "at record",
        "pid",
        "pid after",
        "what increased",
        "from",
        "to",
    )
    for kill, what in (
        (outcome.broker_kill, "leader epochs"),
        (outcome.controller_kill, "controller epoch (term)"),
    ):
        table.add_row(
            kill.name,
            f"{kill.at_record:,}",
            str(kill.pid_before),
            str(kill.pid_after),
            what,
            _epochs(kill.epochs_before, kill),
            _epochs(kill.epochs_after, kill),
        )
    console.print(table)


def _epochs(epochs: dict[int, int], kill: Kill) -> str:
    if kill.name.startswith("controller"):
        return str(epochs.get(0, "-"))
    return " ".join(f"p{partition}:{epoch}" for partition, epoch in sorted(epochs.items()))


def _print_replicas(console: Console, outcome: Outcome) -> None:
    table = _table(
        console,
        "Replicas' files",
        "partition",
        "high watermark",
        "segments",
        "bytes x replicas",
        "identical",
    )
    for replica in outcome.replicas:
        table.add_row(
            str(replica.partition),
            f"{replica.high_watermark:,}",
            str(replica.segments),
            f"{replica.bytes_compared:,} x {replica.replicas}",
            "yes" if replica.is_identical else "NO",
        )
    console.print(table)


def _print_group(console: Console, outcome: Outcome) -> None:
    group = outcome.group
    table = _table(console, "A group of 3, one killed", "what", "figure")
    table.add_row("partitions per member", " + ".join(map(str, group.before)))
    table.add_row("after SIGKILL of one member", " + ".join(map(str, group.after)))
    table.add_row("killed pid", str(group.killed_pid))
    table.add_row("until all partitions had an owner", f"{group.seconds:.1f} s (session: 6 s)")
    console.print(table)


def _print_pipeline(console: Console, outcome: Outcome) -> None:
    pipeline = outcome.pipeline
    if pipeline.skipped_because:
        console.print(f"\n[bold]Spark[/bold]: skipped, {pipeline.skipped_because}")
        return
    if pipeline.failed_because:
        console.print(f"\n[bold]Spark[/bold]: failed, {pipeline.failed_because}")
        return
    table = _table(
        console,
        f"Spark, live: {pipeline.windows:,} windows of carrier and hour, {pipeline.differing} differ "
        f"from plain Python, {pipeline.dropped_by_watermark} records dropped by the watermark",
        "carrier",
        "arrived",
        "mean by Spark",
        "mean by Python",
    )
    for carrier, flights, by_spark, directly in pipeline.carriers:
        table.add_row(carrier, f"{flights:,}", f"{by_spark:+.3f}", f"{directly:+.3f}")
    console.print(table)
    console.print(
        f"Rows written back: {pipeline.written:,}, of which {pipeline.written_twice} were written twice. Kills of the"
        f" driver: {pipeline.driver_kills}. Complete batches that were run again: {pipeline.batches_run_again}."
    )


def _print_carriers(console: Console, outcome: Outcome, flights: list[Flight]) -> None:
    table = _table(
        console, "Carriers, from the records read back", "carrier", "flights", "mean delay, min"
    )
    for carrier, count, delay in carrier_delays(outcome.values):
        table.add_row(carrier, f"{count:,}", f"{delay:+.1f}")
    console.print(table)
