"""The pipeline `topic-to-files`: it writes the values of a topic to files in a directory or on an FTP server, one line
for each value.

Spark's file sink writes to a directory exactly once. On an FTP server each batch is one file, named by the number of
the batch, which appears when it is complete. A batch that Spark runs again replaces the file of its first run.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from odradek_pipelines.ftp_server import FtpDirectory
from odradek_pipelines.pipeline import (
    Pipeline,
    read_topic,
    source_step,
    start_query,
    target_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TARGET: Final = "lines.d"


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--ftp",
        default=None,
        help="write the files to this FTP directory instead of --to: ftp://user:password@host:port/path",
    )


def _plan(settings: Namespace) -> Sequence[str]:
    if settings.ftp is None:
        last = f"append values as lines to files in {target_of(settings, TARGET)}"
    else:
        last = f"store each batch as batch-NUMBER.txt at {FtpDirectory(settings.ftp)}"
    return [source_step(settings), last]


def _start(spark: SparkSession, settings: Namespace) -> Sequence[StreamingQuery]:
    from pyspark.sql import functions as f

    records = read_topic(spark, settings, schema="value binary")
    texts = records.select(f.col("value").cast("string").alias("value")).where("value is not null")
    writer = start_query(texts, settings, PIPELINE.name)
    if settings.ftp is None:
        return [writer.format("text").option("path", target_of(settings, TARGET)).start()]
    remote = FtpDirectory(settings.ftp)

    def store(batch: DataFrame, batch_id: int) -> None:
        rows = batch.toLocalIterator(prefetchPartitions=True)
        remote.store(f"batch-{batch_id:09}.txt", (f"{row.value}\n".encode() for row in rows))

    return [writer.foreachBatch(store).start()]


PIPELINE: Final = Pipeline(
    name="topic-to-files",
    summary="the values of a topic as lines of files in a directory or on an FTP server",
    plan=_plan,
    start=_start,
    add_arguments=_arguments,
)
