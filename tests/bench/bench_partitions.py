"""Measures the cost of many idle partitions, the duration of their failover, and the duration of their broker's
restart.

    python -m tests.bench.bench_partitions [--partitions 12000]
    python -m tests.bench.bench_partitions --partitions 20000 --descriptors 4096

The cluster has one controller and three brokers, and each partition has three replicas. At first nothing is written.
The failover lasts from SIGKILL of a broker until a client's metadata names another leader for each of its partitions;
the restart, until the broker reports that it is ready. Then a record is written to each partition, and a broker is
killed at once and started again, when most of its logs have bytes that no sync covers.

With `--descriptors N` there is one broker, which may have N files open, and each partition has one replica. A record is
written to each partition, all records are read, the broker is killed and started again, and all records are read again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from odradek import Client
from odradek.cluster.metadata_cache import Partition
from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.bench.processes import cpu_s, rss_mib

PARTITIONS_A_TOPIC = 100
SETTLED_S = 20.0
IDLE_S = 30.0
CREATED_S_MAX = 900.0
READY_S_MAX = 120.0
BARS = {"cpu_percent": 4.0, "rss_mib": 150.0, "failover_s": 1.5, "restart_s": 5.0}


def report(what: str, bar: str | None = None, **figures: Any) -> None:
    """Print one line of JSON. `bar` names the target that no number in the first figure may exceed."""
    line = {"bench": "partitions", "what": what, **figures}
    if bar is not None:
        line |= {"bar": BARS[bar], "is_bar_met": max(next(iter(figures.values()))) <= BARS[bar]}
    print(json.dumps(line), flush=True)


async def partitions(client: Client) -> list[Partition]:
    return [one for topic in await client.admin.list_topics() for one in topic.partitions]


async def create(client: Client, count: int, *, replicas: int = 3) -> float:
    """Create topics until there are `count` partitions with full ISRs; return the seconds."""
    began_s = time.perf_counter()
    console = Console(file=sys.stderr)
    for number in range(count // PARTITIONS_A_TOPIC):
        await client.admin.create_topic(
            f"many-{number}", partitions=PARTITIONS_A_TOPIC, replication_factor=replicas
        )
        console.print(f"{(number + 1) * PARTITIONS_A_TOPIC} partitions", end="\r")
    await full_isrs(client, replicas)
    return time.perf_counter() - began_s


async def full_isrs(client: Client, replicas: int) -> None:
    began_s = time.perf_counter()
    while min(len(one.isr) for one in await partitions(client)) < replicas:
        assert time.perf_counter() - began_s < CREATED_S_MAX, "ISRs are not full"
        await asyncio.sleep(1)


async def measure(cluster: EmbeddedCluster, count: int) -> None:
    async with Client(cluster.bootstrap) as client:
        client.admin_timeout_s = READY_S_MAX
        report("created", s=[round(await create(client, count), 1)], partitions=count)
    await asyncio.sleep(SETTLED_S)
    processes = {**{f"broker {i}": b.pid for i, b in cluster.brokers.items()}}
    processes |= {f"controller {i}": c.pid for i, c in cluster.controllers.items()}
    before = {name: cpu_s([pid]) for name, pid in processes.items()}
    await asyncio.sleep(IDLE_S)
    used = {name: 100 * (cpu_s([pid]) - before[name]) / IDLE_S for name, pid in processes.items()}
    percent = [round(used[f"broker {i}"], 1) for i in cluster.brokers]
    report("idle CPU of each broker, percent of a core", "cpu_percent", brokers=percent)
    report("idle CPU of the controller", controllers=[round(used["controller 1"], 1)])
    memory = [round(rss_mib([b.pid])) for b in cluster.brokers.values()]
    report("memory of each broker, MiB", "rss_mib", brokers=memory)
    async with Client(cluster.bootstrap.partition(",")[2]) as client:
        client.admin_timeout_s = READY_S_MAX
        led = sum(one.leader_id == 1 for one in await partitions(client))
        cluster.brokers[1].kill()
        began_s = time.perf_counter()
        while any(one.leader_id in (1, -1) for one in await partitions(client)):
            pass  # `partitions` sends a request
        failover_s = time.perf_counter() - began_s
    report("failover", "failover_s", s=[round(failover_s, 2)], partitions_led=led)
    began_s = time.perf_counter()
    cluster.brokers[1].start()
    await asyncio.to_thread(cluster.brokers[1].wait_ready, READY_S_MAX)
    report("restart", "restart_s", s=[round(time.perf_counter() - began_s, 2)])
    async with Client(cluster.bootstrap) as client:
        client.admin_timeout_s = READY_S_MAX
        await full_isrs(client, len(cluster.brokers))
        await write(client, count)
    cluster.brokers[1].kill()
    unsynced = await asyncio.to_thread(unsynced_logs, cluster.data_dir / "broker-1")
    began_s = time.perf_counter()
    cluster.brokers[1].start()
    await asyncio.to_thread(cluster.brokers[1].wait_ready, READY_S_MAX)
    restart_s = round(time.perf_counter() - began_s, 2)
    report("restart with unsynced records", "restart_s", s=[restart_s], unsynced_logs=unsynced)


def unsynced_logs(directory: Path) -> int:
    """Return how many logs of a killed broker have bytes that the next start has to scan."""
    synced: set[str] = set()
    for checkpoint in directory.rglob("recovery-point-offset-checkpoint"):
        for line in checkpoint.read_text().splitlines()[2:]:
            topic, index, offset = line.split()
            if int(offset):
                synced.add(f"{topic}-{index}")
    written = {log.parent.name for log in directory.rglob("many-*/*.log") if log.stat().st_size > 0}
    return len(written - synced)


async def write(client: Client, count: int) -> None:
    """Write one record to each partition, with its number as the value."""
    async with client.producer() as producer:
        for number in range(count):
            topic, index = divmod(number, PARTITIONS_A_TOPIC)
            await producer.send(f"many-{topic}", b"%d" % number, partition=index)
        await producer.flush()


async def read(client: Client, count: int) -> int:
    """Read the record of each partition; return how many are right."""
    right = 0
    for topic in range(count // PARTITIONS_A_TOPIC):
        async with client.consumer(f"many-{topic}", auto_offset_reset="earliest") as consumer:
            missing = PARTITIONS_A_TOPIC
            async with asyncio.timeout(READY_S_MAX):
                while missing > 0:
                    for record in await consumer.getmany():
                        missing -= 1
                        number = topic * PARTITIONS_A_TOPIC + record.partition
                        right += record.value == b"%d" % number
    return right


async def measure_descriptors(cluster: EmbeddedCluster, count: int, limit: int) -> None:
    """Report the descriptors and the memory of a broker that has more partitions than it may have files open."""
    broker = cluster.brokers[1]

    def report_use(what: str, **figures: Any) -> None:
        files = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
        memory_mib = round(rss_mib([broker.pid]))
        report(what, **figures, files=files, limit=limit, rss_mib=memory_mib)

    async with Client(cluster.bootstrap) as client:
        client.admin_timeout_s = READY_S_MAX
        report_use("created", s=round(await create(client, count, replicas=1), 1), partitions=count)
        began_s = time.perf_counter()
        await write(client, count)
        report_use("wrote a record to each", s=round(time.perf_counter() - began_s, 1))
        report_use("read", right=await read(client, count), of=count)
        broker.kill()
        began_s = time.perf_counter()
        broker.start()
        await asyncio.to_thread(broker.wait_ready, READY_S_MAX)
        report_use("restart after SIGKILL", s=round(time.perf_counter() - began_s, 2))
        report_use("read again", right=await read(client, count), of=count)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--partitions", type=int, default=12_000)
    parser.add_argument("--descriptors", type=int, help="files that the one broker may have open")
    options = parser.parse_args()
    count, limit = options.partitions, options.descriptors
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # the broker inherits the limit
        with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1)) as cluster:
            cluster.start()
            cluster.wait_ready()
            asyncio.run(measure_descriptors(cluster, count, limit))
        return 0
    with EmbeddedCluster(ClusterPlan(brokers=3, controllers=1)) as cluster:
        cluster.start()
        cluster.wait_ready()
        asyncio.run(measure(cluster, count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
