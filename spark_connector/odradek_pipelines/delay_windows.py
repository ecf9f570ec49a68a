"""The pipeline `delay-windows`: it computes the mean arrival delay per carrier and hour, from topic to topic, with a
watermark.

A window is written again with the key CARRIER|HOUR whenever it changes. The last record of each key is the current
result, so a compacted topic contains the table of results.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from odradek_pipelines.flights import as_json, read_flights
from odradek_pipelines.pipeline import (
    Pipeline,
    source_step,
    target_of,
    write_topic,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TARGET: Final = "carrier-delays"
WATERMARK: Final = "30 days"
"""A record whose scheduled time is more than WATERMARK behind the latest scheduled time is too late and is not counted.
The value is high, because a replay of a year reads partitions in parallel, and one partition may be weeks ahead of
another. For live records an hour is enough.
"""


def delay_windows(flights: DataFrame, *, watermark: str | None) -> DataFrame:
    """Return the number of flights that have arrived, and the sum and mean of their delays in minutes, by carrier and
    scheduled hour.

    `watermark` is None for a batch, and a duration for a stream.
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
    """Return rows for the sink, with the key CARRIER|HOUR."""
    from pyspark.sql import functions as f

    return as_json(windows, key=f.concat_ws("|", "carrier", "hour"))


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--watermark",
        default=WATERMARK,
        help="how late the record of a flight may arrive and still be counted, for example '2 hours';"
        f" default: {WATERMARK}",
    )


def _plan(settings: Namespace) -> Sequence[str]:
    return [
        source_step(settings),
        "parse flights (JSON); leave out those that never arrived",
        "compute the mean arrival delay per carrier and hour of scheduled departure,"
        f" watermark {settings.watermark}",
        f"write changed windows to topic {target_of(settings, TARGET)!r}, key CARRIER|HOUR",
    ]


def _start(spark: SparkSession, settings: Namespace) -> Sequence[StreamingQuery]:
    flights = read_flights(spark, settings)
    windows = keyed(delay_windows(flights, watermark=settings.watermark))
    target = target_of(settings, TARGET)
    return [write_topic(windows, settings, PIPELINE.name, topic=target, mode="update")]


PIPELINE: Final = Pipeline(
    name="delay-windows",
    summary="mean delay per carrier and hour, windows with a watermark, topic to topic",
    plan=_plan,
    start=_start,
    reads_flights=True,
    add_arguments=_arguments,
    spark_config=(("spark.sql.shuffle.partitions", "4"),),
)
