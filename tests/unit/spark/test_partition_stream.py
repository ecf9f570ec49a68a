"""A task's stream of one partition against a cluster in memory: exact ranges, leaders that move,
and deleted records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from odradek.client import Client
from odradek.cluster.cluster import connect
from odradek.partitions import TopicPartition
from odradek.testing import MemoryCluster
from odradek_protocol.kafka.error_codes import ErrorCode
from pyspark_odradek.offsets import DataLoss
from pyspark_odradek.partition_stream import FetchPlan, PartitionStream
from pyspark_odradek.process_link import ProcessLink
from pyspark_odradek.record_rows import RecordRows
from pyspark_odradek.source_options import source_schema

NAME = TopicPartition("t", 0)
BATCHES, A_BATCH = 20, 50
TOTAL = BATCHES * A_BATCH


@pytest.fixture
def memory(loop: asyncio.AbstractEventLoop) -> MemoryCluster:
    """Return a cluster of two brokers; one partition has TOTAL records in BATCHES batches."""

    async def fill() -> MemoryCluster:
        cluster = MemoryCluster(brokers=2)
        cluster.create_topic("t")
        async with cluster.client() as client:
            await _send(client)
        return cluster

    return asyncio.run_coroutine_threadsafe(fill(), loop).result(30)


@pytest.fixture
def link(loop: asyncio.AbstractEventLoop, memory: MemoryCluster) -> Iterator[ProcessLink]:
    async def dial() -> ProcessLink:
        cluster = connect(memory.bootstrap, transport=memory.transport())
        return ProcessLink(cluster, asyncio.get_running_loop())

    made = asyncio.run_coroutine_threadsafe(dial(), loop).result(30)
    yield made
    made.close()


async def _send(client: Client) -> None:
    async with client.producer(linger_ms=0) as producer:
        for batch in range(BATCHES):
            for i in range(A_BATCH):
                await producer.send("t", b"%d" % (batch * A_BATCH + i), partition=0)
            await producer.flush()


def read(
    link: ProcessLink,
    start: int = 0,
    end: int = TOTAL,
    *,
    meanwhile: Callable[[], None] = lambda: None,
    **changes: object,
) -> list[int]:
    told: dict[str, object] = {
        "name": NAME,
        "topic_id": b"",
        "start_offset": start,
        "end_offset": end,
        "read_committed": False,
        "rack": "",
        "fail_on_data_loss": True,
        "poll_timeout_ms": 20_000,
        "reader_name": "test",
    }
    plan = FetchPlan(**(told | changes))  # type: ignore[arg-type]
    stream = PartitionStream(link, plan)
    offsets: list[int] = []
    try:
        rows = RecordRows(source_schema(include_headers=False), NAME, end)
        for batch in rows.batches(iter(stream)):
            table = pa.Table.from_batches([batch]).to_pydict()
            assert [int(value) for value in table["value"]] == table["offset"]
            offsets += table["offset"]
            meanwhile()
    finally:
        stream.close()
    return offsets


def on_loop(link: ProcessLink, work: Callable[[], object]) -> None:
    async def call() -> None:
        work()

    link.run(call(), timeout_s=10)


@pytest.mark.parametrize(
    ("start", "end"), [(0, TOTAL), (7, 8), (49, 51), (50, 100), (125, TOTAL - 3), (10, 10)]
)
def test_exactly_the_offsets_of_the_range_are_read(link: ProcessLink, start: int, end: int) -> None:
    assert read(link, start, end) == list(range(start, end))


def test_a_range_goes_on_at_the_next_leader(link: ProcessLink, memory: MemoryCluster) -> None:
    on_loop(link, lambda: memory.fail_next("fetch", "t", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert read(link) == list(range(TOTAL))
    leader = memory.topics["t"].partitions[0].leader_id
    on_loop(link, lambda: memory.kill(leader))
    assert read(link) == list(range(TOTAL))


def test_what_is_gone_fails_the_task_or_is_passed_over(
    link: ProcessLink, memory: MemoryCluster
) -> None:
    on_loop(link, lambda: memory.topics["t"].partitions[0].log.delete_before(100))
    with pytest.raises(DataLoss, match=r"Could not read records in offset \[3, 100\)"):
        read(link, 3)
    assert read(link, 3, fail_on_data_loss=False) == list(range(100, TOTAL))
    assert read(link, 3, 60, fail_on_data_loss=False) == []


def test_no_progress_ends_in_an_error_that_names_the_place(
    link: ProcessLink, memory: MemoryCluster
) -> None:
    with pytest.raises((TimeoutError, DataLoss), match="t-0"):
        read(link, 0, TOTAL + 5, poll_timeout_ms=1_000)
