"""`make bench` runs every benchmark in turn and prints one JSON line for each figure. Compare ratios within one
run, because the figures vary from run to run, even on the same machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

from odradek.embedded import ClusterPlan, EmbeddedCluster

BENCHES = {
    "records": ["tests.bench.records"],
    "sdk": ["tests.bench.bench_sdk"],
    "sdk-rf3": ["tests.bench.bench_sdk", "--replicas", "3", "--records", "1000000"],
    "replication": [
        *("tests.bench.bench_sdk", "--replicas", "3", "--records", "300000"),
        *("--value-bytes", "1024", "--paths", "produce"),
    ],
    "transactions": ["tests.bench.bench_transactions"],
    "quorum": ["tests.bench.bench_quorum"],
    "metadata": ["tests.bench.bench_metadata"],
    "gateway": ["tests.bench.bench_gateway"],
    "recovery": ["tests.bench.bench_recovery"],
    "partitions": ["tests.bench.bench_partitions"],
}
START_UP_ROUNDS = 7


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", default=",".join(["start-up", *BENCHES]))
    chosen = parser.parse_args().only.split(",")
    if unknown := set(chosen) - {"start-up", *BENCHES}:
        names = ", ".join(["start-up", *BENCHES])
        parser.error(f"there is no bench {min(unknown)}; the benches are {names}")
    failed = 0
    if "start-up" in chosen:
        bench_start_up()
    for name, arguments in BENCHES.items():
        if name in chosen:
            print(json.dumps({"bench": name}), flush=True)
            failed |= subprocess.run([sys.executable, "-m", *arguments], check=False).returncode
    return failed


def bench_start_up() -> None:
    """Measure the start of the command line, and of a cluster (1 controller, 1 broker) until it
    acknowledges a write.
    """
    waits = []
    for _ in range(START_UP_ROUNDS):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "odradek.cli.main", "--help"], capture_output=True, check=True
        )
        waits.append(time.perf_counter() - began)
    _tell("odradek --help", statistics.median(waits), 0.25)
    waits = []
    for _ in range(3):
        began = time.perf_counter()
        with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1)) as cluster:
            cluster.start()
            cluster.wait_ready()
            subprocess.run(
                [sys.executable, "-c", _FIRST_WRITE, cluster.bootstrap], check=True, timeout=30
            )
            waits.append(time.perf_counter() - began)
    _tell(
        "1 + 1 cluster, start to first acknowledged write (a client process included)",
        min(waits),
        1.5,
    )


_FIRST_WRITE = """
import asyncio, sys
from odradek import Client
async def main():
    async with Client(sys.argv[1]) as client:
        await client.admin.create_topic("first", partitions=1, replication_factor=1)
        async with client.producer() as producer:
            await producer.send_and_wait("first", b"hello")
asyncio.run(main())
"""


def _tell(what: str, seconds: float, bar_s: float) -> None:
    print(
        json.dumps({"bench": "start-up", "what": what, "s": round(seconds, 3), "bar_s": bar_s}),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
