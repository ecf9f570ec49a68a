"""Filters that narrow what is read in batch: topic, partition, offset, and a lower bound of time.

Filters on topic, partition and offset are carried out whole by cutting ranges. One on the timestamp is not:
records need not be in the order of their timestamps. But nothing before the first record at or after
a time is that late, so a lower bound moves the start, and Spark still looks at each record. Sans-IO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from odradek.partitions import TopicPartition
from pyspark_odradek.offset_ranges import OffsetRange

_NEVER_NULL: Final = frozenset(["topic", "partition", "offset", "timestamp", "timestampType"])
_INT64_MAX: Final = (1 << 63) - 1


@dataclass(slots=True)
class PushedFilters:
    """What filters say of the records wanted."""

    start_offset: int = 0
    end_offset: int = _INT64_MAX
    timestamp_ms: int | None = None
    """No record before this time is wanted; None: no such filter."""
    _topics: set[str] | None = None
    _partitions: set[int] | None = None
    _taken: list[Filter] = field(default_factory=list)

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take over what can be; the filters that Spark must still carry out."""
        return [one for one in filters if not self._push_one(one)]

    def is_wanted(self, name: TopicPartition) -> bool:
        """Whether any record of the partition can be."""
        return (self._topics is None or name.topic in self._topics) and (
            self._partitions is None or name.partition in self._partitions
        )

    def narrow(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """The part of each range that can match."""
        return [
            OffsetRange(
                r.name, max(r.start_offset, self.start_offset), min(r.end_offset, self.end_offset)
            )
            for r in ranges
            if self.is_wanted(r.name)
        ]

    def _push_one(self, one: Filter) -> bool:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        column = attribute[0] if len(attribute) == 1 else ""
        if isinstance(one, IsNotNull):
            return column in _NEVER_NULL
        value: Any = getattr(one, "value", None)
        match column:
            case "topic":
                return self._push_set(one, value, lambda v: isinstance(v, str), "_topics")
            case "partition":
                return self._push_set(one, value, _is_integer, "_partitions")
            case "offset":
                return _is_integer(value) and self._push_offset(one, value)
            case "timestamp":
                self._push_timestamp(one, value)
        return False

    def _push_set(
        self, one: Filter, value: Any, is_good: Callable[[Any], bool], target: str
    ) -> bool:
        if isinstance(one, EqualTo | EqualNullSafe) and is_good(value):
            wanted = {value}
        elif isinstance(one, In) and all(is_good(v) for v in value):
            wanted = set(value)
        else:
            return False
        known = getattr(self, target)
        setattr(self, target, wanted if known is None else known & wanted)
        return True

    def _push_offset(self, one: Filter, value: int) -> bool:
        if isinstance(one, EqualTo | EqualNullSafe):
            self._between(value, value + 1)
        elif isinstance(one, GreaterThan):
            self._between(value + 1, _INT64_MAX)
        elif isinstance(one, GreaterThanOrEqual):
            self._between(value, _INT64_MAX)
        elif isinstance(one, LessThan):
            self._between(0, value)
        elif isinstance(one, LessThanOrEqual):
            self._between(0, value + 1)
        else:
            return False
        return True

    def _between(self, start: int, end: int) -> None:
        self.start_offset = max(self.start_offset, start)
        self.end_offset = min(self.end_offset, end)

    def _push_timestamp(self, one: Filter, value: Any) -> None:
        if not isinstance(value, datetime):
            return
        if isinstance(one, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
            at = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            at_ms = int(at.timestamp() * 1000) - 1  # a ms early: floats round
            self.timestamp_ms = max(at_ms, self.timestamp_ms or 0, 0)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
