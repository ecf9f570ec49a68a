"""Streaming reads: limits, restarts from the checkpoint, new partitions, lag, and lost data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from odradek.embedded import EmbeddedCluster
from pyspark_odradek import LagListener
from tests.e2e.spark.flight_facts import Flight
from tests.e2e.spark.topics import Output, Topics
from tests.integration.documentation.pages import blocks


@pytest.fixture
def stream(spark: SparkSession, cluster: EmbeddedCluster) -> Callable[..., DataFrame]:
    def read(**options: str) -> DataFrame:
        reader = spark.readStream.format("odradek").options(
            **{"kafka.bootstrap.servers": cluster.bootstrap, "startingOffsets": "earliest"},
        )
        return reader.options(**options).load()

    return read


def drain(frame: DataFrame, checkpoint: Path, sink: Callable[[list[Any], int], None]) -> Any:
    """Run the stream until it has read all present records, and return the progress of each batch."""

    def collect(batch: DataFrame, batch_id: int) -> None:
        sink(batch.select("partition", "offset", "value").collect(), batch_id)

    query = (
        frame.writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query.recentProgress


def test_the_readmes_program_is_a_stream_of_records(spark: SparkSession) -> None:
    (program,) = [block.text for block in blocks("README.md") if "spark.readStream" in block.text]
    frame = eval(program, {"spark": spark})
    assert frame.isStreaming
    assert {"key", "value", "topic", "partition", "offset", "timestamp"} <= set(frame.columns)


def test_available_now_reads_every_flight_once_in_bounded_batches(
    stream: Callable[..., DataFrame], filled: tuple[str, list[Flight]], tmp_path: Path
) -> None:
    name, flights = filled
    most = len(flights) * 9 // 20
    found: set[tuple[int, int]] = set()
    total = 0

    def sink(rows: list[Any], batch_id: int) -> None:
        nonlocal total
        total += len(rows)
        found.update((row.partition, row.offset) for row in rows)

    frame = stream(subscribe=name, maxOffsetsPerTrigger=str(most))
    progress = drain(frame, tmp_path / "checkpoint", sink)
    assert total == len(found) == len(flights)
    assert [p.numInputRows <= most for p in progress] == [True] * 3
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))
    last = json.loads(offsets[-1].read_text().splitlines()[-1])
    assert last.keys() == {name}
    assert sum(last[name].values()) == len(flights)


def test_a_restarted_query_goes_on_where_the_checkpoint_says_and_sees_new_partitions(
    stream: Callable[..., DataFrame], topics: Topics, tmp_path: Path
) -> None:
    name = topics.new(partitions=1)
    batches: list[list[bytes]] = []

    def sink(rows: list[Any], batch_id: int) -> None:
        batches.append(sorted(bytes(row.value) for row in rows))

    topics.send(name, [Output(b"a", partition=0), Output(b"b", partition=0)])
    drain(stream(subscribe=name), tmp_path / "c", sink)
    topics.add_partitions(name, 3)
    topics.send(name, [Output(b"c", partition=0), Output(b"d", partition=2)])
    drain(stream(subscribe=name), tmp_path / "c", sink)
    drain(stream(subscribe=name), tmp_path / "c", sink)
    assert [batch for batch in batches if batch] == [[b"a", b"b"], [b"c", b"d"]]


def test_a_running_query_reads_records_and_partitions_that_come_and_reports_its_lag(
    spark: SparkSession, stream: Callable[..., DataFrame], topics: Topics, tmp_path: Path
) -> None:
    name = topics.new(partitions=1)
    topics.send(name, [Output(b"%d" % i, partition=0) for i in range(10)])
    lags: list[dict[str, float]] = []
    listener = LagListener(lambda query, metrics: lags.append(metrics))
    spark.streams.addListener(listener)
    try:
        with counting(stream(subscribe=name, maxOffsetsPerTrigger="4"), tmp_path) as query:
            query.processAllAvailable()
            topics.add_partitions(name, 2)
            topics.send(name, [Output(b"new", partition=1)])
            _until(query, lambda: sum(_rows(query)) == 11)
            # Spark calls listeners on a thread of its own, after the progress is visible in the query.
            _until(query, lambda: len(lags) >= 4 and lags[-1]["maxOffsetsBehindLatest"] == 0)
    finally:
        spark.streams.removeListener(listener)
    assert max(lag["totalOffsetsBehindLatest"] for lag in lags) == 6


def test_a_running_query_reads_topics_that_come_and_match(
    stream: Callable[..., DataFrame], topics: Topics, tmp_path: Path
) -> None:
    name = topics.new(partitions=1)
    topics.send(name, [Output(b"0", partition=0)])
    with counting(stream(subscribePattern=f"{name}(-more)?"), tmp_path) as query:
        query.processAllAvailable()
        topics.create(f"{name}-more", partitions=1)
        topics.create(f"{name}-other", partitions=1)
        for come in (f"{name}-more", f"{name}-other"):
            topics.send(come, [Output(b"%d" % i, partition=0) for i in range(5)])
        _until(query, lambda: sum(_rows(query)) == 6)
        last = json.loads(query.recentProgress[-1].sources[0].endOffset)
        assert last == {name: {"0": 1}, f"{name}-more": {"0": 5}}


def test_min_offsets_hold_a_trigger_back_until_the_delay_is_over(
    stream: Callable[..., DataFrame], topics: Topics, tmp_path: Path
) -> None:
    name = topics.new(partitions=1)
    topics.send(name, [Output(b"0", partition=0)])
    limits = {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "4s"}
    with counting(stream(subscribe=name, **limits), tmp_path) as query:
        query.processAllAvailable()  # the first trigger waits for nothing
        assert _rows(query) == [1]
        topics.send(name, [Output(b"%d" % i, partition=0) for i in range(5)])
        query.processAllAvailable()
        assert _rows(query) == [1, 5]
        topics.send(name, [Output(b"late", partition=0)])
        _until(query, lambda: _rows(query) == [1, 5, 1])
    begun = [
        datetime.fromisoformat(p.timestamp.replace("Z", "+00:00"))
        for p in query.recentProgress
        if p.numInputRows
    ]
    assert begun[2] - begun[1] > timedelta(seconds=3), (
        "the trigger did not wait for maxTriggerDelay"
    )


def test_aged_out_data_fails_the_query_or_is_passed_over(
    stream: Callable[..., DataFrame], topics: Topics, tmp_path: Path
) -> None:
    name = topics.new(partitions=1)
    found: list[bytes] = []

    def sink(rows: list[Any], batch_id: int) -> None:
        found.extend(bytes(row.value) for row in rows)

    topics.send(name, [Output(b"0", partition=0)])
    drain(stream(subscribe=name), tmp_path / "c", sink)
    topics.send(name, [Output(b"%d" % i, partition=0) for i in range(1, 10)])
    topics.delete_before(name, 0, 7)
    with pytest.raises(Exception, match="Some data may have been lost"):
        drain(stream(subscribe=name), tmp_path / "c", sink)
    drain(stream(subscribe=name, failOnDataLoss="false"), tmp_path / "c", sink)
    assert found == [b"0", b"7", b"8", b"9"]


def test_a_topic_deleted_while_the_query_runs_fails_it_or_is_passed_over(
    stream: Callable[..., DataFrame], topics: Topics, tmp_path: Path
) -> None:
    stays, goes = topics.new(partitions=1), topics.new(partitions=1)
    both = {"subscribe": f"{stays},{goes}"}
    for name in (stays, goes):
        topics.send(name, [Output(b"0", partition=0)])
    lenient = counting(stream(failOnDataLoss="false", **both), tmp_path / "lenient")
    strict = counting(stream(**both), tmp_path / "strict")
    with lenient as goes_on, strict as fails:
        goes_on.processAllAvailable()
        fails.processAllAvailable()
        topics.delete(goes)
        with pytest.raises(Exception, match=goes):
            fails.awaitTermination(60)
        topics.send(stays, [Output(b"1", partition=0)])
        _until(goes_on, lambda: sum(_rows(goes_on)) == 3)
        last = json.loads(goes_on.recentProgress[-1].sources[0].endOffset)
        assert last == {stays: {"0": 2}}


def test_ending_offsets_are_refused(stream: Callable[..., DataFrame], tmp_path: Path) -> None:
    with pytest.raises(Exception, match="ending offset not valid in streaming queries"):
        drain(stream(subscribe="t", endingOffsets="latest"), tmp_path, lambda rows, number: None)


def test_options_that_make_no_sense_are_told_at_load(stream: Callable[..., DataFrame]) -> None:
    with pytest.raises(Exception, match="One of the following options must be specified"):
        stream()


@contextmanager
def counting(frame: DataFrame, directory: Path) -> Iterator[StreamingQuery]:
    """Run a query that discards its rows, until the end of the `with` block."""
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        yield query
    finally:
        query.stop()


def _rows(query: StreamingQuery) -> list[int]:
    return [p.numInputRows for p in query.recentProgress if p.numInputRows]


def _until(query: StreamingQuery, condition: Callable[[], bool], *, timeout_s: int = 300) -> None:
    for _ in range(timeout_s * 5):
        if condition() or query.awaitTermination(0.2):
            break
    assert condition(), [p.json for p in query.recentProgress]
