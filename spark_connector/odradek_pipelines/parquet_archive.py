"""The pipeline `parquet-archive`: it writes a topic to Parquet files, with one directory for each date of scheduled
departure. Spark's file sink writes each record exactly once.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from odradek_pipelines.flights import read_flights
from odradek_pipelines.pipeline import (
    Pipeline,
    source_step,
    start_query,
    target_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TARGET: Final = "flights.parquet"


def _plan(settings: Namespace) -> Sequence[str]:
    return [
        source_step(settings),
        "parse flights (JSON)",
        f"append to {target_of(settings, TARGET)}, one directory per date of departure (UTC)",
    ]


def _start(spark: SparkSession, settings: Namespace) -> Sequence[StreamingQuery]:
    from pyspark.sql import functions as f

    flights = read_flights(spark, settings)
    dated = flights.withColumn("date", f.to_date("scheduled"))
    by_date = dated.repartition("date")  # each batch then writes one file per date
    writer = start_query(by_date, settings, PIPELINE.name).format("parquet").partitionBy("date")
    return [writer.option("path", target_of(settings, TARGET)).start()]


PIPELINE: Final = Pipeline(
    name="parquet-archive",
    summary="topic to Parquet, partitioned by date",
    plan=_plan,
    start=_start,
    reads_flights=True,
    spark_config=(("spark.sql.shuffle.partitions", "4"),),
)
