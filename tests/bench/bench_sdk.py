"""How fast the SDK is against a real broker: one JSON line per path.

    python -m tests.bench.bench_sdk [--records 3000000] [--bootstrap HOST:PORT] [--paths produce,consume]

Without --bootstrap an embedded cluster of one broker and one controller is started. `records_per_s` and
`mb_per_s` count keys and values; `cpu_s_per_gb` is CPU time of the client and, where its pid is known, of
the broker. The bars are those of the project: produce >= 300,000/s, consume >= 1,000,000/s into
Python objects and >= 5,000,000/s into Arrow, of 100 B, with everything on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from odradek import Client, TopicPartition
from odradek.embedded import ClusterPlan, EmbeddedCluster

VALUE_BYTES = 100
PARTITIONS = 4
BARS = {"produce": 300_000, "consume": 1_000_000, "iterate": None, "arrow": 5_000_000}


@dataclass(frozen=True, slots=True)
class Clocks:
    """A moment: wall, CPU of this process, CPU of the broker (None: unknown)."""

    wall_s: float
    client_cpu_s: float
    broker_cpu_s: float | None


def clocks(broker_pid: int | None) -> Clocks:
    broker_cpu_s = None
    if broker_pid is not None:
        with open(f"/proc/{broker_pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        broker_cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return Clocks(time.perf_counter(), time.process_time(), broker_cpu_s)


def report(path: str, records: int, began: Clocks, ended: Clocks, **more: object) -> None:
    wall_s = ended.wall_s - began.wall_s
    client_s = ended.client_cpu_s - began.client_cpu_s
    gigabytes = records * VALUE_BYTES / 1e9
    broker_s = None
    if ended.broker_cpu_s is not None and began.broker_cpu_s is not None:
        broker_s = ended.broker_cpu_s - began.broker_cpu_s
    bar = BARS.get(path)
    line = {
        "bench": "sdk",
        "path": path,
        "records": records,
        "value_bytes": VALUE_BYTES,
        "records_per_s": round(records / wall_s),
        "mb_per_s": round(records * VALUE_BYTES / wall_s / 1e6, 1),
        "client_cpu_s_per_gb": round(client_s / gigabytes, 2),
        "client_cpu_share": round(client_s / wall_s, 2),
        "broker_cpu_s_per_gb": None if broker_s is None else round(broker_s / gigabytes, 2),
        "broker_cpu_share": None if broker_s is None else round(broker_s / wall_s, 2),
        "bar_records_per_s": bar,
        "is_bar_met": None if bar is None else records / wall_s >= bar,
        **more,
    }
    print(json.dumps(line), flush=True)


def percentile(sorted_ms: list[float], share: float) -> float:
    return round(sorted_ms[min(len(sorted_ms) - 1, int(len(sorted_ms) * share))], 2)


async def produce(client: Client, topic: str, records: int, now: Callable[[], Clocks]) -> None:
    """`send()` a record, incompressible values, defaults otherwise; all acknowledged at the end."""
    noise = os.urandom(1 << 20)
    values = [noise[i * 97 : i * 97 + VALUE_BYTES] for i in range(10_000)]
    waits_ms: list[float] = []
    async with client.producer() as producer:
        await producer.send_and_wait(topic, b"x" * VALUE_BYTES)
        began = now()
        for number in range(records):
            future = await producer.send(topic, values[number % 10_000])
            if not number % 5_000:
                sent_s = time.perf_counter()
                future.add_done_callback(
                    lambda _, at=sent_s: waits_ms.append((time.perf_counter() - at) * 1000)
                )
        await producer.flush(60)
        ended = now()
    waits_ms.sort()
    report(
        "produce", records, began, ended,
        ack_ms_p50=percentile(waits_ms, 0.5), ack_ms_p99=percentile(waits_ms, 0.99),
    )  # fmt: skip


async def paced(client: Client, topic: str, seconds: float, now: Callable[[], Clocks]) -> None:
    """1,000 records a second: from send to acknowledgement, and from send to the consumer."""
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
            began = now()
            for number in range(total):
                ahead_s = number / rate - (time.perf_counter() - began.wall_s)
                if ahead_s > 0:
                    await asyncio.sleep(ahead_s)
                sent_ns = time.perf_counter_ns()
                future = await producer.send(topic, sent_ns.to_bytes(8, "big") + bytes(92))
                future.add_done_callback(
                    lambda _, at=sent_ns: acks_ms.append((time.perf_counter_ns() - at) / 1e6)
                )
            await producer.flush(30)
            ended = now()
    acks_ms.sort()
    arrivals_ms.sort()
    report(
        "paced_1000_per_s", total, began, ended,
        ack_ms_p50=percentile(acks_ms, 0.5), ack_ms_p99=percentile(acks_ms, 0.99),
        arrival_ms_p50=percentile(arrivals_ms, 0.5), arrival_ms_p99=percentile(arrivals_ms, 0.99),
    )  # fmt: skip


async def consume(
    client: Client, topic: str, records: int, now: Callable[[], Clocks], path: str
) -> None:
    """Everything from the beginning: into objects (`getmany`), one by one, or into Arrow tables."""
    async with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        partitions: list[TopicPartition] = consumer.assignment()
        ends = await consumer.end_offsets(partitions)
        total = min(records, sum(ends.values()))
        if path == "arrow":
            import pyarrow  # noqa: F401  # its import is not what is measured
        began = now()
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
        ended = now()
    report(path, read, began, ended)


async def run(
    bootstrap: str, records: int, paths: list[str], replicas: int, broker_pid: int | None
) -> None:
    def now() -> Clocks:
        return clocks(broker_pid)

    topic = f"bench-sdk-{os.getpid()}"
    async with Client(bootstrap) as client:
        await client.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=replicas)
        await client.admin.create_topic(f"{topic}-paced", partitions=1, replication_factor=replicas)
        if "paced" in paths:
            await paced(client, f"{topic}-paced", 5.0, now)
        if {"produce", "consume", "iterate", "arrow"} & set(paths):
            await produce(client, topic, records, now)
        for path in ("consume", "iterate", "arrow"):
            if path in paths:
                await consume(client, topic, records, now, path)
        await client.admin.delete_topics([topic, f"{topic}-paced"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--bootstrap", default="")
    parser.add_argument("--paths", default="paced,produce,consume,iterate,arrow")
    parser.add_argument("--replicas", type=int, default=1, help="also how many brokers to start")
    options = parser.parse_args()
    paths = options.paths.split(",")
    if options.bootstrap:
        asyncio.run(run(options.bootstrap, options.records, paths, options.replicas, None))
        return
    with EmbeddedCluster(ClusterPlan(brokers=options.replicas, controllers=1)) as cluster:
        cluster.start()
        cluster.wait_ready()
        pid = cluster.brokers[1].pid if options.replicas == 1 else None
        asyncio.run(run(cluster.bootstrap, options.records, paths, options.replicas, pid))


if __name__ == "__main__":
    main()
