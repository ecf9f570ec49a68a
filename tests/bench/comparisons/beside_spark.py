"""Compares Odradek's Spark source with Spark's own Kafka source, which reads from Apache Kafka:
`make bench-spark`.

Both sides run on one machine with the same PySpark 4.2.0: two JVMs with local[2], which run in
turn, and a noop sink. Both read the same records in 4 partitions, produced by librdkafka over the
Kafka protocol so that batches are alike, from segment files in the page cache, and check CRCs.
Measurements come in pairs, the side that begins alternates, and each figure is the median of the
pairs' ratios. The warm-up is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.bench.comparisons.kafka_cluster import KafkaCluster
from tests.bench.comparisons.spark_environment import HERE, Environment, make

PARTITIONS: Final = 4
SIZES: Final = {"100B": (2_000_000, 100), "1KiB": (500_000, 1024)}
BARS: Final = {
    ("100B", "batch"): 2.0,
    ("100B", "now"): 1.3,
    ("1KiB", "batch"): 1.5,
    ("1KiB", "now"): 1.0,
}
TRIGGERS: Final = 51
PLANNED_PARTITIONS: Final = 1000


class Side:
    """The process of one side (Odradek or Kafka), which runs commands in a JVM."""

    def __init__(
        self, name: str, bootstrap: str, environment: Environment, log: Path, broker_pid: int
    ) -> None:
        self.name = name
        self._broker_pid = broker_pid
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [
                    *(str(environment.python), str(HERE / "spark_reads.py"), name, bootstrap),
                    str(environment.jars("source")),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment.variables(),
            )
        self._answer()

    def order(self, *words: object) -> dict[str, Any]:
        """Run one command and return its result, with the broker's CPU time."""
        assert self._process.stdin is not None
        before = _cpu_s(self._broker_pid)
        self._process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return answer | {"broker_cpu_s": _cpu_s(self._broker_pid) - before}

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                result: dict[str, Any] = json.loads(line)
                return result
        raise RuntimeError(f"the {self.name} side ended with status {self._process.wait()}")


def create(bootstrap: str, topic: str, partitions: int) -> None:
    """Create a topic with one replica."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1)
    admin.create_topics([new], request_timeout=60)[topic].result(60)


def fill(
    bootstrap: str, topic: str, count: int, size: int, *, partitions: int = PARTITIONS
) -> None:
    """Write `count` records of `size` bytes with librdkafka, so that both sides have the same
    batches.
    """
    from confluent_kafka import Producer

    create(bootstrap, topic, partitions)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
        }
    )
    failed: list[object] = []
    value = os.urandom(size)
    for number in range(count):
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    partition=number % partitions,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 1000:
            producer.poll(0)
    producer.flush(300)
    if failed:
        raise RuntimeError(f"{len(failed)} records of {topic} were not written: {failed[0]}")


def compare(sides: dict[str, Side], label: str, order: str, pairs: int) -> float:
    """Measure pairs, and return the median ratio of records per second, Odradek to Kafka."""
    count, _ = SIZES[label]
    rates: dict[str, list[float]] = {name: [] for name in sides}
    ratios = []
    for pair in range(-1, pairs):
        names = list(sides) if pair % 2 else list(reversed(sides))
        pair_rates: dict[str, float] = {}
        for name in names:
            result = sides[name].order(order, f"bench-{label}")
            if order == "now" and result["records"] != count:
                raise RuntimeError(f"{name} read {result['records']} of {count} records")
            pair_rates[name] = count / result["seconds"]
            result |= {"size": label, "pair": pair, "records_per_s": round(pair_rates[name])}
            print(json.dumps(result), flush=True)
        if pair >= 0:
            ratios.append(pair_rates["odradek"] / pair_rates["kafka"])
            for name, rate in pair_rates.items():
                rates[name].append(rate)
    ratio = statistics.median(ratios)
    bar = BARS[label, order]
    summary = {
        "bar": bar,
        "met": ratio >= bar,
        "ratio": round(ratio, 2),
        "ratios": [round(r, 2) for r in ratios],
        **{f"{name}_records_per_s": round(statistics.median(r)) for name, r in rates.items()},
    }
    print(json.dumps({"compare": order, "size": label, **summary}), flush=True)
    return ratio


def overheads(side: Side, kafka_bootstrap: str) -> None:
    """Measure what triggers and planning cost with Odradek's source."""
    fill(kafka_bootstrap, "bench-small", TRIGGERS * 40, 100)
    print(json.dumps(side.order("triggers", "bench-small", TRIGGERS)), flush=True)
    fill(kafka_bootstrap, "bench-wide", PLANNED_PARTITIONS, 100, partitions=PLANNED_PARTITIONS)
    print(json.dumps(side.order("plan", "bench-wide")), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tests.bench.comparisons.beside_spark", description=__doc__
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--root", type=Path, default=Path("artifacts/bench-spark"))
    parser.add_argument("--only-overheads", action="store_true")
    settings = parser.parse_args()
    environment = make(settings.root.resolve())
    logs = environment.root
    print(json.dumps({"machine": platform.platform(), "cores": os.cpu_count()}), flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-kafka-", dir=environment.root) as kafka_dir,
        EmbeddedCluster(ClusterPlan(brokers=1, controllers=1)) as cluster,
        KafkaCluster(environment.jars("broker"), Path(kafka_dir), nodes=1) as kafka,
    ):
        kafka.start()  # creating the first topic waits until Kafka is ready
        cluster.start()
        cluster.wait_ready()
        sizes = [] if settings.only_overheads else settings.sizes
        for label in sizes:
            for bootstrap in (cluster.kafka_bootstrap, kafka.bootstrap):
                fill(bootstrap, f"bench-{label}", *SIZES[label])
        ours = Side(
            *("odradek", cluster.bootstrap, environment, logs / "odradek.log"),
            cluster.brokers[1].pid,
        )
        overheads(ours, cluster.kafka_bootstrap)
        if settings.only_overheads:
            ours.close()
            return
        sides = {
            "odradek": ours,
            "kafka": Side("kafka", kafka.bootstrap, environment, logs / "kafka.log", *kafka.pids),
        }
        ratios = [
            compare(sides, label, order, settings.pairs)
            for label in sizes
            for order in ("batch", "now")
        ]
        for side in sides.values():
            side.close()
    print("ratio", *(f"{ratio:.2f}" for ratio in ratios))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
