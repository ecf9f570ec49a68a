"""The reader of `spark.readStream`. At each trigger the driver determines the offsets up to which tasks read; Spark
stores these offsets in the checkpoint.

One instance of the reader exists on the driver as long as the query runs. Spark makes another instance for each plan
and pickles it to executors. So an instance has no connections (these belong to the process, see `process_link`), and
its state is created at first use.

`Admission` determines how many of the available offsets a trigger reads, as Spark's KafkaMicroBatchStream does:

- With maxOffsetsPerTrigger, this number of offsets is divided among the partitions in proportion to the offsets that
  are available in each.
- With minOffsetsPerTrigger, a trigger reads nothing until this number of offsets is available, or until maxTriggerDelay
  has passed since the last trigger that was not delayed in this way.

Spark's Python API cannot express the delay, and cannot pass both limits at once. So the reader applies the limits
itself. It can measure the delay, because its process runs as long as the query.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from odradek.partitions import TopicPartition
from pyspark_odradek.offsets import (
    OffsetRange,
    OffsetsJson,
    PartitionOffsets,
    from_json,
    report_data_loss,
    to_json,
)
from pyspark_odradek.partition_stream import plan_tasks
from pyspark_odradek.source_options import SourceOptions
from pyspark_odradek.topic_offsets import TopicOffsets

if TYPE_CHECKING:
    import pyarrow as pa


class Admission:
    """Determines the offsets at which each trigger of one query ends, by the limits of offsets per trigger."""

    def __init__(
        self, *, least: int | None, most: int | None, delay_ms_max: int, now_ms: int
    ) -> None:
        self._least = least
        self._most = most
        self._delay_ms_max = delay_ms_max
        self._last_trigger_ms = now_ms - delay_ms_max  # the first trigger does not wait

    def end(
        self,
        start: Mapping[TopicPartition, int],
        latest: Mapping[TopicPartition, int],
        *,
        now_ms: int,
        is_draining: bool = False,
    ) -> PartitionOffsets:
        """Return the offsets at which this trigger ends. `start` must have every partition of `latest`.

        With `is_draining` (Trigger.AvailableNow), a trigger does not wait for minOffsetsPerTrigger.
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
    offsets_max: int, start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> PartitionOffsets:
    """Return end offsets such that about `offsets_max` offsets are read, divided among the partitions in proportion to
    the offsets that are available in each. Each partition with records gets at least one.
    """
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
        part = offsets_max * (size / total)
        taken = math.ceil(part) if part < 1 else math.floor(part)
        ends[name] = min(end, start[name] + taken)
    return ends


class OdradekStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query. Offsets have the form `{"topic": {"0": 23}}`, as in Spark's Kafka source. They
    are exclusive: 23 is the offset of the next record to read.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._lookup_made: TopicOffsets | None = None
        self._admission_made: Admission | None = None
        self._initial: OffsetsJson | None = None
        self._latest: PartitionOffsets | None = None
        self._topic_ids: dict[str, bytes] = {}
        self._is_draining = False
        self._drain_ends: PartitionOffsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the offsets at which a new query starts. Spark calls this twice, so the first result is kept: `latest`
        must mean the same offsets in both calls.
        """
        if self._initial is None:
            starts = self._lookup.resolve(self._options.starting, is_start=True)
            self._initial = to_json(starts)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark shows in the plan.

        `latestOffset` uses the options instead, because a read limit of Spark cannot express both limits.
        """
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Prepare for Trigger.AvailableNow: the query ends at the offsets that the next `latestOffset` finds."""
        self._is_draining = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offsets at which this trigger ends."""
        begun = from_json(start)
        self._latest = self._ends(begun)
        new = [name for name in self._latest if name not in begun]
        if new:
            begun |= self._lookup.earliest(new)
            self._latest = {name: end for name, end in self._latest.items() if name in begun}
        if isinstance(limit, ReadAllAvailable):
            return dict(to_json(self._latest))
        ends = self._admission.end(
            begun, self._latest, now_ms=_now_ms(), is_draining=self._is_draining
        )
        return dict(to_json(ends))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the latest offsets in the cluster, which Spark shows in the query's progress."""
        return None if not self._latest else dict(to_json(self._latest))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a trigger.

        A partition is reported as data loss if it was deleted, if its end offset is below the start offset, or if it is
        new and its first records are already deleted.
        """
        starts, ends = from_json(start), from_json(end)
        is_fatal = self._options.fail_on_data_loss
        deleted = sorted(starts.keys() - ends.keys())
        if deleted:
            names = ", ".join(str(name) for name in deleted)
            report_data_loss(f"Partitions {names} have been deleted.", is_fatal=is_fatal)
        new = sorted(ends.keys() - starts.keys())
        firsts = self._lookup.earliest(new)
        if len(firsts) < len(new):
            names = ", ".join(str(name) for name in new if name not in firsts)
            report_data_loss(
                f"Cannot find earliest offsets of {names}. Some data may have been missed.",
                is_fatal=is_fatal,
            )
        for name, first in firsts.items():
            if first > 0:
                report_data_loss(
                    f"Added partition {name} starts from {first} instead of 0.", is_fatal=is_fatal
                )
            starts[name] = first
        ranges = []
        for name, until in ends.items():
            if name not in starts:
                continue
            if until < starts[name]:
                report_data_loss(
                    f"Partition {name} offset was changed from {starts[name]} to {until}. This could"
                    " either be a user error that the start offset is set too high and this is the"
                    " first batch, or the kafka topic-partition is broken, and some data may have"
                    " been missed.",
                    is_fatal=is_fatal,
                )
            ranges.append(OffsetRange(name, starts[name], until))
        topic_ids = self._lookup.topic_ids({r.name.topic for r in ranges})
        return plan_tasks(ranges, topic_ids | self._topic_ids, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because Spark stores the position in its checkpoint, and the cluster does not store it."""

    def stop(self) -> None:
        """Do nothing, because connections belong to the process and are closed when it ends."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task's range. Spark calls this on an executor."""
        # The import is in this method, because the module loads Arrow, which the driver does not need.
        from pyspark_odradek.record_rows import read_range

        return read_range(partition, self._options, self._schema)

    def _ends(self, begun: dict[TopicPartition, int]) -> PartitionOffsets:
        if self._drain_ends is not None:
            return self._drain_ends
        ends = self._lookup.latest(self._lookup.partitions(), reached=begun)
        recreated = self._recreated({name.topic for name in ends})
        left_out = {name.topic for name in begun} & recreated
        ends = {name: end for name, end in ends.items() if name.topic not in left_out}
        if self._is_draining:
            self._drain_ends = ends
        return ends

    def _recreated(self, topics: set[str]) -> set[str]:
        """Return the topics that were deleted and created again since the last trigger.

        Offsets of the old topic have no meaning in the new one. So such a topic is left out of one trigger as if it had
        been deleted. In the next trigger its partitions count as new.
        """
        before = self._topic_ids
        now = self._lookup.topic_ids(topics)
        self._topic_ids = before | now
        return {topic for topic, topic_id in now.items() if before.get(topic, topic_id) != topic_id}

    @property
    def _lookup(self) -> TopicOffsets:
        if self._lookup_made is None:
            self._lookup_made = TopicOffsets(self._options)
        return self._lookup_made

    @property
    def _admission(self) -> Admission:
        if self._admission_made is None:
            self._admission_made = Admission(
                least=self._options.min_offsets_per_trigger,
                most=self._options.max_offsets_per_trigger,
                delay_ms_max=self._options.max_trigger_delay_ms,
                now_ms=_now_ms(),
            )
        return self._admission_made


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
