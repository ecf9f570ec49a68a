"""Exactly-once writes from `foreachBatch`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_odradek.sink_options import EXACTLY_ONCE, QUERY_ID, STEP_NUMBER, STEP_QUERY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_step(
    frame: DataFrame, *, step: int, query: str | None = None, **options: str | None
) -> None:
    """Write a batch of `foreachBatch` to topics, exactly once even if Spark runs it several times.

        frames.writeStream.foreachBatch(lambda frame, batch: write_step(
            frame, step=batch, topic="totals", **{"kafka.bootstrap.servers": "host:9090"}))

    The cluster remembers the last step of a query that is complete. A step that is complete already is not written
    again, and an older one is refused. So if one batch has several writes, each needs a different `query`. A name
    that does not come from the checkpoint needs `odradek transaction steps QUERY --forget` when the checkpoint begins
    again.

    Args:
        frame: The rows, with the columns of the sink.
        step: The number of the batch.
        query: Name of this write over restarts of the program. Default: the id of the streaming query, which is that
            of its checkpoint.
        options: Options of the sink. With delivery=None a cluster without transactions is written at least once, as by
            a streaming query.

    Raises:
        ValueError: `query` is missing, and this is not called in `foreachBatch`, or is called through Spark Connect.
    """
    named = {"delivery": EXACTLY_ONCE} | options
    named |= {STEP_QUERY: query or _running_query(frame), STEP_NUMBER: str(step)}
    given = {name: value for name, value in named.items() if value is not None}
    frame.write.format("odradek").mode("append").options(**given).save()


def _running_query(frame: DataFrame) -> str:
    """Return the id of the streaming query that calls `foreachBatch` in this thread."""
    try:
        query_id = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    except AttributeError:  # with Spark Connect there is no context
        query_id = None
    if query_id is None:
        raise ValueError(
            "write_step cannot find out the streaming query: pass query=NAME, with a different"
            " name for each write of a batch"
        )
    return query_id
