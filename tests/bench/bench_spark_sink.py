"""`python -m tests.bench.bench_spark_sink --pairs 5` compares the Spark sink's exactly-once and at-least-once delivery.

Both deliveries alternately write the same rows, by `df.write` and as a stream, to topics of one cluster. The last line
has the median ratio of their speeds, for batches and for streams; above 1, exactly-once delivery is faster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import uuid
from typing import TYPE_CHECKING, Any

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster
from pyspark_odradek.sink_options import AT_LEAST_ONCE, EXACTLY_ONCE
from pyspark_odradek.spark_session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
VALUE = "concat(cast(id as string), repeat('x', 100)) value"


def new_topic(bootstrap: str, replicas: int) -> str:
    name = f"sink-{uuid.uuid4().hex[:8]}"

    async def create() -> None:
        async with Client(bootstrap) as client:
            await client.admin.create_topic(
                name, partitions=PARTITIONS, replication_factor=replicas
            )

    asyncio.run(create())
    return name


def batch_rate(frame: DataFrame, count: int, options: dict[str, str]) -> float:
    """Write `count` rows as a batch, and return the rows per second."""
    began_s = time.monotonic()
    frame.write.format("odradek").mode("append").options(**options).save()
    return count / (time.monotonic() - began_s)


def stream_rate(
    spark: SparkSession, source: str, count: int, batches: int, options: dict[str, str]
) -> float:
    """Write a stream that reads `source` in `batches` batches. Return its rows per second without the first batch."""
    reader = spark.readStream.format("odradek").schema("value binary")
    rows = reader.options(
        **{"kafka.bootstrap.servers": options["kafka.bootstrap.servers"]},
        subscribe=source,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(count // batches),
    ).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        stream = rows.writeStream.format("odradek").options(**options)
        stream = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = stream.start()
        query.awaitTermination()
        # The first batch does not count, because it also starts the workers.
        progress = [p for p in query.recentProgress if p.numInputRows][1:]
    seconds = sum(p.durationMs["triggerExecution"] for p in progress) / 1000
    return sum(p.numInputRows for p in progress) / seconds


def compare(spark: SparkSession, bootstrap: str, settings: argparse.Namespace) -> dict[str, Any]:
    frame = spark.range(settings.rows).repartition(2).selectExpr(VALUE).cache()
    frame.count()
    source = new_topic(bootstrap, settings.brokers)
    connection = {"kafka.bootstrap.servers": bootstrap}
    batch_rate(frame, settings.rows, connection | {"topic": source, "delivery": AT_LEAST_ONCE})
    ratios: dict[str, list[float]] = {"batch": [], "stream": []}
    for pair in range(settings.pairs + 1):
        rates: dict[str, dict[str, float]] = {"batch": {}, "stream": {}}
        order = (EXACTLY_ONCE, AT_LEAST_ONCE) if pair % 2 else (AT_LEAST_ONCE, EXACTLY_ONCE)
        for delivery in order:
            options = connection | {
                "topic": new_topic(bootstrap, settings.brokers),
                "delivery": delivery,
            }
            rates["batch"][delivery] = batch_rate(frame, settings.rows, options)
            rates["stream"][delivery] = stream_rate(
                spark, source, settings.rows, settings.batches, options
            )
        # The first pair is the warm-up and does not count.
        if pair:
            for kind, of_kind in rates.items():
                ratios[kind].append(of_kind[EXACTLY_ONCE] / of_kind[AT_LEAST_ONCE])
        print(json.dumps({"pair": pair, **rates}), flush=True)
    return {f"{kind}_ratio": round(statistics.median(of), 3) for kind, of in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.bench_spark_sink", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--brokers", type=int, default=1)
    settings = parser.parse_args()
    with EmbeddedCluster(ClusterPlan(brokers=settings.brokers, controllers=1)) as cluster:
        cluster.start()
        cluster.wait_ready()
        spark = session(
            "sink bench",
            spark__master="local[2]",
            spark__ui__enabled="false",
            spark__ui__showConsoleProgress="false",
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            print(json.dumps(compare(spark, cluster.bootstrap, settings)), flush=True)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
