"""Converts the records of a task to Arrow record batches with the requested schema.

Only the columns in the schema are built. The columns topic, partition and timestampType are constant; each is a slice
of one long array.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from odradek.errors import CorruptRecords
from odradek.partitions import TopicPartition
from odradek_protocol.records.batch_header import BatchHeader, iter_headers
from odradek_protocol.records.columns import (
    BinaryColumn,
    Column,
    ColumnBuilder,
    Columns,
    HeadersColumn,
)
from odradek_protocol.records.errors import CorruptBatch
from pyspark_odradek.partition_stream import Chunk, PartitionStream, RangePartition
from pyspark_odradek.process_link import link_to
from pyspark_odradek.source_options import SourceOptions

_COLUMNS: Final = {
    "key": Column.KEY,
    "value": Column.VALUE,
    "headers": Column.HEADERS,
    "offset": Column.OFFSET,
    "timestamp": Column.TIMESTAMP,
}
BATCH_BYTES: Final = 2 << 20
"""Bytes of keys, values and headers after which an Arrow batch is sent to the JVM."""
BATCH_ROWS_MAX: Final = 1 << 16


def read_range(
    partition: InputPartition, options: SourceOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the records of one task's range. It is called on an executor. Spark may create a task without a range; such
    a task has no records.
    """
    if not isinstance(partition, RangePartition):
        return
    plan = partition.plan
    stream = PartitionStream(link_to(options.connection), plan)
    try:
        yield from RecordRows(schema, plan.name, plan.end_offset).batches(iter(stream))
    finally:
        stream.close()


class RecordRows:
    """Converts fetched chunks of one partition's range to Arrow record batches."""

    def __init__(self, schema: StructType, name: TopicPartition, end_offset: int) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._name = name
        self._end_offset = end_offset
        self._columns = Column(0)
        for column, flag in _COLUMNS.items():
            if column in self._schema.names:
                self._columns |= flag
        self._builder = ColumnBuilder(self._columns, timestamp_unit="us")
        self._rows = 0
        self._timestamp_type = 0
        self._constants: dict[tuple[str, int], pa.Array] = {}

    def batches(self, chunks: Iterator[Chunk]) -> Iterator[pa.RecordBatch]:
        """Yield an Arrow batch whenever one is full, and the last one at the end. Raises CorruptRecords for damaged
        bytes.
        """
        for chunk in chunks:
            try:
                yield from self._of_chunk(chunk)
            except CorruptBatch as error:
                raise CorruptRecords(
                    f"{self._name}: a batch at or after offset {chunk.start_offset} is damaged:"
                    f" {error}"
                ) from error
        if self._rows:
            yield self._flush()

    def _of_chunk(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        for position, header in data_batches(chunk.records, chunk.aborted):
            if header.next_offset <= chunk.start_offset:
                continue
            if header.base_offset >= self._end_offset:
                return
            if self._rows and header.timestamp_type != self._timestamp_type:
                yield self._flush()
            self._timestamp_type = int(header.timestamp_type)
            if header.next_offset > self._end_offset:
                if self._rows:
                    yield self._flush()
                yield self._last(chunk, position, header)
                return
            self._rows += self._builder.append_batch(
                chunk.records, position, header, start_offset=chunk.start_offset
            )
            if self._builder.size_bytes >= BATCH_BYTES or self._rows >= BATCH_ROWS_MAX:
                yield self._flush()

    def _last(self, chunk: Chunk, position: int, header: BatchHeader) -> pa.RecordBatch:
        """Return the records of a batch that are before the range's end. Another task reads the later records."""
        builder = ColumnBuilder(self._columns | Column.OFFSET, timestamp_unit="us")
        rows = builder.append_batch(
            chunk.records, position, header, start_offset=chunk.start_offset
        )
        columns = builder.finish()
        assert columns.offset is not None
        kept = bisect_left(memoryview(columns.offset).cast("q"), self._end_offset)
        return self._record_batch(columns, rows).slice(0, kept)

    def _flush(self) -> pa.RecordBatch:
        rows, self._rows = self._rows, 0
        return self._record_batch(self._builder.finish(), rows)

    def _record_batch(self, columns: Columns, rows: int) -> pa.RecordBatch:
        arrays = [self._array(field, columns, rows) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pa.Field, columns: Columns, rows: int) -> pa.Array:
        match field.name:
            case "key" | "value":
                column = columns.key if field.name == "key" else columns.value
                assert column is not None
                return _binary(field.type, rows, column)
            case "offset" | "timestamp":
                data = columns.offset if field.name == "offset" else columns.timestamp
                return pa.Array.from_buffers(
                    field.type, rows, [None, pa.py_buffer(data)], null_count=0
                )
            case "topic":
                return self._constant(field, rows, self._name.topic, 0)
            case "partition":
                return self._constant(field, rows, self._name.partition, 0)
            case "timestampType":
                return self._constant(field, rows, self._timestamp_type, self._timestamp_type)
            case _:
                assert columns.headers is not None, field
                return _headers(field.type, rows, columns.headers)

    def _constant(self, field: pa.Field, rows: int, value: Any, variant: int) -> pa.Array:
        made = self._constants.get((field.name, variant))
        if made is None or len(made) < rows:
            made = pa.repeat(pa.scalar(value, field.type), max(rows, 1024))
            self._constants[field.name, variant] = made
        return made.slice(0, rows)


def data_batches(
    records: memoryview, aborted: Sequence[tuple[int, int]] | None
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of each batch that contains records for readers. Control batches and the batches of
    aborted transactions are left out.

    An aborted transaction of a producer starts at its offset in `aborted`, and ends at the producer's abort marker.
    """
    waiting = [] if aborted is None else sorted(aborted, key=lambda pair: -pair[1])
    aborting: set[int] = set()
    for position, header in iter_headers(records):
        if aborted is not None and header.is_transactional:
            while waiting and waiting[-1][1] <= header.last_offset:
                aborting.add(waiting.pop()[0])
            if header.is_control:
                aborting.discard(header.producer_id)
            elif header.producer_id in aborting:
                continue
        if not header.is_control:
            yield position, header


def _binary(kind: pa.DataType, rows: int, column: BinaryColumn) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, rows, buffers, null_count=column.null_count)


def _headers(kind: pa.ListType, rows: int, column: HeadersColumn) -> pa.Array:
    struct_type = kind.value_type
    entries = len(column.keys.offsets) // 4 - 1
    fields = [struct_type.field(i) for i in range(struct_type.num_fields)]
    entry = pa.StructArray.from_arrays(
        [
            _binary(fields[0].type, entries, column.keys),
            _binary(fields[1].type, entries, column.values),
        ],
        fields=fields,
    )
    offsets = pa.py_buffer(column.offsets)
    return pa.Array.from_buffers(kind, rows, [None, offsets], null_count=0, children=[entry])
