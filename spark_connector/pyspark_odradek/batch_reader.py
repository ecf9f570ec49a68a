"""Reading in batch: ranges are settled once, on the driver; pushed filters narrow them first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_odradek.offset_ranges import OffsetRange
from pyspark_odradek.pushed_filters import PushedFilters
from pyspark_odradek.range_partition import plan_tasks, read_range
from pyspark_odradek.source_options import SourceOptions
from pyspark_odradek.topic_offsets import TopicOffsets

if TYPE_CHECKING:
    import pyarrow as pa


class _OptionalPushdown:
    """`pushFilters` of a reader that also works where Spark's pushdown is off.

    With spark.sql.python.filterPushdown.enabled off (its default) Spark refuses any reader that
    overrides `pushFilters`, which it tells by the function behind it. This one shows the base class's.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, filters: PushedFilters) -> None:
        self._filters = filters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._filters.push(filters)


class OdradekBatchReader(DataSourceReader):
    """Pickled to executors: holds options and schema only."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters = PushedFilters()
        self.pushFilters: Any = _OptionalPushdown(self._filters)

    def partitions(self) -> list[InputPartition]:
        """One task per partition that has records, or more (minPartitions, maxRecordsPerPartition)."""
        lookup = TopicOffsets(self._options)
        starts = lookup.resolve(self._options.starting, is_start=True)
        ends = lookup.resolve(self._options.ending, is_start=False)
        ranges = []
        for name, start in starts.items():
            end = ends.get(name, start)
            if start > end:
                raise ValueError(
                    f"The resolved start offset {start} is greater than the resolved end offset"
                    f" {end} for topic {name.topic} partition {name.partition}."
                )
            ranges.append(OffsetRange(name, start, end))
        ranges = self._filters.narrow(ranges)
        if self._filters.timestamp_ms is not None:
            at_ms = self._filters.timestamp_ms
            firsts = lookup.first_at_or_after({r.name: at_ms for r in ranges})
            ranges = [
                OffsetRange(r.name, max(r.start_offset, firsts[r.name]), r.end_offset)
                for r in ranges
            ]
        topic_ids = lookup.topic_ids({r.name.topic for r in ranges})
        return plan_tasks(ranges, topic_ids, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor: the records of one range."""
        return read_range(partition, self._options, self._schema)
