"""How much of what is there a trigger takes: the maximum, the minimum and how long to wait for it.

Spark asks for an end offset at each trigger. With maxOffsetsPerTrigger the room is shared among
partitions in proportion to what each has waiting. With minOffsetsPerTrigger a trigger takes nothing
until as many offsets wait, or maxTriggerDelay has passed since the last that took something. Both as
Spark's KafkaMicroBatchStream does it. Spark's Python API has no field for the delay, and no way to give
both limits at once; the reader process lives as long as the query, so the state is kept here. Sans-IO.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from odradek.partitions import TopicPartition
from pyspark_odradek.offsets import PartitionOffsets


class Admission:
    """Decides the end of each trigger of one query."""

    def __init__(
        self, *, least: int | None, most: int | None, delay_ms_max: int, now_ms: int
    ) -> None:
        self._least = least
        self._most = most
        self._delay_ms_max = delay_ms_max
        self._last_trigger_ms = now_ms - delay_ms_max  # the first trigger waits for nothing

    def end(
        self,
        start: Mapping[TopicPartition, int],
        latest: Mapping[TopicPartition, int],
        *,
        now_ms: int,
        is_draining: bool = False,
    ) -> PartitionOffsets:
        """Where this trigger ends. `start` covers every partition of `latest`.

        `is_draining` (Trigger.AvailableNow): never wait for more, as none will come.
        """
        if self._least is not None and not is_draining:
            waiting = sum(end - start[name] for name, end in latest.items())
            is_due = now_ms - self._last_trigger_ms >= self._delay_ms_max
            if waiting < self._least and not is_due:
                return {name: start[name] for name in latest}
            self._last_trigger_ms = now_ms
        if self._most is None:
            return dict(latest)
        return share(self._most, start, latest)


def share(
    room: int, start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> PartitionOffsets:
    """Ends that take about `room` offsets, each partition its part, no partition with data nothing."""
    sizes = {name: end - start[name] for name, end in latest.items() if end > start[name]}
    total = sum(sizes.values())
    if total < 1:
        return dict(latest)
    ends: PartitionOffsets = {}
    for name, end in latest.items():
        size = sizes.get(name)
        if size is None:
            ends[name] = end
            continue
        part = room * (size / total)
        taken = math.ceil(part) if part < 1 else math.floor(part)
        ends[name] = min(end, start[name] + taken)
    return ends
