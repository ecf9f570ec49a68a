"""The writers of the sink. They convert the rows of Arrow record batches to records, and write them by a `Delivery`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pyspark_odradek.delivery import (
    AtLeastOnce,
    Delivery,
    OutputRecord,
    PreparedWrite,
    TaskIdentity,
)
from pyspark_odradek.sink_options import QUERY_ID, SinkOptions
from pyspark_odradek.staged_delivery import ExactlyOnce

if TYPE_CHECKING:
    import pyarrow as pa


ROWS_AT_ONCE_MAX: Final = 1000
"""Most rows in one call of `Stage.send`. The number is limited, because the timeout of a call does not grow with its
number of rows.
"""
_BATCH_ID = "streaming.sql.batchId"


class TaskWritten(WriterCommitMessage):
    """The message by which a task reports to the driver that its rows are written."""

    def __init__(self, prepared: PreparedWrite) -> None:
        self.prepared = prepared


class _Writer:
    """The base class of both writers. Spark pickles a writer to executors, so it holds only options."""

    def __init__(self, options: SinkOptions, *, is_final: bool) -> None:
        self._options = options
        self._delivery: Delivery = (
            ExactlyOnce(options, is_final=is_final)
            if options.is_exactly_once
            else AtLeastOnce(options)
        )

    def _write(self, iterator: Iterator[pa.RecordBatch], identity: TaskIdentity) -> TaskWritten:
        stage = self._delivery.open(identity)
        try:
            for batch in iterator:
                for first in range(0, batch.num_rows, ROWS_AT_ONCE_MAX):
                    piece = batch.slice(first, ROWS_AT_ONCE_MAX)
                    stage.send(output_records(piece, self._options))
            return TaskWritten(stage.prepare())
        except BaseException:
            stage.abandon()
            raise


class OdradekStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The writer for `df.writeStream`. Every batch has at least one task, so `commit` finds the query's id in the
    messages of the tasks.
    """

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options, is_final=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Spark calls this on an executor."""
        query_id, batch_id = _local_property(QUERY_ID), _local_property(_BATCH_ID)
        if self._delivery.needs_identity and (query_id is None or batch_id is None):
            raise RuntimeError(
                f"this version of Spark does not pass {QUERY_ID} and {_BATCH_ID} to tasks, so repeated batches"
                " cannot be recognized: set the option delivery to at-least-once"
            )
        identity = _identity(query_id or "", int(batch_id or -1))
        return self._write(iterator, identity)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Complete a batch. Spark calls this on the driver, and again after a crash."""
        self._delivery.complete(batchId, _prepared(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort a failed batch. Spark calls this on the driver."""
        self._delivery.abort(batchId, _prepared(messages))


class OdradekBatchWriter(_Writer, DataSourceArrowWriter):
    """The writer for `df.write`.

    It writes the step that `write_step` has passed in the options or, without these options, the only batch of a new
    query.
    """

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options, is_final=options.step is None)
        self._query_id, self._step = options.step or (uuid.uuid4().hex, 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Spark calls this on an executor."""
        return self._write(iterator, _identity(self._query_id, self._step))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Complete the write. Spark calls this on the driver."""
        self._delivery.complete(self._step, _prepared(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort a failed write. Spark calls this on the driver."""
        self._delivery.abort(self._step, _prepared(messages), query_id=self._query_id)


def output_records(batch: pa.RecordBatch, options: SinkOptions) -> list[OutputRecord]:
    """Return the rows of an Arrow batch as records. Raises ValueError if a row has no topic, a negative partition, or a
    header without a key.
    """
    rows = batch.num_rows
    nothing: list[Any] = [None] * rows
    columns = {name: batch.column(name) for name in options.columns}
    if options.topic is not None:
        topics: list[Any] = [options.topic] * rows
    else:
        topics = columns["topic"].to_pylist()
        for topic in topics:
            if not topic:
                raise ValueError(
                    "The Kafka message data sent to the producer contains a null topic. Use the"
                    " `topic` option for setting a default topic."
                )
    keys = _bytes(columns["key"]) if "key" in columns else nothing
    values = _bytes(columns["value"])
    headers = _headers(columns["headers"]) if "headers" in columns else nothing
    partitions = _partitions(columns["partition"]) if "partition" in columns else nothing
    return list(map(OutputRecord, topics, keys, values, headers, partitions))


def _bytes(column: pa.Array) -> list[bytes | None]:
    import pyarrow as pa

    values: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return values


def _partitions(column: pa.Array) -> list[int | None]:
    import pyarrow.compute as pc

    lowest = pc.min(column).as_py()
    if lowest is not None and lowest < 0:
        raise ValueError(
            f"Invalid partition: {lowest}. Partition number should always be non-negative or null."
        )
    partitions: list[int | None] = column.to_pylist()
    return partitions


def _headers(column: pa.Array) -> list[list[tuple[str, bytes | None]] | None]:
    rows: list[list[tuple[str, bytes | None]] | None] = []
    for entries in column.to_pylist():
        if entries is None:
            rows.append(None)
            continue
        for entry in entries:
            if entry is None or entry["key"] is None:
                raise ValueError("a header has no key: a header's key cannot be null")
        rows.append([(entry["key"], entry["value"]) for entry in entries])
    return rows


def _prepared(messages: Iterable[WriterCommitMessage | None]) -> list[PreparedWrite]:
    return [message.prepared for message in messages if isinstance(message, TaskWritten)]


def _local_property(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def _identity(query_id: str, batch_id: int) -> TaskIdentity:
    context = TaskContext.get()
    return TaskIdentity(
        query_id=query_id,
        batch_id=batch_id,
        partition_id=0 if context is None else context.partitionId(),
        attempt=0 if context is None else context.taskAttemptId(),
    )
