"""`python -m odradek_pipelines.live_delays BOOTSTRAP TOPIC RECORDS TARGET CHECKPOINT`: the Spark program that
`odradek demo` runs.

The program computes the windows of `delay-windows` over TOPIC while records arrive. Each batch writes its changed
windows and its number to TARGET, exactly once. If the program is killed and started again with the same CHECKPOINT, it
continues.

When a batch is written, the program prints a line of JSON, and waits for a line on standard input. Only after that line
Spark records the batch as complete. So a caller that kills the program during this wait knows that Spark will run the
batch again. When Spark has recorded the batch, the program prints another line of JSON. The program ends when it has
read RECORDS records. If Spark is missing, it prints the reason and exits with status 3.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from odradek_pipelines.delay_windows import delay_windows, keyed
from odradek_pipelines.flights import parse_flights
from pyspark_odradek.spark_session import SparkUnavailable, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

EXIT_UNAVAILABLE: Final = 3
TIMEOUT_S: Final = 300.0
_POLL_S: Final = 0.2


def run_live(
    bootstrap: str, topic: str, *, record_count: int, target: str, checkpoint: str
) -> None:
    """Run the query until it has read `record_count` records, including those that earlier processes with the same
    checkpoint have read. The call blocks.

    Raises:
        SparkUnavailable: a JDK or PySpark is missing.
        TimeoutError: fewer records were read within TIMEOUT_S.
    """
    spark = session("odradek demo", spark__sql__shuffle__partitions="2")
    from pyspark.sql import functions as f

    from pyspark_odradek import write_step

    options = {"kafka.bootstrap.servers": bootstrap}
    source = options | {"subscribe": topic, "startingOffsets": "earliest"}
    records = spark.readStream.format("odradek").schema("value binary").options(**source).load()
    windows = delay_windows(parse_flights(records), watermark="366 days")

    def write(batch: DataFrame, number: int) -> None:
        rows = keyed(batch.withColumn("batch", f.lit(number)))
        write_step(rows, step=number, topic=target, **options)
        _say("written", batch=number)
        if not sys.stdin.readline():
            raise RuntimeError("the process that started this one has ended")

    query = (
        windows.writeStream.queryName("live delays")
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="500 milliseconds")
        .foreachBatch(write)
        .start()
    )
    try:
        _follow(query, record_count)
    finally:
        query.stop()


def _follow(query: StreamingQuery, record_count: int) -> None:
    """Report each batch that Spark has recorded as complete, until `record_count` records were read."""
    reported: set[int] = set()
    read_count = 0
    deadline_s = time.monotonic() + TIMEOUT_S
    while read_count < record_count:
        if not query.isActive:
            raise query.exception() or RuntimeError("the query ended without being stopped")
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{read_count} of {record_count} records were read in {TIMEOUT_S} s")
        time.sleep(_POLL_S)
        for progress in query.recentProgress:
            # The sum of the end offsets also counts records that an earlier process has read.
            ends = json.loads(progress.sources[0].endOffset or "{}")
            read_count = max(
                read_count, sum(end for topic in ends.values() for end in topic.values())
            )
            if progress.batchId not in reported:
                reported.add(progress.batchId)
                dropped = sum(o.numRowsDroppedByWatermark for o in progress.stateOperators)
                _say("progress", batch=progress.batchId, dropped_by_watermark=dropped)


def _say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def main() -> int:
    """Run the program and return its exit status."""
    bootstrap, topic, records, target, checkpoint = sys.argv[1:6]
    try:
        run_live(bootstrap, topic, record_count=int(records), target=target, checkpoint=checkpoint)
    except SparkUnavailable as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
