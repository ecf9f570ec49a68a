"""`write_step`, which writes from `foreachBatch` to topics exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_odradek.sink_options import EXACTLY_ONCE, QUERY_ID, STEP_NUMBER, STEP_QUERY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_step(
    frame: DataFrame, *, step: int, query: str | None = None, **options: str | None
) -> None:
    """Write a batch of `foreachBatch` to topics, exactly once even if Spark runs the batch several times.

        frames.writeStream.foreachBatch(lambda frame, batch: write_step(
            frame, step=batch, topic="totals", **{"kafka.bootstrap.servers": "host:9090"}))

    The cluster stores the last complete step of each query. A step that is already complete is not written again,
    and an older step is refused. So if one batch has several writes, each of them needs a different `query`. With your
    own `query`, run `odradek transaction steps QUERY --forget` when you delete the checkpoint: the numbers of batches
    then begin at 0 again.

    Args:
        frame: The rows, with the columns of the sink.
        step: The number of the batch, which `foreachBatch` passes.
        query: Name of this write, the same after each restart of the program. Default: the id of the streaming query,
            which comes from its checkpoint.
        options: Options of the sink. With delivery=None, rows are delivered at least once if the cluster does not
            support transactions, as by a streaming query.

    Raises:
        ValueError: `query` is missing, and the call is not in `foreachBatch` or comes through Spark Connect.
    """
    named = {"delivery": EXACTLY_ONCE} | options
    named |= {STEP_QUERY: query or _running_query(frame), STEP_NUMBER: str(step)}
    given = {name: value for name, value in named.items() if value is not None}
    frame.write.format("odradek").mode("append").options(**given).save()


def _running_query(frame: DataFrame) -> str:
    """Return the id of the streaming query whose `foreachBatch` runs in this thread. Raises ValueError."""
    try:
        query_id = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    except AttributeError:  # with Spark Connect there is no context
        query_id = None
    if query_id is None:
        raise ValueError(
            "write_step cannot find the id of the streaming query: pass query=NAME, with a different"
            " name for each write of a batch"
        )
    return query_id
