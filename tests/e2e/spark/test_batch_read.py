"""Spark's batch reads return the same records as the SDK, offset by offset."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, TimestampType

from tests.e2e.spark.flight_facts import Flight
from tests.e2e.spark.topics import Output, Topics

Read = Callable[..., DataFrame]


def test_every_column_is_what_was_sent(read_batch: Read, topics: Topics) -> None:
    name = topics.new(partitions=2)
    topics.send(
        name,
        [
            Output(b"a", key=b"k", partition=0, timestamp_ms=1_600_000_000_123),
            Output(None, key=b"", partition=0, timestamp_ms=1_600_000_000_124),
            Output(b"", partition=1, timestamp_ms=0, headers=(("h", b"x"), ("h", None))),
        ],
    )
    frame = read_batch(subscribe=name, includeHeaders="true")
    assert [(f.name, type(f.dataType)) for f in frame.schema.fields[:7]] == [
        ("key", BinaryType),
        ("value", BinaryType),
        ("topic", StringType),
        ("partition", IntegerType),
        ("offset", LongType),
        ("timestamp", TimestampType),
        ("timestampType", IntegerType),
    ]
    assert frame.schema["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )
    rows = [
        (r.key, r.value, r.topic, r.partition, r.offset, r.ms, r.timestampType, r.headers)
        for r in frame.selectExpr("*", "unix_millis(timestamp) ms")
        .orderBy("partition", "offset")
        .collect()
    ]
    assert rows == [
        (b"k", b"a", name, 0, 0, 1_600_000_000_123, 0, []),
        (b"", None, name, 0, 1, 1_600_000_000_124, 0, []),
        (None, b"", name, 1, 0, 0, 0, [("h", b"x"), ("h", None)]),
    ]


def test_all_flights_are_read_once_and_tasks_split_partitions(
    read_batch: Read, filled: tuple[str, list[Flight]], topics: Topics
) -> None:
    name, flights = filled
    narrow = read_batch(
        schema="offset bigint, partition int, value binary", subscribe=name, minPartitions="9"
    )
    assert 8 <= narrow.rdd.getNumPartitions() <= 10
    capped = read_batch(subscribe=name, maxRecordsPerPartition=str(len(flights) // 7))
    assert 7 <= capped.rdd.getNumPartitions() <= 12
    found = {(row.partition, row.offset): bytes(row.value) for row in narrow.toLocalIterator()}
    direct = {(r.partition, r.offset): r.value for r in topics.read(name)}
    assert len(direct) == len(flights)
    assert found == direct


def test_filters_on_offset_partition_and_time_narrow_what_is_read(
    read_batch: Read, sample_topic: str, topics: Topics
) -> None:
    since = datetime(2013, 12, 30, tzinfo=UTC)
    frame = read_batch(
        schema="partition int, offset bigint, timestamp timestamp", subscribe=sample_topic
    )
    chosen = frame.where("partition = 1 and offset >= 1000 and offset < 1010")
    assert sorted(row.offset for row in chosen.collect()) == list(range(1000, 1010))
    assert chosen.rdd.getNumPartitions() == 1
    late = frame.where(frame.timestamp >= since)
    since_ms = int(since.timestamp() * 1000)
    expected = {
        (r.partition, r.offset) for r in topics.read(sample_topic) if r.timestamp_ms >= since_ms
    }
    assert {(row.partition, row.offset) for row in late.collect()} == expected
    assert expected


def test_start_and_end_by_offsets_and_by_time(read_batch: Read, topics: Topics) -> None:
    name = topics.new(partitions=2)
    topics.send(
        name,
        [Output(b"%d" % i, partition=i % 2, timestamp_ms=1_000 + i) for i in range(100)],
    )

    def values(**options: str) -> set[int]:
        return {int(row.value) for row in read_batch(subscribe=name, **options).collect()}

    assert values(
        startingOffsets=f'{{"{name}":{{"0":-2,"1":49}}}}',
        endingOffsets=f'{{"{name}":{{"0":2,"1":-1}}}}',
    ) == {0, 2, 99}
    assert values(startingTimestamp="1090", endingTimestamp="1095") == set(range(90, 95))
    assert values(
        startingOffsetsByTimestamp=f'{{"{name}":{{"0":1098,"1":9999}}}}',
        startingOffsetsByTimestampStrategy="latest",
    ) == {98}
    assert values(
        startingOffsetsByTimestamp=f'{{"{name}":{{"0":1090,"1":1000}}}}',
        endingOffsetsByTimestamp=f'{{"{name}":{{"0":9999,"1":1004}}}}',
    ) == {1, 3, 90, 92, 94, 96, 98}
    with pytest.raises(Exception, match=r"No offset matched from request of topic-partition"):
        values(startingTimestamp="9999")
    with pytest.raises(Exception, match="is greater than the resolved end offset"):
        values(startingTimestamp="1090", endingOffsets=f'{{"{name}":{{"0":2,"1":2}}}}')
    with pytest.raises(Exception, match="don't match what are assigned"):
        values(startingOffsets=f'{{"{name}":{{"0":0}}}}')


def test_assign_and_pattern_choose_partitions(read_batch: Read, topics: Topics) -> None:
    one, other = topics.new(partitions=2), topics.new(partitions=1)
    topics.send(one, [Output(b"%d" % i, partition=i % 2) for i in range(4)])
    topics.send(other, [Output(b"9", partition=0)])
    assigned = read_batch(assign=f'{{"{one}":[1]}}').collect()
    assert {row.value for row in assigned} == {b"1", b"3"}
    matching = read_batch(subscribePattern=f"{one}|{other}").collect()
    assert len(matching) == 5
    assert read_batch(subscribePattern="no-such-.*").collect() == []


def test_records_that_are_gone_fail_the_query_or_are_passed_over(
    read_batch: Read, topics: Topics
) -> None:
    name = topics.new(partitions=1)
    topics.send(name, [Output(b"%d" % i, partition=0) for i in range(10)])
    planned_before = read_batch(subscribe=name)
    assert planned_before.count() == 10
    topics.delete_before(name, 0, 6)
    with pytest.raises(Exception, match="Some data may have been lost"):
        planned_before.collect()
    left = read_batch(subscribe=name).collect()
    assert sorted(int(row.value) for row in left) == [6, 7, 8, 9]
    start = {"startingOffsets": f'{{"{name}":{{"0":2}}}}'}
    with pytest.raises(Exception, match="Some data may have been lost"):
        read_batch(subscribe=name, **start).collect()
    kept = read_batch(subscribe=name, failOnDataLoss="false", **start).collect()
    assert sorted(int(row.value) for row in kept) == [6, 7, 8, 9]


def test_a_wrong_option_or_schema_is_refused_in_kafkas_words(read_batch: Read) -> None:
    with pytest.raises(Exception, match="starting offset can't be latest for batch queries"):
        read_batch(subscribe="t", startingOffsets="latest").collect()
    with pytest.raises(Exception, match="Only one of the following options can be specified"):
        read_batch(subscribe="t", subscribePattern="t")  # `load` raises the error
    with pytest.raises(Exception, match="has no column 'colour'"):
        read_batch(schema="colour string", subscribe="t").collect()
    with pytest.raises(Exception, match="is binary, not string"):
        read_batch(schema="value string", subscribe="t").collect()
