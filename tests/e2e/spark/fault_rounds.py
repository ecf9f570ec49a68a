"""Injects one fault in each round while a query runs; every row must be written once: `python -m
tests.e2e.spark.fault_rounds --rounds 20`.

There are three brokers, three replicas, and a driver in a separate process. In each round,
records are sent, and when the query has read a part of them, a fault happens: a broker is killed, a
broker is stopped in a controlled way, all leaders move while nothing stops, or the driver is killed
with its JVM and its workers and restarted from the checkpoint. Each fault occurs once in every four
rounds. A round ends when both queries have read all that was sent. At the end, the rows in files
and in the sink's topic are compared with a direct read, by offset and value.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.e2e.spark.driver_process import DriverProcess
from tests.e2e.spark.fault_driver import MODULE
from tests.e2e.spark.file_sink_log import committed_files
from tests.e2e.spark.short_jvm import AS_ARGUMENTS
from tests.e2e.spark.topics import Output, Topics

RECORDS_A_ROUND = 20_000
BATCHES_A_ROUND = 5
PARTITIONS = 4
SOURCE, TARGET = "faults", "relayed"
QUERIES = ("rows", "relay")
ROUND_S_MAX = 600.0
KINDS = ("broker killed", "broker stopped", "leaders moved", "driver killed")

Row = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The results of the rounds. `faults` has the kind of fault of each round."""

    faults: tuple[str, ...]
    sent: int
    missing: int
    made_up: int
    twice: int
    sink_missing: int
    sink_made_up: int
    sink_duplicates: int

    @property
    def is_exact(self) -> bool:
        """Return whether the source's rows equal those of a direct read, and the sink has each row
        once.
        """
        of_sink = self.sink_missing or self.sink_made_up or self.sink_duplicates
        return not (self.missing or self.made_up or self.twice or of_sink)


@dataclass(slots=True)
class Rounds:
    """One run of several rounds; `run` closes it."""

    cluster: EmbeddedCluster
    directory: Path
    master: str
    seed: int
    topics: Topics = field(init=False)
    dice: random.Random = field(init=False)
    driver: DriverProcess = field(init=False)

    def run(self, count: int) -> Outcome:
        """Run all rounds and the comparison. Raises AssertionError if a driver stops by itself."""
        self.dice = random.Random(self.seed)
        self.topics = Topics(self.cluster.bootstrap)
        for name in (SOURCE, TARGET):
            configs = {"min_insync_replicas": "2"}
            self.topics.create(name, partitions=PARTITIONS, replicas=3, **configs)
        faults: list[str] = []
        self.driver = self._new_driver()
        try:
            while len(faults) < count:
                for kind in self.dice.sample(KINDS, len(KINDS))[: count - len(faults)]:
                    self._round(len(faults), kind)
                    faults.append(kind)
            self.driver.terminate()
            assert self.driver.wait() == 0, self.driver.log()
        finally:
            self.driver.__exit__()
        return self._outcome(tuple(faults))

    def _round(self, number: int, kind: str) -> None:
        share = self.dice.random() * 0.8
        before = self._read_by("rows")
        salt = self.dice.randbytes(90)
        with ThreadPoolExecutor(1) as pool:
            records = [Output(b"%d/%d/" % (number, i) + salt) for i in range(RECORDS_A_ROUND)]
            sending = pool.submit(self.topics.send, SOURCE, records)
            self._wait(lambda: self._read_by("rows") - before >= share * RECORDS_A_ROUND)
            at = self._read_by("rows") - before
            began_s = time.monotonic()
            what = self._strike(kind)
            assert sending.result(ROUND_S_MAX) == RECORDS_A_ROUND
        ends = self.topics.ends(SOURCE)
        self._wait(lambda: all(self._end_of(query) == ends for query in QUERIES))
        took_s = time.monotonic() - began_s
        print(
            f"round {number}: {what} with {at} of {RECORDS_A_ROUND} rows read; all read"
            f" {took_s:.1f} s later",
            flush=True,
        )

    def _strike(self, kind: str) -> str:
        if kind == "leaders moved":
            was = self.topics.leaders(SOURCE)
            self.topics.move_leaders(SOURCE)
            now = self.topics.leaders(SOURCE)
            assert was != now, "no leader moved"
            return f"leaders moved from {list(was.values())} to {list(now.values())}"
        if kind == "driver killed":
            self.driver.kill()
            self.driver.__exit__()
            self.driver = self._new_driver()
            return "driver killed"
        led = Counter(self.topics.leaders(SOURCE).values())
        victim = self.cluster.brokers[self.dice.choice(sorted(led.keys() - {-1}))]
        if kind == "broker killed":
            victim.kill()
        else:
            victim.terminate(20)
        victim.start()
        victim.wait_ready(60)
        return f"{victim.name} {kind.split()[1]}"

    def _new_driver(self) -> DriverProcess:
        return DriverProcess(
            self.directory / "driver.log",
            *("--bootstrap", self.cluster.bootstrap, "--from", SOURCE, "--to", TARGET),
            *("--checkpoint", str(self.directory / "checkpoint"), "--trigger-s", "0.1"),
            *("--rows", str(self.directory / "rows"), "--master", self.master),
            *("--batch-offsets-max", str(RECORDS_A_ROUND // BATCHES_A_ROUND)),
            *AS_ARGUMENTS,
            module=MODULE,
        )

    def _wait(self, condition) -> None:  # type: ignore[no-untyped-def]
        self.driver.wait_until(condition, timeout_s=ROUND_S_MAX)

    def _end_of(self, query: str) -> dict[int, int]:
        return end_of(self.directory / "checkpoint" / query, SOURCE)

    def _read_by(self, query: str) -> int:
        return sum(self._end_of(query).values())

    def _outcome(self, faults: tuple[str, ...]) -> Outcome:
        direct = {_row(r.partition, r.offset, r.value) for r in self.topics.read(SOURCE)}
        found = Counter(_parquet_rows(self.directory / "rows"))
        relayed = Counter(_relayed_row(r.value) for r in self.topics.read(TARGET))
        return Outcome(
            faults=faults,
            sent=len(direct),
            missing=len(direct - found.keys()),
            made_up=len(found.keys() - direct),
            twice=found.total() - len(found),
            sink_missing=len(direct - relayed.keys()),
            sink_made_up=len(relayed.keys() - direct),
            sink_duplicates=relayed.total() - len(relayed),
        )


def end_of(checkpoint: Path, topic: str) -> dict[int, int]:
    """Return the offsets up to which a query's last complete batch has read, from its
    checkpoint.
    """
    if not (checkpoint / "commits").exists():
        return {}
    batches = [int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit()]
    if not batches:
        return {}
    offsets = (checkpoint / "offsets" / str(max(batches))).read_text().splitlines()[-1]
    return {int(p): offset for p, offset in json.loads(offsets)[topic].items()}


def _row(partition: int, offset: int, value: bytes | None) -> Row:
    return partition, offset, zlib.crc32(value or b"")


def _relayed_row(value: bytes | None) -> Row:
    partition, offset, crc = (int(part) for part in (value or b"").split(b":"))
    return partition, offset, crc


def _parquet_rows(directory: Path) -> list[Row]:
    import pyarrow.parquet as pq

    rows: list[Row] = []
    for path in committed_files(directory):
        table = pq.read_table(path)
        rows += zip(*(table[c].to_pylist() for c in ("partition", "offset", "crc")), strict=True)
    return rows


def play(directory: Path, *, rounds: int, master: str, seed: int | None = None) -> Outcome:
    """Start a cluster, run the rounds on it, and print the results."""
    seed = random.randrange(1 << 32) if seed is None else seed
    print(f"seed {seed}, {rounds} rounds on {master}", flush=True)
    with EmbeddedCluster(ClusterPlan(brokers=3, controllers=3)) as cluster:
        cluster.start()
        cluster.wait_ready()
        outcome = Rounds(cluster, directory, master, seed).run(rounds)
    print(
        f"{rounds} rounds, {dict(Counter(outcome.faults))}: {outcome.sent} records sent;"
        f" source: {outcome.missing} missing, {outcome.made_up} made up, {outcome.twice} twice;"
        f" sink: {outcome.sink_missing} missing, {outcome.sink_made_up} made up,"
        f" {outcome.sink_duplicates} twice",
        flush=True,
    )
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.e2e.spark.fault_rounds", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    parser.add_argument("--seed", type=int, default=None)
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fault-rounds-") as directory:
        outcome = play(
            Path(directory), rounds=settings.rounds, master=settings.master, seed=settings.seed
        )
    return 0 if outcome.is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
