"""Converts columns of records to Arrow tables. Needs pyarrow: `odradek[arrow]`."""

from __future__ import annotations

from odradek.errors import MissingDependency
from odradek.partitions import TopicPartition
from odradek_protocol.records.columns import Column, ColumnBuilder, Columns

try:
    import pyarrow as pa
except ImportError:
    raise MissingDependency("pyarrow", "arrow") from None

from odradek_protocol.records.columns import to_record_batch


def record_batch_of(name: TopicPartition, columns: Columns) -> pa.RecordBatch:
    """Return the columns of one partition as an Arrow record batch, with topic and partition in each row."""
    return to_record_batch(columns, topic=name.topic, partition=name.partition)


def table_of(batches: list[pa.RecordBatch]) -> pa.Table:
    """Return one table over all batches, without copying."""
    return pa.Table.from_batches(batches)


def empty_table(columns: Column) -> pa.Table:
    """Return a table with these columns and no rows."""
    return table_of([record_batch_of(TopicPartition("", 0), ColumnBuilder(columns).finish())])
