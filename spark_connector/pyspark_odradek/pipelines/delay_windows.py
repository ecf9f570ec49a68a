"""Mean arrival delay per carrier and hour, from topic to topic, with a watermark.

Each changed window is written again, under the key CARRIER|HOUR: the last record of a key is the truth,
so a batch that is written twice after a crash changes nothing, and a compacted topic holds the table.
"""

from __future__ import annotations

import json
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark_odradek.pipelines.flights import as_json, parse_flights
from pyspark_odradek.pipelines.pipeline import (
    Pipeline,
    read_topic,
    source_step,
    target_of,
    write_topic,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TARGET: Final = "carrier-delays"
WATERMARK: Final = "30 days"
"""How much later than the latest flight seen one may come and still count. Partitions are read side by
side, and a replay of a year passes a month in a moment, so it is generous; live, an hour would do."""
_LIVE_POLL_S: Final = 0.2


def delay_windows(flights: DataFrame, *, watermark: str | None) -> DataFrame:
    """Per carrier and scheduled hour: flights that arrived, sum and mean of their delays, minutes.

    The same for a stream (with a watermark) and for a batch (without).
    """
    from pyspark.sql import functions as f

    arrived = flights.where("arr_delay is not null")
    if watermark is not None:
        arrived = arrived.withWatermark("scheduled", watermark)
    grouped = arrived.groupBy("carrier", f.window("scheduled", "1 hour").alias("w"))
    summed = grouped.agg(
        f.count("*").alias("flights"),
        f.sum("arr_delay").alias("delay_sum_min"),
        f.avg("arr_delay").alias("delay_mean_min"),
    )
    hour = f.date_format("w.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("hour")
    return summed.select("carrier", hour, "flights", "delay_sum_min", "delay_mean_min")


def keyed(windows: DataFrame) -> DataFrame:
    """Rows for the sink."""
    from pyspark.sql import functions as f

    return as_json(windows, key=f.concat_ws("|", "carrier", "hour"))


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--watermark", default=WATERMARK, help="how late a flight may come")


def _plan(settings: Namespace) -> Sequence[str]:
    return [
        source_step(settings),
        "parse flights (JSON), leave out those that never arrived",
        f"mean arrival delay per carrier and hour of scheduled departure, watermark {settings.watermark}",
        f"write windows that changed to topic {target_of(settings, TARGET)!r}, key CARRIER|HOUR",
    ]


def _start(spark: SparkSession, settings: Namespace) -> Sequence[StreamingQuery]:
    flights = parse_flights(read_topic(spark, settings, schema="value binary"))
    windows = keyed(delay_windows(flights, watermark=settings.watermark))
    target = target_of(settings, TARGET)
    return [write_topic(windows, settings, PIPELINE.name, topic=target, mode="update")]


PIPELINE: Final = Pipeline(
    name="delay-windows",
    summary="mean delay per carrier and hour, windows with a watermark, topic to topic",
    plan=_plan,
    start=_start,
    add_arguments=_arguments,
    spark_config=(("spark.sql.shuffle.partitions", "4"),),
)


def run_live(
    bootstrap: str,
    topic: str = "flights",
    *,
    is_complete: Callable[[int], bool],
    timeout_s: float = 300.0,
    on_progress: Callable[[int], None] | None = None,
    **config: str,
) -> dict[str, Any]:
    """Run on a topic while records stream in; the table when `is_complete(records read so far)`.

    Blocks. The answer has `rows` (dicts of carrier, hour, flights, delay_sum_min, delay_mean_min, sorted),
    `records`, `batches` and `dropped_by_watermark`. `config` goes to `session`.

    Raises:
        SparkUnavailable: no JDK or PySpark.
        TimeoutError: not complete within `timeout_s`.
    """
    from pyspark_odradek.spark_session import session

    spark = session("odradek demo", **({"spark__sql__shuffle__partitions": "2"} | config))
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    records = spark.readStream.format("odradek").schema("value binary").options(**options).load()
    windows = delay_windows(parse_flights(records), watermark="366 days")
    deadline_s = time.monotonic() + timeout_s
    with tempfile.TemporaryDirectory(prefix="odradek-demo-") as checkpoint:
        query = (
            windows.writeStream.format("memory")
            .queryName("odradek_live_delays")
            .outputMode("complete")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="500 milliseconds")
            .start()
        )
        try:
            by_batch: dict[int, tuple[int, int]] = {}
            told = -1
            while True:
                if not query.isActive:
                    raise query.exception() or RuntimeError("the query ended by itself")
                for progress in query.recentProgress:
                    dropped = sum(o.numRowsDroppedByWatermark for o in progress.stateOperators)
                    by_batch[progress.batchId] = (progress.numInputRows, dropped)
                count = sum(rows for rows, _ in by_batch.values())
                if count != told and on_progress is not None:
                    on_progress(count)
                told = count
                if is_complete(count):
                    break
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"{count} records were read in {timeout_s:.0f} s")
                time.sleep(_LIVE_POLL_S)
            table = [row.asDict() for row in spark.table("odradek_live_delays").collect()]
        finally:
            query.stop()
    table.sort(key=lambda row: (row["carrier"], row["hour"]))
    return {
        "rows": table,
        "records": told,
        "batches": len(by_batch),
        "dropped_by_watermark": sum(dropped for _, dropped in by_batch.values()),
    }


def main(arguments: list[str]) -> int:
    """`python -m pyspark_odradek.pipelines.delay_windows --bootstrap B --records N`: JSON of `run_live`."""
    parser = ArgumentParser(prog="delay_windows")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--records", type=int, required=True, help="how many make it complete")
    parser.add_argument("--timeout-s", type=float, default=300.0)
    settings = parser.parse_args(arguments)
    answer = run_live(
        settings.bootstrap,
        settings.topic,
        is_complete=lambda count: count >= settings.records,
        timeout_s=settings.timeout_s,
        spark__master="local[2]",
        spark__ui__enabled="false",
    )
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
