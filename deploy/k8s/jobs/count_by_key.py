"""A Spark job that counts the records of a topic by key, and writes the counts to another topic as one JSON object for
each key.

It runs wherever PySpark and the connector are installed: in a plain Kubernetes Job (`local[*]`) or with the Spark
operator.
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
        "--from",
        dest="source",
        required=True,
        help="topic whose records are counted, from the earliest to the latest offset",
    )
    parser.add_argument(
        "--to", dest="target", required=True, help="topic to which the counts are written"
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
    spark = session("count by key")
    records = (
        spark.read.format("odradek")
        .options(**connection)
        .option("subscribe", arguments.source)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )
    key = f.col("key").cast("string")
    counts = records.groupBy(key.alias("key")).agg(f.count("*").alias("records"))
    (
        counts.select(
            f.col("key").cast("binary").alias("key"),
            f.to_json(f.struct("key", "records")).cast("binary").alias("value"),
        )
        .write.format("odradek")
        .mode("append")
        .options(**connection)
        .option("topic", arguments.target)
        .option("transactionalIdPrefix", f"{arguments.target}-")
        .save()
    )
    spark.stop()


if __name__ == "__main__":
    main()
