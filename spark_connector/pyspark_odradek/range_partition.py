"""One task's range, as Spark carries it from the driver to an executor, and how it is read there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_odradek.offset_ranges import OffsetRange, split_ranges
from pyspark_odradek.partition_stream import FetchPlan, PartitionStream
from pyspark_odradek.process_link import link_to
from pyspark_odradek.source_options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, plan: FetchPlan) -> None:
        super().__init__(plan)
        self.plan = plan


def plan_tasks(
    ranges: Iterable[OffsetRange], topic_ids: Mapping[str, bytes], options: SourceOptions
) -> list[InputPartition]:
    """A task for each range, after minPartitions and maxRecordsPerPartition.

    One whose topic has no id in `topic_ids` reads by name.
    """
    parts = split_ranges(
        ranges,
        min_partitions=options.min_partitions,
        max_records_per_partition=options.max_records_per_partition,
    )
    return [
        RangePartition(
            FetchPlan(
                name=part.name,
                topic_id=topic_ids.get(part.name.topic, b""),
                start_offset=part.start_offset,
                end_offset=part.end_offset,
                read_committed=options.read_committed,
                rack=options.rack,
                fail_on_data_loss=options.fail_on_data_loss,
                poll_timeout_ms=options.poll_timeout_ms,
                reader_name=options.reader_name,
            )
        )
        for part in parts
    ]


def read_range(
    partition: InputPartition, options: SourceOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """On the executor: the range's records. Nothing when Spark plans a task for no range at all."""
    from pyspark_odradek.record_rows import RecordRows

    if not isinstance(partition, RangePartition):
        return
    plan = partition.plan
    stream = PartitionStream(link_to(options.connection), plan)
    try:
        yield from RecordRows(schema, plan.name, plan.end_offset).batches(iter(stream))
    finally:
        stream.close()
