"""Topics are deleted while Spark plans a query: with failOnDataLoss the query fails, without it the query continues."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from odradek.cluster import cluster as cluster_module
from odradek.cluster.cluster import connect
from odradek.cluster.methods import LIST_OFFSETS, METADATA
from odradek.errors import UnknownTopic
from odradek.testing import MemoryCluster
from pyspark_odradek import topic_offsets
from pyspark_odradek.data_source import OdradekDataSource
from pyspark_odradek.offsets import DataLoss
from pyspark_odradek.partition_stream import RangePartition
from pyspark_odradek.process_link import ProcessLink
from pyspark_odradek.stream_reader import OdradekStreamReader

POLL_TIMEOUT_S = 20


@pytest.fixture
def memory() -> MemoryCluster:
    """Return a cluster with topics `goes` and `stays`, each of one partition."""
    made = MemoryCluster(brokers=1)
    made.create_topic("goes")
    made.create_topic("stays")
    return made


@pytest.fixture
def link(
    loop: asyncio.AbstractEventLoop, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProcessLink]:
    async def dial() -> ProcessLink:
        cluster = connect(memory.bootstrap, transport=memory.transport())
        return ProcessLink(cluster, asyncio.get_running_loop())

    made = asyncio.run_coroutine_threadsafe(dial(), loop).result(30)
    monkeypatch.setattr(topic_offsets, "link_to", lambda connection: made)
    monkeypatch.setattr(cluster_module, "UNKNOWN_TOPIC_S_MAX", 0.2)
    yield made
    made.close()


def reader(**options: str) -> OdradekStreamReader:
    told = {
        "kafka.bootstrap.servers": "memory:1",
        "kafkaConsumer.pollTimeoutMs": str(POLL_TIMEOUT_S * 1000),
    }
    source = OdradekDataSource(told | options)
    made = source.streamReader(source.schema())
    assert isinstance(made, OdradekStreamReader)
    return made


def delete_when_offsets_are_asked(memory: MemoryCluster, link: ProcessLink) -> None:
    """Let the topic `goes` be deleted after it was listed, and before its leader responds."""
    call = link.cluster.transport.call

    async def deleting(endpoint: str, method: Any, *rest: Any, **named: Any) -> Any:
        if method is LIST_OFFSETS and "goes" in memory.topics:
            memory.delete_topic("goes")
        return await call(endpoint, method, *rest, **named)

    link.cluster.transport.call = deleting  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "subscription", [{"subscribe": "goes,stays"}, {"assign": '{"goes":[0],"stays":[0]}'}]
)
def test_a_topic_deleted_in_a_trigger_is_left_out_of_it(
    memory: MemoryCluster, link: ProcessLink, subscription: dict[str, str]
) -> None:
    made = reader(failOnDataLoss="false", **subscription)
    start = {"goes": {"0": 0}, "stays": {"0": 0}}
    assert made.latestOffset(start, ReadAllAvailable()) == start
    delete_when_offsets_are_asked(memory, link)
    assert made.latestOffset(start, ReadAllAvailable()) == {"stays": {"0": 0}}


def test_topics_that_are_left_out_are_not_compared_with_the_topics_of_the_cluster(
    memory: MemoryCluster, link: ProcessLink
) -> None:
    """A search for similar topics would request the metadata of all topics at each trigger, for an unused result."""
    call, requests = link.cluster.transport.call, []

    async def recording(endpoint: str, method: Any, request: Any, **named: Any) -> Any:
        if method is METADATA:
            requests.append((tuple(request.topics), request.all_topics))
        return await call(endpoint, method, request, **named)

    link.cluster.transport.call = recording  # type: ignore[method-assign]
    link.cluster.unknown_topic_s_max = 0.1
    made = reader(subscribe="stay,stays", failOnDataLoss="false")
    for _ in range(2):
        assert made.latestOffset({"stays": {"0": 0}}, ReadAllAvailable()) == {"stays": {"0": 0}}
    assert (("stay",), False) in requests
    assert not [topics for topics, is_of_all in requests if is_of_all]
    # A query with failOnDataLoss=true fails with an error that names similar topics, although both queries share the
    # connection.
    with pytest.raises(UnknownTopic, match="topic 'stay' does not exist; did you mean 'stays'"):
        reader(subscribe="stay,stays").initialOffset()


def test_a_topic_deleted_in_a_trigger_fails_it_at_once(
    memory: MemoryCluster, link: ProcessLink
) -> None:
    made = reader(subscribe="goes,stays")
    start = made.initialOffset()
    delete_when_offsets_are_asked(memory, link)
    begun_s = time.monotonic()
    with pytest.raises(UnknownTopic, match="goes"):
        made.latestOffset(start, ReadAllAvailable())
    assert time.monotonic() - begun_s < POLL_TIMEOUT_S / 2


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_topic_made_anew_is_no_part_of_what_was_read_of_the_old_one(
    memory: MemoryCluster, link: ProcessLink, is_strict: bool
) -> None:
    made = reader(subscribe="goes,stays", failOnDataLoss=str(is_strict).lower())
    start = {"goes": {"0": 0}, "stays": {"0": 0}}
    link.run(_fill(memory, 5), timeout_s=10)
    end = made.latestOffset(start, ReadAllAvailable())
    assert end == {"goes": {"0": 5}, "stays": {"0": 0}}
    link.run(_make_anew(memory, link, 9), timeout_s=10)
    planned = [
        task.plan for task in made.partitions(start, end) if isinstance(task, RangePartition)
    ]
    assert planned[0].topic_id != memory.topics["goes"].topic_id, (
        "of the topic that it was planned for"
    )
    anew = made.latestOffset(end, ReadAllAvailable())
    assert anew == {"stays": {"0": 0}}
    if is_strict:
        with pytest.raises(DataLoss, match="goes-0 have been deleted"):
            made.partitions(end, anew)
        return
    assert made.partitions(end, anew) == []
    again = made.latestOffset(anew, ReadAllAvailable())
    assert again == {"goes": {"0": 9}, "stays": {"0": 0}}
    (task,) = made.partitions(anew, again)
    assert isinstance(task, RangePartition)
    assert (task.plan.start_offset, task.plan.end_offset) == (0, 9)
    assert task.plan.topic_id == memory.topics["goes"].topic_id


def test_a_new_topic_deleted_before_it_was_read_is_no_part_of_the_trigger(
    memory: MemoryCluster, link: ProcessLink
) -> None:
    made = reader(subscribePattern="goes|stays", failOnDataLoss="false", minOffsetsPerTrigger="1")
    asked: list[object] = []
    earliest = made._lookup.earliest

    def deleting(partitions: Any) -> Any:
        asked.append(link.run(_delete(memory), timeout_s=10))
        return earliest(partitions)

    made._lookup.earliest = deleting  # type: ignore[method-assign]
    limit = made.getDefaultReadLimit()
    assert made.latestOffset({"stays": {"0": 0}}, limit) == {"stays": {"0": 0}}
    assert asked


def test_a_batch_planned_before_a_restart_is_read_without_the_topic_that_is_gone(
    memory: MemoryCluster, link: ProcessLink, caplog: pytest.LogCaptureFixture
) -> None:
    link.run(_delete(memory), timeout_s=10)
    start, end = {"stays": {"0": 0}}, {"stays": {"0": 4}, "goes": {"0": 7}}
    with pytest.raises(UnknownTopic, match="goes"):
        reader(subscribe="goes,stays").partitions(start, end)
    with caplog.at_level(logging.WARNING):
        tasks = reader(subscribe="goes,stays", failOnDataLoss="false").partitions(start, end)
    plans = [task.plan for task in tasks if isinstance(task, RangePartition)]
    assert [(str(p.name), p.start_offset, p.end_offset) for p in plans] == [("stays-0", 0, 4)]
    assert "Cannot find earliest offsets of goes-0" in caplog.text


async def _delete(memory: MemoryCluster) -> None:
    memory.delete_topic("goes")


async def _fill(memory: MemoryCluster, count: int) -> None:
    async with memory.client() as client, client.producer() as producer:
        for _ in range(count):
            await producer.send_and_wait("goes", b"v", partition=0)


async def _make_anew(memory: MemoryCluster, link: ProcessLink, count: int) -> None:
    """Delete the topic, and create and fill one with the same name; return when the link knows the
    new topic.
    """
    memory.delete_topic("goes")
    memory.create_topic("goes")
    await _fill(memory, count)
    known, cache = asyncio.Event(), link.cluster.cache

    def look(_: object = None) -> None:
        topic = cache.topic("goes")
        if topic is not None and topic.topic_id == memory.topics["goes"].topic_id:
            known.set()

    link.cluster.subscribe(look)
    look()
    async with asyncio.timeout(10):
        await known.wait()
