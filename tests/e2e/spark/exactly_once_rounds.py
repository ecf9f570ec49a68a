"""Kills processes at each step of a staged delivery: `python -m
tests.e2e.spark.exactly_once_rounds`.

In each round, records are sent and one point of the delivery is armed. When a Python worker reaches
this point, it stops there, and SIGKILL hits either the driver with all its processes, which is then
restarted from its checkpoint, or the worker's executor. A round ends when the query's checkpoint
says that all records are written. At the end, readers of committed records must find each record
once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.e2e.spark import stop_points
from tests.e2e.spark.driver_process import DriverProcess
from tests.e2e.spark.fault_rounds import end_of
from tests.e2e.spark.relay_driver import MODULE
from tests.e2e.spark.short_jvm import AS_ARGUMENTS
from tests.e2e.spark.topics import Output, Topics

RECORDS_A_ROUND = 3_000
PARTITIONS = 4
SOURCE, TARGET = "orders", "relayed"
ROUND_S_MAX = 600.0
LEASE_MS = 10_000

DRIVER_POINTS = (
    "before completion",
    "completed",
    "prepared",
    "writing",
    "opened",
    "before prepare",
)
EXECUTOR_POINTS = ("prepared", "writing", "before prepare", "opened")
Kill = tuple[str, str]


def kills(driver: int, executor: int) -> list[Kill]:
    """Return this many kills of each kind. They use the points of the delivery one after the other."""
    return [
        *(("driver", DRIVER_POINTS[number % len(DRIVER_POINTS)]) for number in range(driver)),
        *(
            ("executor", EXECUTOR_POINTS[number % len(EXECUTOR_POINTS)])
            for number in range(executor)
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What readers of committed records found, and how many rows were written more than once."""

    sent: int
    lost: int
    twice: int
    made_up: int
    written_again: int

    @property
    def is_exact(self) -> bool:
        return not (self.lost or self.twice or self.made_up)


@dataclass(slots=True)
class Rounds:
    """One run of several rounds."""

    cluster: EmbeddedCluster
    directory: Path
    master: str
    topics: Topics = field(init=False)
    driver: DriverProcess = field(init=False)
    environment: dict[str, str] = field(init=False)

    @property
    def _stops(self) -> Path:
        return self.directory / "stops"

    def run(self, plan: Sequence[Kill]) -> Outcome:
        """Run all rounds and the comparison. Raises AssertionError if a driver stops by itself."""
        self.topics = Topics(self.cluster.bootstrap)
        replicas = len(self.cluster.brokers)
        for name in (SOURCE, TARGET):
            self.topics.create(name, partitions=PARTITIONS, replicas=replicas)
        self.environment = stop_points.install(self._stops)
        self.driver = self._new_driver()
        try:
            for number, (victim, point) in enumerate(plan):
                self._round(number, victim, point)
            self.driver.terminate()
            assert self.driver.wait() == 0, self.driver.log()
        finally:
            self.driver.__exit__()
        return self._outcome()

    def _round(self, number: int, victim: str, point: str) -> None:
        began_s = time.monotonic()
        stop_points.arm(self._stops, point)
        records = [Output(b"%d/%d" % (number, index)) for index in range(RECORDS_A_ROUND)]
        assert self.topics.send(SOURCE, records) == len(records)
        self._wait(lambda: stop_points.reached(self._stops, point) is not None)
        worker = stop_points.reached(self._stops, point)
        assert worker is not None
        if victim == "driver":
            self.driver.kill()
            # Killing the driver's process group does not reach workers, which have their own groups.
            kill_if_left(worker)
            self.driver.__exit__()
            self.driver = self._new_driver()
        else:
            os.kill(_executor_of(worker), signal.SIGKILL)
            kill_if_left(worker)
        stop_points.disarm(self._stops, point)
        ends = self.topics.ends(SOURCE)
        self._wait(lambda: end_of(self.directory / "checkpoint", SOURCE) == ends)
        print(
            f"round {number}: {victim} killed at {point!r}; over after"
            f" {time.monotonic() - began_s:.1f} s",
            flush=True,
        )

    def _new_driver(self) -> DriverProcess:
        return DriverProcess(
            self.directory / "driver.log",
            *("--bootstrap", self.cluster.bootstrap, "--from", SOURCE, "--to", TARGET),
            *("--checkpoint", str(self.directory / "checkpoint"), "--trigger-s", "0.1"),
            *("--master", self.master, *AS_ARGUMENTS),
            module=MODULE,
            environment=self.environment,
        )

    def _wait(self, condition) -> None:  # type: ignore[no-untyped-def]
        self.driver.wait_until(condition, timeout_s=ROUND_S_MAX)

    def _outcome(self) -> Outcome:
        sent = {f"{r.partition}:{r.offset}".encode() for r in self.topics.read(SOURCE)}
        committed = Counter(r.value for r in self.topics.read(TARGET))
        every = self.topics.read(TARGET, isolation_level="read_uncommitted")
        return Outcome(
            sent=len(sent),
            lost=len(sent - committed.keys()),
            twice=sum(count > 1 for count in committed.values()),
            made_up=len(committed.keys() - sent),
            written_again=len(every) - len(sent),
        )


def kill_if_left(worker: int) -> None:
    """Kill a worker, unless it has already ended by itself because its executor has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)


def _executor_of(worker: int) -> int:
    """Return the process id of the JVM that a Python worker belongs to."""
    pid = worker
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
            return pid
    raise AssertionError(f"the worker {worker} belongs to no JVM")


def play(directory: Path, plan: Sequence[Kill], *, brokers: int, master: str) -> Outcome:
    """Start a cluster, run the rounds on it, and print the results."""
    settings = (f"transaction.staged.lease.ms={LEASE_MS}",)
    with EmbeddedCluster(ClusterPlan(brokers=brokers, controllers=1, settings=settings)) as cluster:
        cluster.start()
        cluster.wait_ready()
        outcome = Rounds(cluster, directory, master).run(plan)
    print(
        f"{len(plan)} rounds, {dict(Counter(victim for victim, _ in plan))}: {outcome.sent} records sent;"
        f" {outcome.lost} lost, {outcome.twice} twice, {outcome.made_up} made up;"
        f" {outcome.written_again} were written again and not committed",
        flush=True,
    )
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.e2e.spark.exactly_once_rounds", description=__doc__
    )
    parser.add_argument("--driver", type=int, default=20, help="kills of the driver")
    parser.add_argument("--executor", type=int, default=20, help="kills of an executor")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="exactly-once-") as directory:
        plan = kills(settings.driver, settings.executor)
        outcome = play(Path(directory), plan, brokers=settings.brokers, master=settings.master)
    return 0 if outcome.is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
