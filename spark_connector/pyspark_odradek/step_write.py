"""Exactly-once writes from `foreachBatch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_odradek.sink_options import EXACTLY_ONCE, STEP_NUMBER, STEP_QUERY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_step(frame: DataFrame, *, query: str, step: int, **options: Any) -> None:
    """Write a batch of `foreachBatch` to topics, once however often Spark runs it.

        frames.writeStream.foreachBatch(lambda frame, batch: write_step(
            frame, query="totals", step=batch, topic="totals", **{"kafka.bootstrap.servers": "host:9090"}))

    The cluster remembers the last step of a query that is complete. A step that it has already is not written again,
    and an older one is refused. So each write of a batch needs a `query` of its own, and a query that begins again
    with a new checkpoint needs a new name, or `odradek transaction steps QUERY --forget`.

    Args:
        frame: The rows, with the columns of the sink.
        query: Name of this write over restarts of the program.
        step: The number of the batch.
        options: Options of the sink.
    """
    named = {"delivery": EXACTLY_ONCE} | options | {STEP_QUERY: query, STEP_NUMBER: str(step)}
    frame.write.format("odradek").mode("append").options(**named).save()
