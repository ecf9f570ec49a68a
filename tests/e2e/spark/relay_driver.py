"""The driver of the exactly-once rounds: `python -m tests.e2e.spark.relay_driver --from T --to T
...`.

One query reads a topic and writes each row to another topic, by the sink's default delivery. Rows
are identified by partition and offset. Its Python workers stop at a point of the delivery if a test
has armed that point (`stop_points`).
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from odradek_pipelines.pipeline import (
    Pipeline,
    parse_settings,
    read_topic,
    run,
    sink_options,
    source_options,
    source_step,
    write_topic,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MODULE = "tests.e2e.spark.relay_driver"
QUERY = "relay"


def _plan(settings: Namespace) -> Sequence[str]:
    return [source_step(settings), f"its rows to topic {settings.target!r}"]


def _start(spark: SparkSession, settings: Namespace) -> Sequence[StreamingQuery]:
    schema, name = (
        "partition int, offset bigint, value binary",
        "concat_ws(':', partition, offset) value",
    )
    if settings.batch:
        reader = spark.read.format("odradek").schema(schema).options(**source_options(settings))
        writer = reader.load().selectExpr(name).write.format("odradek").mode("append")
        writer.options(**sink_options(settings, topic=settings.target)).save()
        return []
    named = read_topic(spark, settings, schema=schema).selectExpr(name)
    return [write_topic(named, settings, QUERY, topic=settings.target)]


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--batch", action="store_true", help="one batch write")


PIPELINE = Pipeline(
    name="exactly-once-rounds",
    summary="rows of a topic to another topic",
    plan=_plan,
    start=_start,
    add_arguments=_add_arguments,
    spark_config=(
        ("spark.sql.shuffle.partitions", "2"),
        ("spark.ui.enabled", "false"),
        ("spark.ui.showConsoleProgress", "false"),
        # An executor that is killed costs its tasks an attempt each.
        ("spark.task.maxFailures", "100"),
        ("spark.deploy.maxExecutorRetries", "-1"),
    ),
)


if __name__ == "__main__":
    sys.exit(run(PIPELINE, parse_settings(PIPELINE, sys.argv[1:])))
