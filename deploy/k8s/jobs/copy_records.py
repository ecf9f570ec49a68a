"""A Spark job that copies the records of a topic to another topic exactly once. Each copy contains the topic, partition
and offset of the original record.

The job copies the records that exist when it starts, in batches, and then ends. If its driver is killed and started
again, it continues at its checkpoint. A later run copies the records that were written since the previous run.
Consumers with `isolation.level=read_committed` read each copy once.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pyspark.sql import functions as f

from pyspark_odradek import session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--from", dest="source", required=True, help="topic whose records are copied"
    )
    parser.add_argument(
        "--to", dest="target", required=True, help="topic to which the records are copied"
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        help="folder that records how far the topic was copied; keep it between runs, and use a separate folder for"
        " each pair of topics",
    )
    parser.add_argument(
        "--records-max",
        type=int,
        default=100_000,
        help="copy at most this many records per batch; default: 100000",
    )
    parser.add_argument(
        "--certificates",
        type=Path,
        default=None,
        help="folder with tls.crt, tls.key and ca.crt; default: connect without TLS",
    )
    arguments = parser.parse_args()
    connection = {"kafka.bootstrap.servers": os.environ["ODRADEK_BOOTSTRAP"]}
    if arguments.certificates is not None:
        connection |= {
            "kafka.security.protocol": "SSL",
            "kafka.ssl.ca.location": str(arguments.certificates / "ca.crt"),
            "kafka.ssl.certificate.location": str(arguments.certificates / "tls.crt"),
            "kafka.ssl.key.location": str(arguments.certificates / "tls.key"),
        }
    spark = session("copy records")
    records = (
        spark.readStream.format("odradek")
        .options(**connection)
        .option("subscribe", arguments.source)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("maxOffsetsPerTrigger", arguments.records_max)
        .load()
    )
    origin = f.struct("topic", "partition", "offset", f.col("value").cast("string").alias("value"))
    query = (
        records.select("key", f.to_json(origin).cast("binary").alias("value"))
        .writeStream.format("odradek")
        .options(**connection)
        .option("topic", arguments.target)
        .option("transactionalIdPrefix", f"{arguments.target}-")
        .option("checkpointLocation", str(arguments.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
