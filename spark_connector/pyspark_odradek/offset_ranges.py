"""Splits what is to be read into tasks: one per partition, or more where options ask for it.

The arithmetic is that of Spark's KafkaOffsetRangeCalculator, so a job has the tasks it had with Kafka.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from odradek.partitions import TopicPartition


class OffsetRange(NamedTuple):
    """The offsets [start_offset, end_offset) of a partition."""

    name: TopicPartition
    start_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        """Offsets, an upper bound of records."""
        return self.end_offset - self.start_offset


def split_ranges(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[OffsetRange]:
    """Tasks for these ranges, in order; empty ranges have none.

    First no task is larger than `max_records_per_partition`, then large ones are split until there are
    about `min_partitions`.
    """
    wanted = [r for r in ranges if r.size > 0]
    if max_records_per_partition is not None:
        wanted = [
            part
            for r in wanted
            for part in _split(r, math.ceil(r.size / max_records_per_partition))
        ]
    if min_partitions is None or len(wanted) >= min_partitions:
        return wanted
    total = sum(r.size for r in wanted)
    whole = {r for r in wanted if _parts(r.size, total, min_partitions) == 1}
    split_total = total - sum(r.size for r in whole)
    split_parts = max(min_partitions - len(whole), 1)
    return [
        part
        for r in wanted
        for part in (_split(r, _parts(r.size, split_total, split_parts)) if r not in whole else [r])
    ]


def _parts(size: int, total: int, wanted: int) -> int:
    return max(math.floor(size / total * wanted + 0.5), 1)


def _split(r: OffsetRange, parts: int) -> list[OffsetRange]:
    made: list[OffsetRange] = []
    start, left = r.start_offset, r.size
    for part in range(parts):
        size = left // (parts - part)  # the last one takes what rounding left
        left -= size
        if size:
            made.append(OffsetRange(r.name, start, start + size))
        start += size
    return made
