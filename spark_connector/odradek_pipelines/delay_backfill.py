"""The pipeline `delay-backfill`: it computes the windows of `delay-windows` again in batch, for records with timestamps
in a given range. Both pipelines use the same transformation.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from odradek_pipelines.delay_windows import TARGET, delay_windows, keyed
from odradek_pipelines.flights import parse_flights
from odradek_pipelines.pipeline import (
    Pipeline,
    connection_options,
    instant,
    sink_options,
    target_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--since",
        type=instant,
        required=True,
        help="read records with a timestamp at or after this time (UTC), for example 2013-06-01T00:00",
    )
    parser.add_argument(
        "--until",
        type=instant,
        default=None,
        help="read only records with a timestamp before this time (UTC); default: now",
    )


def _plan(settings: Namespace) -> Sequence[str]:
    if settings.until is not None and settings.until <= settings.since:
        raise ValueError("--until must be later than --since")
    return [
        f"read topic {settings.source!r} at {settings.bootstrap}, records from {settings.since}"
        f" to {settings.until or 'now'}",
        "compute the mean arrival delay per carrier and hour, as delay-windows does",
        f"write to topic {target_of(settings, TARGET)!r}, key CARRIER|HOUR",
    ]


def _timestamp_ms(at: datetime) -> str:
    return str(round(at.timestamp() * 1000))


def _start(spark: SparkSession, settings: Namespace) -> Sequence[StreamingQuery]:
    from pyspark.sql import functions as f

    options = connection_options(settings) | {
        "subscribe": settings.source,
        "startingTimestamp": _timestamp_ms(settings.since),
        "startingOffsetsByTimestampStrategy": "latest",
    }
    is_in_range = f.col("timestamp") >= f.lit(settings.since)
    if settings.until is not None:
        # The option endingTimestamp would end at the first record with that timestamp or a later one, but records
        # after it may have earlier timestamps.
        is_in_range &= f.col("timestamp") < f.lit(settings.until)
    records = spark.read.format("odradek").schema("value binary, timestamp timestamp")
    chosen = records.options(**options).load().where(is_in_range)
    windows = keyed(delay_windows(parse_flights(chosen), watermark=None))
    target = sink_options(settings, topic=target_of(settings, TARGET))
    windows.write.format("odradek").mode("append").options(**target).save()
    return []


PIPELINE: Final = Pipeline(
    name="delay-backfill",
    summary="the windows of delay-windows for a past period, computed again in batch",
    plan=_plan,
    start=_start,
    reads_flights=True,
    add_arguments=_arguments,
    spark_config=(("spark.sql.shuffle.partitions", "4"),),
    is_batch=True,
)
