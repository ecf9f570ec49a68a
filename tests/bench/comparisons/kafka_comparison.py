"""Runs both clusters, and measures one after the other in pairs of runs with the same client; the
side that begins alternates.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.bench.comparisons.kafka_cluster import KafkaCluster
from tests.bench.comparisons.kafka_requests import (
    CONSUMERS,
    GROUPS,
    MEMBERS,
    TOPICS,
    Load,
    Requests,
    measured,
)
from tests.bench.comparisons.kafka_rows import Row, cost_row, ratio_row, throughput_row
from tests.bench.comparisons.odradek_cluster import OdradekCluster, OdradekHost
from tests.bench.processes import cpu_s, rss_mib

CLIENT_TIMEOUT_S: Final = 300.0
MEMORY_RATIO_MAX: Final = 0.25
START_RATIO_MAX: Final = 0.5
PRODUCE_CPU_S_PER_GB_MAX: Final = 2.2
FETCH_CPU_S_PER_GB_MAX: Final = 0.45
REPLICATED_CPU_S_PER_GB_MAX: Final = 8.0
REQUEST_CPU_RATIO_MAX: Final = 1.0
DELETION_S_MAX: Final = 60.0
REMNANT_BYTES_MAX: Final = 10 * 1024 * 1024
Cluster = KafkaCluster | OdradekCluster
Pairs = list[tuple[float, float]]


def run_client(what: str, bootstrap: str, topic: str, **options: object) -> dict[str, Any]:
    """Run one measurement in a fresh process."""
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.bench.comparisons.kafka_client",
            what,
            bootstrap,
            topic,
            *words,
        ],
        stdout=subprocess.PIPE,
        check=True,
        timeout=CLIENT_TIMEOUT_S,
    )
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


class Comparison:
    """A comparison of two clusters with `nodes` brokers each; their topics have `nodes` replicas.

    It is a context manager that stops both clusters on exit.
    """

    def __init__(
        self,
        jars: Path,
        directory: Path,
        *,
        nodes: int,
        pairs: int,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self._directory = directory
        self._nodes = nodes
        self._pairs = pairs
        self._tell = tell
        self.acks = "1" if nodes == 1 else "all"
        self.label = f"acks={self.acks} RF {nodes}"
        self.sides: list[Cluster] = [
            OdradekCluster(directory / "odradek", nodes=nodes),
            KafkaCluster(jars, directory / "kafka", nodes=nodes),
        ]
        self._topics = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for side in self.sides:
            side.__exit__(kind, error, trace)

    def start(self) -> dict[str, float]:
        """Start one side after the other; return the seconds from process start to the first
        acknowledgement.
        """
        waits_s = {}
        for side in self.sides:
            began_s = time.time()
            side.start()
            result = run_client("first", side.bootstrap, "first", acks=self.acks)
            waits_s[side.name] = result["acknowledged_at_s"] - began_s
        self._tell({"measure": "start", "nodes": self._nodes} | waits_s)
        return waits_s

    def throughput(self, size: int, records: int) -> list[Row]:
        """Measure pairs of produce and consume; with records of 1 KiB also the brokers' CPU
        time.
        """
        rates: dict[str, Pairs] = {"produce": [], "consume": []}
        costs: dict[str, Pairs] = {"produce": [], "consume": []}
        for pair in range(-1, self._pairs):
            results = {
                side.name: self._produce_and_consume(
                    side, size, records if pair >= 0 else records // 4
                )
                for side in self._in_turn(pair)
            }
            for what in rates:
                ours, theirs = results["odradek"][what], results["kafka"][what]
                self._tell(
                    {"measure": what, "case": self.label, "size": size, "pair": pair}
                    | {"ratio": round(ours["records_per_s"] / theirs["records_per_s"], 3)}
                    | {"odradek": ours, "kafka": theirs}
                )
                if pair >= 0:  # the first pair warms both sides up
                    rates[what].append((ours["records_per_s"], theirs["records_per_s"]))
                    costs[what].append((ours["cpu_s_per_gb"], theirs["cpu_s_per_gb"]))
        name = "1 KiB" if size == 1024 else f"{size} B"
        rows = [throughput_row(f"{what} {name} {self.label}", rates[what]) for what in rates]
        if size == 1024:
            rows += self._cost_rows(costs)
        return rows

    def _cost_rows(self, costs: dict[str, Pairs]) -> list[Row]:
        if self._nodes > 1:
            what = f"broker CPU, produce 1 KiB {self.label}, all brokers"
            most = REPLICATED_CPU_S_PER_GB_MAX
            return [cost_row(what, costs["produce"], cpu_s_per_gb_max=most)]
        produced, fetched = costs["produce"], costs["consume"]
        return [
            cost_row(
                f"broker CPU, produce 1 KiB {self.label}",
                produced,
                cpu_s_per_gb_max=PRODUCE_CPU_S_PER_GB_MAX,
            ),
            cost_row("broker CPU, fetch 1 KiB", fetched, cpu_s_per_gb_max=FETCH_CPU_S_PER_GB_MAX),
        ]

    def paced(self, seconds: float) -> list[Row]:
        """Measure the p99 latency at 1,000 records/s: to the acknowledgement, and to receipt by the
        consumer.
        """
        waits: dict[str, Pairs] = {"ack_ms_p99": [], "arrival_ms_p99": []}
        for pair in range(-1, self._pairs):
            results = {}
            for side in self._in_turn(pair):
                topic = self._create(side)
                results[side.name] = run_client(
                    "paced", side.bootstrap, topic, acks=self.acks, seconds=seconds
                )
            self._tell({"measure": "paced", "case": self.label, "pair": pair} | results)
            for what in waits if pair >= 0 else ():
                waits[what].append((results["odradek"][what], results["kafka"][what]))
        return [
            ratio_row(
                f"p99 at 1,000/s, send to {end}, {self.label}", pairs, ratio_max=1.0, unit="ms"
            )
            for end, pairs in zip(("acknowledgement", "consumer"), waits.values(), strict=True)
        ]

    def transactions(self, count: int) -> list[Row]:
        """Measure transactions of one record, one after the other: their rate, and the latency of a commit."""
        rates: Pairs = []
        waits_ms: Pairs = []
        for pair in range(-1, self._pairs):
            results = {}
            for side in self._in_turn(pair):
                topic = self._create(side)
                result = run_client("transactions", side.bootstrap, topic, records=count)
                result["transactions_per_s"] = round(count / result.pop("seconds"), 1)
                results[side.name] = result
            ours, theirs = results["odradek"], results["kafka"]
            self._tell({"measure": "transactions", "case": self.label, "pair": pair} | results)
            if pair >= 0:  # the first pair warms both sides up
                rates.append((ours["transactions_per_s"], theirs["transactions_per_s"]))
                waits_ms.append((ours["commit_ms_p99"], theirs["commit_ms_p99"]))
        what = f"transactions of one record, {self.label}"
        return [
            throughput_row(what, rates),
            ratio_row(f"p99 of the commit, {what}", waits_ms, ratio_max=1.0, unit="ms"),
        ]

    def requests(self, seconds: float, program: Path) -> list[Row]:
        """Measure single requests in turn: their rate, and the brokers' CPU time for each
        request.
        """
        loads = {side.name: Requests(side, nodes=self._nodes) for side in self.sides}
        for load in loads.values():
            load.prepare()
        cases: dict[str, Callable[[Requests], Load]] = {
            f"produce, {count} connections": partial(Requests.produce, connections=count)
            for count in ((1, 16, 64, 256) if self._nodes == 1 else (64,))
        }
        if self._nodes == 1:
            cases |= {
                f"commit, {GROUPS} groups": Requests.commit,
                f"heartbeat, {MEMBERS} members": Requests.heartbeat,
                f"metadata of {TOPICS} topics": Requests.metadata,
                "open, ask versions, close": Requests.connect,
                f"fan-out to {CONSUMERS} consumers": Requests.fan_out,
            }
        rows: list[Row] = []
        for name, prepare in cases.items():
            frames = {side.name: prepare(loads[side.name]) for side in self.sides}
            rates: Pairs = []
            costs: Pairs = []
            for pair in range(-1, self._pairs):
                result = {
                    side.name: measured(program, side, frames[side.name], seconds)
                    for side in self._in_turn(pair)
                }
                self._tell(
                    {"measure": "requests", "case": f"{name}, {self.label}", "pair": pair} | result
                )
                if pair >= 0:  # the first pair warms both sides up
                    ours, theirs = result["odradek"], result["kafka"]
                    rates.append((ours["rate"], theirs["rate"]))
                    costs.append((ours["broker_cpu_us"], theirs["broker_cpu_us"]))
            rows.append(throughput_row(f"{name}, {self.label}", rates))
            rows.append(
                ratio_row(
                    f"broker CPU for each, {name}, {self.label}",
                    costs,
                    ratio_max=REQUEST_CPU_RATIO_MAX,
                    unit="us",
                )
            )
        return rows

    def processes(self, seconds: float, program: Path, directory: Path) -> list[Row]:
        """Measure produces of one record at 64 connections with one broker of Odradek, with the two brokers of `odradek
        broker --processes 2`, and with one broker of Kafka, one after the other. Each line has the numbers of cores
        that brokers and client keep busy.
        """
        rates: dict[str, list[float]] = {"odradek": [], "odradek-two": [], "kafka": []}
        directory.mkdir()
        with OdradekHost(directory, processes=2, name="odradek-two") as two:
            two.start()
            run_client("first", two.bootstrap, "first", acks="1")
            frames: dict[str, Load] = {}
            for side in (*self.sides, two):
                requests = Requests(side, nodes=1)
                requests.prepare()
                frames[side.name] = requests.produce(64)
            for pair in range(-1, self._pairs):
                sides = [*self.sides, two] if pair % 2 else [two, *self.sides[::-1]]
                result = {
                    side.name: measured(program, side, frames[side.name], seconds) for side in sides
                }
                for figures in result.values():
                    for who in ("broker", "client"):
                        used = figures["rate"] * figures[f"{who}_cpu_us"] / 1e6
                        figures[f"{who}_cores"] = round(used, 2)
                self._tell({"measure": "processes", "pair": pair} | result)
                for name, figures in result.items() if pair >= 0 else ():
                    rates[name].append(figures["rate"])
        ours = list(zip(rates["odradek-two"], rates["odradek"], strict=True))
        theirs = list(zip(rates["odradek-two"], rates["kafka"], strict=True))
        return [
            throughput_row("two brokers of a host / one, produce, 64 connections", ours),
            throughput_row("two brokers of a host / one of Kafka, the same", theirs),
        ]

    def memory(self) -> Row:
        """Measure resident memory after the load.

        Odradek's controller is included, because Kafka's combined nodes include theirs.
        """
        ours, theirs = (rss_mib(side.pids) for side in self.sides)
        self._tell(
            {"measure": "memory", "nodes": self._nodes, "odradek_mib": round(ours)}
            | {"odradek_brokers_mib": round(rss_mib(self.sides[0].broker_pids))}
            | {"kafka_mib": round(theirs)}
        )
        return ratio_row(
            f"memory after load, {self._nodes} broker(s) with controller",
            [(ours, theirs)],
            ratio_max=MEMORY_RATIO_MAX,
            unit="MiB",
        )

    def _in_turn(self, pair: int) -> list[Cluster]:
        return self.sides if pair % 2 else self.sides[::-1]

    def _produce_and_consume(self, side: Cluster, size: int, records: int) -> dict[str, Any]:
        bytes_before = allocated_bytes(self._directory / side.name)
        topic = self._create(side)
        results = {}
        for what in ("produce", "consume"):
            before_s = cpu_s(side.broker_pids)
            result = run_client(
                what, side.bootstrap, topic, acks=self.acks, records=records, size=size
            )
            used_s = cpu_s(side.broker_pids) - before_s
            result["records_per_s"] = round(records / result["seconds"])
            result["mb_per_s"] = round(records * size / result.pop("seconds") / 1e6, 1)
            result["cpu_s_per_gb"] = round(used_s / (records * size / 1e9), 2)
            results[what] = result
        admin = AdminClient({"bootstrap.servers": side.bootstrap})
        admin.delete_topics([topic], request_timeout=30)[topic].result(30)
        # Both sides then begin with the same free memory. A page that a virtual machine has not used yet costs many
        # times more than one that a deleted file used, so the side that writes after the other side's files were
        # deleted would have an advantage.
        deadline_s = time.monotonic() + DELETION_S_MAX
        while allocated_bytes(self._directory / side.name) > bytes_before + REMNANT_BYTES_MAX:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{side.name} has not deleted the files of {topic}")
            time.sleep(0.1)
        return results

    def _create(self, side: Cluster) -> str:
        self._topics += 1
        topic = f"bench-{self._topics}"
        admin = AdminClient({"bootstrap.servers": side.bootstrap})
        new = NewTopic(
            topic,
            num_partitions=1,
            replication_factor=self._nodes,
            # Odradek obeys the topic's value when it deletes the topic, Apache Kafka the broker's value.
            config={"file.delete.delay.ms": "1000"},
        )
        admin.create_topics([new], request_timeout=30)[topic].result(30)
        return topic


def allocated_bytes(directory: Path) -> int:
    """Return the disk space of all files below a directory that other processes write to meanwhile."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
    return total


def start_row(waits_s: list[dict[str, float]]) -> Row:
    """Return the row for the time from start to first acknowledgement with one node."""
    pairs = [(waits["odradek"], waits["kafka"]) for waits in waits_s]
    return ratio_row(
        "start to first acknowledgement, 1 node", pairs, ratio_max=START_RATIO_MAX, unit="s"
    )
