"""The reader of `spark.read`. The driver determines once which offset ranges to read, after it has narrowed the ranges
by the filters that Spark pushes down.

Filters on topic, partition and offset are applied completely by narrowing ranges. A filter on the timestamp cannot be
applied in this way, because records need not be in the order of their timestamps. But a lower bound T on the timestamp
moves the start of a range: all records before the first one with a timestamp of at least T are earlier than T. Spark
then checks the timestamp of each record that is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from odradek.partitions import TopicPartition
from pyspark_odradek.offsets import OffsetRange
from pyspark_odradek.partition_stream import plan_tasks
from pyspark_odradek.source_options import SourceOptions
from pyspark_odradek.topic_offsets import TopicOffsets

if TYPE_CHECKING:
    import pyarrow as pa


_NEVER_NULL: Final = frozenset(["topic", "partition", "offset", "timestamp", "timestampType"])
_INT64_MAX: Final = (1 << 63) - 1


@dataclass(slots=True)
class PushedFilters:
    """The bounds on topic, partition, offset and timestamp that follow from the filters of a query."""

    start_offset: int = 0
    end_offset: int = _INT64_MAX
    timestamp_ms: int | None = None
    """Lower bound of timestamps in ms since the epoch; None if no filter sets one."""
    _topics: set[str] | None = None
    _partitions: set[int] | None = None

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Add filters to the bounds. Return the filters that Spark must still evaluate for each record."""
        return [candidate for candidate in filters if not self._push_one(candidate)]

    def is_wanted(self, name: TopicPartition) -> bool:
        """Return whether records of the partition can match the filters on topic and partition."""
        return (self._topics is None or name.topic in self._topics) and (
            self._partitions is None or name.partition in self._partitions
        )

    def narrow(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the part of each range that can match the filters. A part may be empty; partitions that cannot match
        are left out.
        """
        return [
            OffsetRange(
                r.name, max(r.start_offset, self.start_offset), min(r.end_offset, self.end_offset)
            )
            for r in ranges
            if self.is_wanted(r.name)
        ]

    def _push_one(self, candidate: Filter) -> bool:
        attribute: tuple[str, ...] = getattr(candidate, "attribute", ())
        column = attribute[0] if len(attribute) == 1 else ""
        if isinstance(candidate, IsNotNull):
            return column in _NEVER_NULL
        value: Any = getattr(candidate, "value", None)
        match column:
            case "topic":
                return self._push_set(candidate, value, lambda v: isinstance(v, str), "_topics")
            case "partition":
                return self._push_set(candidate, value, _is_integer, "_partitions")
            case "offset":
                return _is_integer(value) and self._push_offset(candidate, value)
            case "timestamp":
                self._push_timestamp(candidate, value)
        return False

    def _push_set(
        self, candidate: Filter, value: Any, is_good: Callable[[Any], bool], target: str
    ) -> bool:
        if isinstance(candidate, EqualTo | EqualNullSafe) and is_good(value):
            values = {value}
        elif isinstance(candidate, In) and all(is_good(v) for v in value):
            values = set(value)
        else:
            return False
        allowed = getattr(self, target)
        setattr(self, target, values if allowed is None else allowed & values)
        return True

    def _push_offset(self, candidate: Filter, value: int) -> bool:
        if isinstance(candidate, EqualTo | EqualNullSafe):
            self._between(value, value + 1)
        elif isinstance(candidate, GreaterThan):
            self._between(value + 1, _INT64_MAX)
        elif isinstance(candidate, GreaterThanOrEqual):
            self._between(value, _INT64_MAX)
        elif isinstance(candidate, LessThan):
            self._between(0, value)
        elif isinstance(candidate, LessThanOrEqual):
            self._between(0, value + 1)
        else:
            return False
        return True

    def _between(self, start: int, end: int) -> None:
        self.start_offset = max(self.start_offset, start)
        self.end_offset = min(self.end_offset, end)

    def _push_timestamp(self, candidate: Filter, value: Any) -> None:
        if not isinstance(value, datetime):
            return
        if isinstance(candidate, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
            at = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            at_ms = int(at.timestamp() * 1000) - 1  # one ms earlier, because floats are rounded
            self.timestamp_ms = max(at_ms, self.timestamp_ms or 0, 0)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class _OptionalPushdown:
    """An implementation of `pushFilters` that Spark also accepts if filter pushdown is off.

    If spark.sql.python.filterPushdown.enabled is off (the default), Spark refuses any reader that overrides
    `pushFilters`. It detects an override by comparing the method's `__func__` with that of the base class. So this
    object has the `__func__` of the base class.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, filters: PushedFilters) -> None:
        self._filters = filters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._filters.push(filters)


class OdradekBatchReader(DataSourceReader):
    """The reader of one batch query. Spark pickles it to executors, so it holds only options, schema and filters."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters = PushedFilters()
        self.pushFilters: Any = _OptionalPushdown(self._filters)

    def partitions(self) -> list[InputPartition]:
        """Return the tasks of the query: one for each partition with records, or more if the options minPartitions or
        maxRecordsPerPartition require it.
        """
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
        """Yield the records of one task's range. Spark calls this on an executor."""
        # The import is in this method, because the module loads Arrow, which the driver does not need.
        from pyspark_odradek.record_rows import read_range

        return read_range(partition, self._options, self._schema)
