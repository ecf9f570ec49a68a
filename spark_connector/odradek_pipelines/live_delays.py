"""`python -m odradek_pipelines.live_delays BOOTSTRAP TOPIC RECORDS`: the Spark part of `odradek demo`.

The windows of `delay-windows` over a topic while records stream in. Prints the result of
`run_live` as one line of JSON when RECORDS records were read. Exits with status 3 and a reason if Spark is missing.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

from odradek_pipelines.delay_windows import delay_windows
from odradek_pipelines.flights import parse_flights
from pyspark_odradek.spark_session import SparkUnavailable, session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

EXIT_UNAVAILABLE: Final = 3
TIMEOUT_S: Final = 300.0
_TABLE: Final = "odradek_live_delays"
_POLL_S: Final = 0.2


def run_live(bootstrap: str, topic: str, *, record_count: int) -> dict[str, Any]:
    """Return the table when `record_count` records were read.

    Blocks. The result has `rows` (dicts of carrier, hour, flights, delay_sum_min, delay_mean_min, sorted),
    `records`, `batches` and `dropped_by_watermark`.

    Raises:
        SparkUnavailable: no JDK or PySpark.
        TimeoutError: fewer were read within TIMEOUT_S.
    """
    spark = session("odradek demo", spark__sql__shuffle__partitions="2")
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    records = spark.readStream.format("odradek").schema("value binary").options(**options).load()
    windows = delay_windows(parse_flights(records), watermark="366 days")
    with tempfile.TemporaryDirectory(prefix="odradek-demo-") as checkpoint:
        query = (
            windows.writeStream.format("memory")
            .queryName(_TABLE)
            .outputMode("complete")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="500 milliseconds")
            .start()
        )
        try:
            by_batch = _followed(query, record_count)
            table = [row.asDict() for row in spark.table(_TABLE).collect()]
        finally:
            query.stop()
    table.sort(key=lambda row: (row["carrier"], row["hour"]))
    return {
        "rows": table,
        "records": sum(rows for rows, _ in by_batch.values()),
        "batches": len(by_batch),
        "dropped_by_watermark": sum(dropped for _, dropped in by_batch.values()),
    }


def _followed(query: StreamingQuery, record_count: int) -> dict[int, tuple[int, int]]:
    """Wait for so many records. Returns rows read and rows dropped by the watermark, by batch."""
    by_batch: dict[int, tuple[int, int]] = {}
    deadline_s = time.monotonic() + TIMEOUT_S
    while sum(rows for rows, _ in by_batch.values()) < record_count:
        if not query.isActive:
            raise query.exception() or RuntimeError("the query ended by itself")
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"of {record_count} records {by_batch} were read in {TIMEOUT_S} s")
        time.sleep(_POLL_S)
        for progress in query.recentProgress:
            dropped = sum(o.numRowsDroppedByWatermark for o in progress.stateOperators)
            by_batch[progress.batchId] = (progress.numInputRows, dropped)
    return by_batch


def main() -> int:
    """Run until the records are read, and return the exit status."""
    bootstrap, topic, records = sys.argv[1:4]
    try:
        result = run_live(bootstrap, topic, record_count=int(records))
    except SparkUnavailable as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
