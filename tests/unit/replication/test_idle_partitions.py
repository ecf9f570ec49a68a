"""A broker has thousands of partitions that do nothing, so each of them must be small."""

from __future__ import annotations

import tracemalloc

import pytest

from odradek_protocol.identity import BrokerId
from tests.unit.log.material import memory_broker
from tests.unit.replication.memory_table import CONFIG, OTHER, OWN, table_of

COUNT = 500
OURS = (tracemalloc.Filter(inclusive=True, filename_pattern="*/odradek_broker/*"),)


def allocated_bytes() -> int:
    snapshot = tracemalloc.take_snapshot().filter_traces(OURS)
    return sum(trace.size for trace in snapshot.traces)


@pytest.mark.parametrize(("leader", "bytes_max"), [(OTHER, 4_500), (OWN, 6_000)])
async def test_a_partition_that_does_nothing_takes_a_few_kilobytes(
    leader: BrokerId, bytes_max: int
) -> None:
    tracemalloc.start()
    try:
        before = allocated_bytes()
        async with table_of(memory_broker(CONFIG), COUNT, leader=leader) as (table, _):
            assert len(table.by_id) == COUNT
            each_bytes = (allocated_bytes() - before) / COUNT
    finally:
        tracemalloc.stop()
    assert 1_000 < each_bytes < bytes_max
