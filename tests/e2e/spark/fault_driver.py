"""The driver of the fault rounds: `python -m tests.e2e.spark.fault_driver --from T --to T --rows
DIRECTORY ...`.

It runs a pipeline of two queries on one topic: one writes the rows to Parquet files, which hold
each batch once, the other one to a topic by the sink. Each row is identified by partition, offset,
and the CRC-32 of its value.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from odradek_pipelines.pipeline import (
    Pipeline,
    connection_options,
    parse_settings,
    read_topic,
    run,
    source_step,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SCHEMA = "partition int, offset bigint, value binary"
MODULE = "tests.e2e.spark.fault_driver"


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rows", required=True, help="directory of the Parquet files")


def _plan(settings: Namespace) -> Sequence[str]:
    return [
        source_step(settings),
        f"its rows to {settings.rows}, and to topic {settings.target!r}",
    ]


def _start(spark: SparkSession, settings: Namespace) -> Sequence[StreamingQuery]:
    def checkpointed(writer: DataStreamWriter, name: str) -> DataStreamWriter:
        named = writer.queryName(name).option("checkpointLocation", f"{settings.checkpoint}/{name}")
        return named.trigger(processingTime=f"{round(settings.trigger_s * 1000)} milliseconds")

    rows = read_topic(spark, settings, schema=SCHEMA)
    to_files = rows.selectExpr("partition", "offset", "crc32(value) crc").writeStream
    to_files = checkpointed(to_files, "rows").format("parquet").option("path", settings.rows)
    again = read_topic(spark, settings, schema=SCHEMA)
    named = again.selectExpr("concat_ws(':', partition, offset, crc32(value)) value")
    to_topic = checkpointed(named.writeStream, "relay").format("odradek")
    to_topic = to_topic.option("topic", settings.target).options(**connection_options(settings))
    first = to_files.start()
    first.processAllAvailable()  # see "queries that start together" in the connector's README
    return [first, to_topic.start()]


PIPELINE = Pipeline(
    name="fault-rounds",
    summary="rows of a topic to files and to another topic",
    plan=_plan,
    start=_start,
    add_arguments=_arguments,
    spark_config=(
        ("spark.sql.shuffle.partitions", "2"),
        ("spark.sql.streaming.numRecentProgressUpdates", "1000"),
        ("spark.ui.enabled", "false"),
        ("spark.ui.showConsoleProgress", "false"),
    ),
)


if __name__ == "__main__":
    sys.exit(run(PIPELINE, parse_settings(PIPELINE, sys.argv[1:])))
