"""Triggers of a streaming query, compared with offsets that the test sets: partitions are deleted,
truncated or added, with and without failOnDataLoss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from odradek.partitions import TopicPartition
from pyspark_odradek.connection_options import parse_connection
from pyspark_odradek.data_source import OdradekDataSource
from pyspark_odradek.offsets import DataLoss, PartitionOffsets
from pyspark_odradek.partition_stream import RangePartition
from pyspark_odradek.process_link import close_links, link_to
from pyspark_odradek.stream_reader import OdradekStreamReader

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}


class Lookup:
    """Stands in for the cluster's offsets; `ends` may be changed between triggers."""

    def __init__(self, **ends: int) -> None:
        self.ends = {_name(name): end for name, end in ends.items()}
        self.begins: PartitionOffsets = {}
        self.resolved = 0

    def partitions(self) -> list[TopicPartition]:
        return sorted(self.ends)

    def latest(
        self,
        partitions: Iterable[TopicPartition],
        reached: Mapping[TopicPartition, int] | None = None,
    ) -> PartitionOffsets:
        return {name: self.ends[name] for name in partitions}

    def earliest(self, partitions: Iterable[TopicPartition]) -> PartitionOffsets:
        return {name: self.begins.get(name, 0) for name in partitions}

    def resolve(self, bound: object, *, is_start: bool) -> PartitionOffsets:
        self.resolved += 1
        return dict(self.ends)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        return dict.fromkeys(topics, b"id")


def _name(text: str) -> TopicPartition:
    topic, _, partition = text.partition("_")
    return TopicPartition(topic, int(partition))


def reader(lookup: Lookup, **options: str) -> OdradekStreamReader:
    source = OdradekDataSource(OPTIONS | options)
    made = source.streamReader(source.schema())
    assert isinstance(made, OdradekStreamReader)
    made._lookup_made = lookup  # type: ignore[assignment]
    return made


def ranges(made: OdradekStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
    plans = [p.plan for p in made.partitions(start, end) if isinstance(p, RangePartition)]
    return [(f"{p.name}", p.start_offset, p.end_offset) for p in plans]


def test_latest_is_asked_once_though_spark_asks_for_the_start_twice() -> None:
    lookup = Lookup(t_0=5)
    made = reader(lookup)
    assert made.initialOffset() == {"t": {"0": 5}}
    lookup.ends[_name("t_0")] = 9
    assert made.initialOffset() == {"t": {"0": 5}}
    assert lookup.resolved == 1


def test_the_limit_that_spark_plans_with_is_the_options() -> None:
    lookup = Lookup(t_0=5)
    assert isinstance(reader(lookup).getDefaultReadLimit(), ReadAllAvailable)
    most = reader(lookup, maxOffsetsPerTrigger="7").getDefaultReadLimit()
    assert isinstance(most, ReadMaxRows)
    assert most.max_rows == 7
    least = reader(lookup, minOffsetsPerTrigger="3").getDefaultReadLimit()
    assert isinstance(least, ReadMinRows)
    assert least.min_rows == 3


def test_available_now_ends_where_the_log_ended_when_it_was_first_asked() -> None:
    lookup = Lookup(t_0=10)
    made = reader(lookup, maxOffsetsPerTrigger="6", minOffsetsPerTrigger="5")
    made.prepareForTriggerAvailableNow()
    limit = made.getDefaultReadLimit()
    first = made.latestOffset({"t": {"0": 0}}, limit)
    lookup.ends[_name("t_0")] = 1_000
    second = made.latestOffset(first, limit)
    assert (first, second) == ({"t": {"0": 6}}, {"t": {"0": 10}})
    assert made.latestOffset(second, limit) == second


def test_a_partition_that_comes_is_read_from_its_beginning() -> None:
    lookup = Lookup(t_0=4)
    made = reader(lookup)
    lookup.ends[_name("t_1")] = 3
    end = made.latestOffset({"t": {"0": 4}}, ReadAllAvailable())
    assert end == {"t": {"0": 4, "1": 3}}
    assert ranges(made, {"t": {"0": 4}}, end) == [("t-1", 0, 3)]


@pytest.mark.parametrize(
    ("start", "end", "message", "left"),
    [
        ({"t": {"0": 1, "1": 1}}, {"t": {"0": 4}}, "t-1 have been deleted", [("t-0", 1, 4)]),
        ({"t": {"0": 9}}, {"t": {"0": 4}}, "offset was changed from 9 to 4", []),
        ({}, {"t": {"2": 8}}, "t-2 starts from 5 instead of 0", [("t-2", 5, 8)]),
    ],
)
def test_what_was_lost_fails_the_query_or_is_told(
    start: dict[str, Any],
    end: dict[str, Any],
    message: str,
    left: list[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    lookup = Lookup(t_0=4)
    lookup.begins[_name("t_2")] = 5
    with pytest.raises(DataLoss, match=message):
        reader(lookup).partitions(start, end)
    with caplog.at_level(logging.WARNING):
        assert ranges(reader(lookup, failOnDataLoss="false"), start, end) == left
    assert message in caplog.text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "spark-odradek-source"),
        ({"groupIdPrefix": "mine"}, "mine"),
        ({"groupIdPrefix": "mine", "kafka.group.id": "fixed"}, "fixed"),
    ],
)
def test_tasks_carry_what_executors_need(options: dict[str, str], expected: str) -> None:
    more = {"kafka.isolation.level": "read_committed", "rack": "b", "maxRecordsPerPartition": "2"}
    made = reader(Lookup(t_0=5), **more, **options)
    plans = [
        p.plan
        for p in made.partitions({"t": {"0": 0}}, {"t": {"0": 5}})
        if isinstance(p, RangePartition)
    ]
    assert [(p.start_offset, p.end_offset) for p in plans] == [(0, 1), (1, 3), (3, 5)]
    assert {(p.reader_name, p.read_committed, p.rack, p.topic_id) for p in plans} == {
        (expected, True, "b", b"id")
    }


def test_a_process_has_one_link_for_equal_options() -> None:
    try:
        one = link_to(parse_connection(OPTIONS))
        assert link_to(parse_connection(dict(OPTIONS))) is one
        other = parse_connection({"kafka.bootstrap.servers": "127.0.0.1:2"})
        assert link_to(other) is not one
    finally:
        close_links()
