"""Measures how long a broker with much data takes from a start after kill -9 to an acknowledgement.

    python -m tests.bench.bench_recovery [--gigabytes 10]

The cluster has one controller, one broker, and a topic of 8 partitions with segments of 1 GiB. The
first restart finds all files as the crash left them, so only bytes above the recovery point are
scanned. The second restart finds no index files and no checkpoints, so everything is scanned. The
page cache is not dropped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time

from rich.console import Console
from rich.progress import Progress

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster

TOPIC = "much"
PARTITIONS = 8
VALUE_BYTES = 32 * 1024
READY_S_MAX = 600.0
BAR_S = 30.0
REBUILT = (".index", ".timeindex")
CHECKPOINT = "-offset-checkpoint"


async def write(bootstrap: str, total_bytes: int) -> None:
    """Write the same amount to each partition, and wait for the acknowledgements."""
    noise = os.urandom(VALUE_BYTES * 2)
    records = total_bytes // VALUE_BYTES
    progress = Progress(console=Console(file=sys.stderr), transient=True)
    async with Client(bootstrap) as client:
        await client.admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=1)
        async with client.producer() as producer:
            with progress:
                writing = progress.add_task("writing", total=records)
                for number in range(records):
                    start = number % VALUE_BYTES
                    value = noise[start : start + VALUE_BYTES]
                    await producer.send(TOPIC, value, partition=number % PARTITIONS)
                    if not number % 1_000:
                        progress.update(writing, completed=number)
                await producer.flush(120)


async def first_acknowledgement(bootstrap: str) -> None:
    async with Client(bootstrap) as client, client.producer() as producer:
        for partition in range(PARTITIONS):
            await producer.send_and_wait(TOPIC, b"after", partition=partition)


def forget_what_can_be_rebuilt(cluster: EmbeddedCluster) -> None:
    """Delete index files and checkpoints, so that recovery has to scan everything."""
    for path in cluster.broker_data_dir(1).rglob("*"):
        if path.suffix in REBUILT or path.name.endswith(CHECKPOINT):
            path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--gigabytes", type=float, default=10.0)
    gigabytes = parser.parse_args().gigabytes
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1)) as cluster:
        cluster.start()
        cluster.wait_ready()
        asyncio.run(write(cluster.bootstrap, int(gigabytes * 1e9)))
        broker = cluster.brokers[1]
        for what, prepare in (
            ("restart after kill -9", lambda _: None),
            ("the same without indexes and checkpoints", forget_what_can_be_rebuilt),
        ):
            broker.signal(signal.SIGKILL)
            broker.wait(10)
            prepare(cluster)
            began_s = time.perf_counter()
            broker.start()
            broker.wait_ready(READY_S_MAX)
            asyncio.run(first_acknowledgement(cluster.bootstrap))
            took_s = time.perf_counter() - began_s
            line = {
                "bench": "recovery",
                "what": f"{what}, start to an acknowledgement by every partition",
                "gigabytes": gigabytes,
                "s": round(took_s, 2),
                "bar_s": BAR_S,
                "is_bar_met": took_s <= BAR_S,
            }
            print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
