"""The pipeline `dead-letters`: it copies records that can be parsed to one topic, and others to a dead-letter topic.
Records in the dead-letter topic are unchanged except for additional headers with the reason.

One query writes to both topics, so a batch is written to both or to none, and is repeated after a failure.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from odradek_pipelines.flights import FLIGHT_SCHEMA
from odradek_pipelines.pipeline import (
    Pipeline,
    read_topic,
    source_step,
    target_of,
    write_topic,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TARGET: Final = "flights-clean"
_HEADERS: Final = "array<struct<key: string, value: binary>>"
_COLUMNS: Final = (
    f"key binary, value binary, topic string, partition int, offset bigint, headers {_HEADERS}"
)
_REQUIRED: Final = ("carrier", "flight", "origin", "dest", "time_hour")


def sorted_out(records: DataFrame, *, clean: str, dead: str) -> DataFrame:
    """Return rows for the sink. The column `topic` is `clean` for records that can be parsed, and `dead` for others.
    Rows for the topic `dead` have additional headers with the reason and with the record's topic, partition and offset.
    """
    from pyspark.sql import functions as f

    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}
    text = f.col("value").cast("string")
    parsed = f.from_json(text, f"{FLIGHT_SCHEMA}, _corrupt string", options)
    lacking = f.array_compact(
        f.array(*(f.when(f.col(f"f.{name}").isNull(), f.lit(name)) for name in _REQUIRED))
    )
    reason = (
        f.when(f.col("value").isNull(), f.lit("no value"))
        .when(
            f.col("f").isNull() | f.col("f._corrupt").isNotNull(), f.lit("not the JSON of a flight")
        )
        .when(f.size(lacking) > 0, f.concat(f.lit("without "), f.concat_ws(", ", lacking)))
    )

    def header(name: str, value: str) -> Column:
        return f.struct(
            f.lit(name).alias("key"), f.col(value).cast("string").cast("binary").alias("value")
        )

    headers = f.array(
        *(
            header(f"dead-letter.{name}", name)
            for name in ("reason", "topic", "partition", "offset")
        )
    )
    judged = records.withColumn("f", parsed).withColumn("reason", reason)
    return judged.select(
        "key",
        "value",
        f.when(f.col("reason").isNull(), f.lit(clean)).otherwise(f.lit(dead)).alias("topic"),
        f.when(f.col("reason").isNull(), f.col("headers"))
        .otherwise(f.concat(f.coalesce(f.col("headers"), f.array().cast(_HEADERS)), headers))
        .alias("headers"),
    )


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--dead",
        default=None,
        help="topic for records that cannot be parsed; default: the name of the source topic + .dead",
    )


def _dead(settings: Namespace) -> str:
    return settings.dead or f"{settings.source}.dead"


def _plan(settings: Namespace) -> Sequence[str]:
    return [
        source_step(settings),
        f"write records that are flights (JSON) to topic {target_of(settings, TARGET)!r}",
        f"write all other records to topic {_dead(settings)!r}, with additional headers"
        " dead-letter.reason, .topic, .partition and .offset",
    ]


def _start(spark: SparkSession, settings: Namespace) -> Sequence[StreamingQuery]:
    records = read_topic(spark, settings, schema=_COLUMNS)
    rows = sorted_out(records, clean=target_of(settings, TARGET), dead=_dead(settings))
    return [write_topic(rows, settings, PIPELINE.name, topic=None)]


PIPELINE: Final = Pipeline(
    name="dead-letters",
    summary="records that cannot be parsed go to a dead-letter topic, with the reason",
    plan=_plan,
    start=_start,
    reads_flights=True,
    add_arguments=_arguments,
)
