"""`make soak MINUTES=60` injects faults every few seconds under acks=all load; no acknowledged
record may be lost.

    python -m tests.soak --minutes 5 --seed 7

The faults are drawn from the seed: kill -9 of a broker or controller, SIGSTOP of a broker, or a
controlled restart. They come one at a time, so that every topic keeps an in-sync majority. At the
end all records are read back. The program prints a progress bar and a table; its exit status is 1
if a record was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster
from odradek.producer.delivery import DeliveryFuture

TOPIC = "soak"
PARTITIONS = 6
RATE = 500
FAULTS = ("kill broker", "kill controller", "stop broker", "restart broker")


class Load:
    """Sends numbered records, and records which ones were acknowledged and the longest pause."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.failed: Counter[str] = Counter()
        self.longest_pause_s = 0.0
        self._last_s = time.monotonic()
        self.is_over = False

    async def run(self, client: Client) -> None:
        async with client.producer(acks="all") as producer:
            while not self.is_over:
                number = self.sent
                self.sent += 1
                future = await producer.send(
                    TOPIC, str(number).encode(), key=str(number % 97).encode()
                )
                future.add_done_callback(lambda done, n=number: self._note(n, done))
                await asyncio.sleep(1 / RATE)
            await producer.flush(60)

    def _note(self, number: int, done: DeliveryFuture) -> None:
        error = done.exception()
        if error is not None:
            self.failed[type(error).__name__] += 1
            return
        now_s = time.monotonic()
        self.longest_pause_s = max(self.longest_pause_s, now_s - self._last_s)
        self._last_s = now_s
        self.acknowledged.add(number)


async def inject(cluster: EmbeddedCluster, fault: str, chance: random.Random) -> None:
    """Inject one fault, and end it."""
    broker = cluster.brokers[chance.choice(list(cluster.brokers))]
    controller = cluster.controllers[chance.choice(list(cluster.controllers))]
    match fault:
        case "kill broker":
            await asyncio.to_thread(broker.kill)
            await asyncio.sleep(chance.uniform(0, 4))
            broker.start()
            await asyncio.to_thread(broker.wait_ready, 60)
        case "kill controller":
            await asyncio.to_thread(controller.kill)
            await asyncio.sleep(chance.uniform(0, 4))
            controller.start()
            await asyncio.to_thread(controller.wait_ready, 60)
        case "stop broker":
            broker.signal(signal.SIGSTOP)
            await asyncio.sleep(chance.uniform(1, 8))
            broker.signal(signal.SIGCONT)
        case "restart broker":
            await asyncio.to_thread(broker.terminate, 20)
            broker.start()
            await asyncio.to_thread(broker.wait_ready, 60)


async def read_back(client: Client) -> Counter[int]:
    """Return how often each number is in the topic."""
    found: Counter[int] = Counter()
    names = [(TOPIC, index) for index in range(PARTITIONS)]
    async with client.consumer(auto_offset_reset="earliest") as consumer:
        ends = await consumer.end_offsets(names)
        consumer.assign(names)
        consumer.seek_to_beginning()
        while sum(found.values()) < sum(ends.values()):
            records = await consumer.getmany(timeout_ms=20_000)
            if not records:
                break
            found.update(int(record.value) for record in records)
    return found


async def soak(minutes: float, seed: int, console: Console) -> bool:
    chance = random.Random(seed)
    done: Counter[str] = Counter()
    with EmbeddedCluster(ClusterPlan(brokers=3, controllers=3)) as cluster:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        async with Client(cluster.bootstrap) as client:
            await client.admin.create_topic(
                TOPIC,
                partitions=PARTITIONS,
                replication_factor=3,
                configs={"min.insync.replicas": "2"},
            )
            load, end_s = Load(), time.monotonic() + minutes * 60
            sending = asyncio.create_task(load.run(client))
            with Progress(console=console) as progress:
                bar = progress.add_task(f"seed {seed}", total=minutes * 60)
                while (left_s := end_s - time.monotonic()) > 0:
                    progress.update(bar, completed=minutes * 60 - left_s)
                    fault = chance.choice(FAULTS)
                    await inject(cluster, fault, chance)
                    done[fault] += 1
                    await asyncio.sleep(chance.uniform(2, 8))
            load.is_over = True
            await sending
            found = await read_back(client)
    lost = [n for n in load.acknowledged if n not in found]
    doubled = [n for n, times in found.items() if times > 1]
    table = Table("what", "figure", box=None)
    rows = {
        "records sent": load.sent,
        "acknowledged": len(load.acknowledged),
        "acknowledged and lost": len(lost),
        "doubled": len(doubled),
        "refused": dict(load.failed),
        "longest pause, s": round(load.longest_pause_s, 2),
        **done,
    }
    for name, figure in rows.items():
        table.add_row(name, str(figure))
    console.print(table)
    return not lost and not doubled


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    is_good = asyncio.run(soak(arguments.minutes, arguments.seed, Console()))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
