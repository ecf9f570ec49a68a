"""Measures the speed of the SDK against a real broker; prints one line of JSON for each path.

    python -m tests.bench.bench_sdk [--records 3000000] [--bootstrap HOST:PORT]
        [--paths produce,consume]

Without --bootstrap it starts an embedded cluster of one controller and as many brokers as
--replicas says. `records_per_s` and `mb_per_s` count values only; `client_cpu_s_per_gb` and `broker_cpu_s_per_gb` are
the CPU time of the client and of all brokers together, which is unknown with --bootstrap; `limited_by` says what
limited the speed.

The targets, with everything on two cores: with one replica and records of 100 bytes, produce >=
300,000/s, consume >= 1,000,000/s into Python objects and >= 5,000,000/s into Arrow; with three
replicas, produce >= 60 MB/s of 1 KiB records, and a p99 from send to consumer < 10 ms at 1,000/s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from dataclasses import dataclass

from odradek import Client, TopicPartition
from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.bench.processes import cpu_s, machine_idle_s, rss_mib

PACED_BYTES = 100
PARTITIONS = 4
BARS = {
    (1, 100, "produce", "records_per_s"): 300_000,
    (1, 100, "consume", "records_per_s"): 1_000_000,
    (1, 100, "arrow", "records_per_s"): 5_000_000,
    (3, 1024, "produce", "mb_per_s"): 60,
}
"""The targets, by number of replicas, bytes of a value, path and figure."""
PACED_P99_MS_MAX = 10.0
RSS_MIB_MAX = 250.0
BUSY = 0.85
"""A core, or all cores together, limited the speed if they were busier than this share."""


@dataclass(frozen=True, slots=True)
class Load:
    """The size of the values, the number of replicas, and the brokers whose CPU time is
    measured.
    """

    value_bytes: int
    replicas: int
    broker_pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks at one moment: wall clock, CPU time of this process and of the brokers (None if
    unknown).
    """

    wall_s: float
    client_cpu_s: float
    broker_cpu_s: float | None
    machine_idle_s: float


def clocks(load: Load) -> Clocks:
    return Clocks(
        time.perf_counter(),
        time.process_time(),
        cpu_s(load.broker_pids) if load.broker_pids else None,
        machine_idle_s(),
    )


def report(
    load: Load,
    path: str,
    records: int,
    began: Clocks,
    ended: Clocks,
    *,
    value_bytes: int | None = None,
    **more: object,
) -> None:
    value_bytes = load.value_bytes if value_bytes is None else value_bytes
    wall_s = ended.wall_s - began.wall_s
    client_s = ended.client_cpu_s - began.client_cpu_s
    gigabytes = records * value_bytes / 1e9
    broker_s = None
    if ended.broker_cpu_s is not None and began.broker_cpu_s is not None:
        broker_s = ended.broker_cpu_s - began.broker_cpu_s
    line: dict[str, object] = {
        "bench": "sdk",
        "path": path,
        "replicas": load.replicas,
        "records": records,
        "value_bytes": value_bytes,
        "records_per_s": round(records / wall_s),
        "mb_per_s": round(records * value_bytes / wall_s / 1e6, 1),
        "client_cpu_s_per_gb": round(client_s / gigabytes, 2),
        "broker_cpu_s_per_gb": None if broker_s is None else round(broker_s / gigabytes, 2),
        "limited_by": limit_of(began, ended, client_s / wall_s, (broker_s or 0.0) / wall_s, load),
        **more,
    }
    for (replicas, size, barred, figure), bar in BARS.items():
        if (replicas, size, barred) == (load.replicas, value_bytes, path):
            reached = records / wall_s * (1 if figure == "records_per_s" else value_bytes / 1e6)
            line |= {f"bar_{figure}": bar, "is_bar_met": reached >= bar}
    print(json.dumps(line), flush=True)


def limit_of(
    began: Clocks, ended: Clocks, client_cores: float, broker_cores: float, load: Load
) -> str:
    """Return what limited the speed: the client, the brokers or the machine, which other programs
    may use, too.
    """
    cores = os.cpu_count() or 1
    idle_cores = (ended.machine_idle_s - began.machine_idle_s) / (ended.wall_s - began.wall_s)
    shares = f"client {client_cores:.2f}, brokers {broker_cores:.2f} of {cores} cores"
    if idle_cores < (1 - BUSY) * cores:
        if client_cores + broker_cores < BUSY * cores / 2:
            return f"other programs on this machine ({shares})"
        return f"the machine's cores ({shares})"
    if client_cores >= BUSY:
        return f"the client's core ({shares})"
    if broker_cores >= BUSY * max(1, len(load.broker_pids)):
        return f"the brokers' cores ({shares})"
    return f"waiting ({shares})"


def percentile(sorted_ms: list[float], share: float) -> float:
    return round(sorted_ms[min(len(sorted_ms) - 1, int(len(sorted_ms) * share))], 2)


async def produce(client: Client, topic: str, records: int, load: Load) -> None:
    """Measure `send()` of single records with incompressible values and default settings, until all
    are acknowledged.
    """
    noise = os.urandom(1 << 20)
    values = [noise[i * 97 : i * 97 + load.value_bytes] for i in range(10_000)]
    waits_ms: list[float] = []
    async with client.producer() as producer:
        await producer.send_and_wait(topic, b"x" * load.value_bytes)
        began = clocks(load)
        for number in range(records):
            future = await producer.send(topic, values[number % 10_000])
            if not number % 5_000:
                sent_s = time.perf_counter()
                future.add_done_callback(
                    lambda _, at=sent_s: waits_ms.append((time.perf_counter() - at) * 1000)
                )
        await producer.flush(60)
        ended = clocks(load)
    waits_ms.sort()
    report(
        load, "produce", records, began, ended,
        ack_ms_p50=percentile(waits_ms, 0.5), ack_ms_p99=percentile(waits_ms, 0.99),
    )  # fmt: skip


async def paced(client: Client, topic: str, seconds: float, load: Load) -> None:
    """Measure latency at 1,000 records per second: from send to acknowledgement, and from send to
    receipt by the consumer.
    """
    rate = 1_000
    acks_ms: list[float] = []
    arrivals_ms: list[float] = []
    total = int(seconds * rate)
    async with client.consumer(topic, auto_offset_reset="latest") as consumer:
        for name in consumer.assignment():
            await consumer.position(name)
        async with client.producer() as producer, asyncio.TaskGroup() as tasks:
            await producer.send_and_wait(topic, b"warm", partition=0)
            while not await consumer.getmany(5_000):
                pass

            async def read() -> None:
                while len(arrivals_ms) < total:
                    for record in await consumer.getmany(10_000):
                        sent_ns = int.from_bytes(record.value[:8], "big")
                        arrivals_ms.append((time.perf_counter_ns() - sent_ns) / 1e6)

            tasks.create_task(read())
            began = clocks(load)
            for number in range(total):
                ahead_s = number / rate - (time.perf_counter() - began.wall_s)
                if ahead_s > 0:
                    await asyncio.sleep(ahead_s)
                sent_ns = time.perf_counter_ns()
                future = await producer.send(
                    topic, sent_ns.to_bytes(8, "big") + bytes(PACED_BYTES - 8)
                )
                future.add_done_callback(
                    lambda _, at=sent_ns: acks_ms.append((time.perf_counter_ns() - at) / 1e6)
                )
            await producer.flush(30)
            ended = clocks(load)
    acks_ms.sort()
    arrivals_ms.sort()
    report(
        load, "paced_1000_per_s", total, began, ended, value_bytes=PACED_BYTES,
        ack_ms_p50=percentile(acks_ms, 0.5), ack_ms_p99=percentile(acks_ms, 0.99),
        arrival_ms_p50=percentile(arrivals_ms, 0.5), arrival_ms_p99=percentile(arrivals_ms, 0.99),
        bar_arrival_ms_p99=PACED_P99_MS_MAX if load.replicas == 3 else None,
        is_bar_met=percentile(arrivals_ms, 0.99) < PACED_P99_MS_MAX if load.replicas == 3 else None,
    )  # fmt: skip


async def consume(client: Client, topic: str, records: int, load: Load, path: str) -> None:
    """Measure reading everything from the beginning: by `getmany`, one by one, or into Arrow
    tables.
    """
    async with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        partitions: list[TopicPartition] = consumer.assignment()
        ends = await consumer.end_offsets(partitions)
        total = min(records, sum(ends.values()))
        if path == "arrow":
            import pyarrow  # noqa: F401  # imported before the measurement begins
        began = clocks(load)
        read = 0
        if path == "iterate":
            async for _ in consumer:
                read += 1
                if read >= total:
                    break
        while read < total:
            if path == "arrow":
                read += (await consumer.getarrow(30_000)).num_rows
            else:
                read += len(await consumer.getmany(30_000))
        ended = clocks(load)
    report(load, path, read, began, ended)


def report_memory(load: Load) -> None:
    """Report the resident memory of the largest broker after the load."""
    if load.broker_pids:
        largest_mib = max(rss_mib([pid]) for pid in load.broker_pids)
        line = {"bench": "sdk", "path": "memory", "replicas": load.replicas}
        line |= {"broker_rss_mib": round(largest_mib), "bar_mib": RSS_MIB_MAX}
        print(json.dumps(line | {"is_bar_met": largest_mib < RSS_MIB_MAX}), flush=True)


async def run(bootstrap: str, records: int, paths: list[str], load: Load) -> None:
    topic = f"bench-sdk-{os.getpid()}"
    async with Client(bootstrap) as client:
        await client.admin.create_topic(
            topic, partitions=PARTITIONS, replication_factor=load.replicas
        )
        await client.admin.create_topic(
            f"{topic}-paced", partitions=1, replication_factor=load.replicas
        )
        if "paced" in paths:
            await paced(client, f"{topic}-paced", 5.0, load)
        if {"produce", "consume", "iterate", "arrow"} & set(paths):
            await produce(client, topic, records, load)
        for path in ("consume", "iterate", "arrow"):
            if path in paths:
                await consume(client, topic, records, load, path)
        report_memory(load)
        await client.admin.delete_topics([topic, f"{topic}-paced"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--bootstrap", default="")
    parser.add_argument("--paths", default="paced,produce,consume,iterate,arrow")
    parser.add_argument("--replicas", type=int, default=1, help="also how many brokers to start")
    options = parser.parse_args()
    paths = options.paths.split(",")
    if options.bootstrap:
        load = Load(options.value_bytes, options.replicas, ())
        asyncio.run(run(options.bootstrap, options.records, paths, load))
        return
    with EmbeddedCluster(ClusterPlan(brokers=options.replicas, controllers=1)) as cluster:
        cluster.start()
        cluster.wait_ready()
        pids = tuple(broker.pid for broker in cluster.brokers.values())
        load = Load(options.value_bytes, options.replicas, pids)
        asyncio.run(run(cluster.bootstrap, options.records, paths, load))


if __name__ == "__main__":
    main()
