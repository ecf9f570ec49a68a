"""The decisions of Spark's driver, without a JVM or a cluster: tasks, ends of triggers, filters,
and offsets as JSON.
"""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringContains,
)

from odradek.partitions import TopicPartition
from pyspark_odradek.batch_reader import PushedFilters
from pyspark_odradek.data_source import OdradekDataSource
from pyspark_odradek.lag_listener import lag
from pyspark_odradek.offsets import (
    OffsetRange,
    from_json,
    parse_offsets,
    parse_partitions,
    split_ranges,
    to_json,
)
from pyspark_odradek.stream_reader import Admission, share

A, B, C = (TopicPartition("t", i) for i in range(3))
sizes = st.lists(st.integers(0, 10_000), min_size=1, max_size=20)


def ranges_of(counts: list[int]) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition("t", i), 7, 7 + n) for i, n in enumerate(counts)]


@given(sizes, st.integers(1, 60) | st.none(), st.integers(1, 5_000) | st.none())
def test_tasks_cover_each_range_once_in_order(
    counts: list[int], least: int | None, most: int | None
) -> None:
    wanted = ranges_of(counts)
    tasks = split_ranges(wanted, min_partitions=least, max_records_per_partition=most)
    for whole in wanted:
        position = whole.start_offset
        for part in (task for task in tasks if task.name == whole.name):
            assert part.start_offset == position
            assert part.size > 0
            assert most is None or part.size <= most
            position = part.end_offset
        assert position == whole.end_offset


def test_min_partitions_split_as_kafkas_calculator_does() -> None:
    tasks = split_ranges(ranges_of([100, 5]), min_partitions=4)
    assert [task.size for task in tasks] == [33, 33, 34, 5]
    assert [task.size for task in split_ranges(ranges_of([5, 5]), min_partitions=2)] == [5, 5]
    halves = split_ranges(ranges_of([10]), max_records_per_partition=4)
    assert [task.size for task in halves] == [3, 3, 4]


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 100_000)), min_size=1), st.integers(1)
)
def test_a_share_never_passes_the_end_and_starves_nobody(
    spans: list[tuple[int, int]], room: int
) -> None:
    start = {TopicPartition("t", i): begin for i, (begin, _) in enumerate(spans)}
    latest = {TopicPartition("t", i): begin + n for i, (begin, n) in enumerate(spans)}
    ends = share(room, start, latest)
    for name, end in ends.items():
        assert start[name] <= end <= latest[name]
        assert end > start[name] or latest[name] == start[name]
    taken = sum(end - start[name] for name, end in ends.items())
    assert taken <= room + len(spans)


def test_room_is_shared_in_proportion() -> None:
    ends = share(100, {A: 0, B: 10, C: 5}, {A: 900, B: 110, C: 5})
    assert ends == {A: 90, B: 20, C: 5}


def test_a_trigger_waits_for_enough_or_for_the_delay() -> None:
    admission = Admission(least=10, most=None, delay_ms_max=1000, now_ms=0)
    assert admission.end({A: 0}, {A: 1}, now_ms=0) == {A: 1}, "the first waits for nothing"
    assert admission.end({A: 1}, {A: 10}, now_ms=500) == {A: 1}
    assert admission.end({A: 1}, {A: 11}, now_ms=600) == {A: 11}
    assert admission.end({A: 11}, {A: 12}, now_ms=1599) == {A: 11}
    assert admission.end({A: 11}, {A: 12}, now_ms=1600) == {A: 12}
    assert admission.end({A: 12}, {A: 13}, now_ms=1601, is_draining=True) == {A: 13}


def test_both_limits_hold_at_once() -> None:
    admission = Admission(least=10, most=20, delay_ms_max=1000, now_ms=0)
    admission.end({A: 0}, {A: 0}, now_ms=0)
    assert admission.end({A: 0}, {A: 9}, now_ms=1) == {A: 0}
    assert admission.end({A: 0}, {A: 500}, now_ms=2) == {A: 20}


def test_offsets_read_and_write_kafkas_json() -> None:
    text = '{"b":{"0":-2},"a":{"1":23,"0":7}}'
    offsets = parse_offsets(text)
    assert offsets == {("a", 0): 7, ("a", 1): 23, ("b", 0): -2}
    assert json.dumps(to_json(offsets)) == '{"a": {"0": 7, "1": 23}, "b": {"0": -2}}'
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets
    assert parse_partitions('{"a":[0,1]}') == [("a", 0), ("a", 1)]


def test_filters_narrow_ranges_and_leave_the_rest_to_spark() -> None:
    pushed = PushedFilters()
    at = datetime(2013, 1, 1, tzinfo=UTC)
    filters: list[Filter] = [
        EqualTo(("topic",), "t"),
        In(("partition",), (0, 2)),
        GreaterThan(("offset",), 9),
        LessThanOrEqual(("offset",), 19),
        IsNotNull(("offset",)),
        GreaterThanOrEqual(("timestamp",), at),
        LessThan(("timestamp",), at),
        StringContains(("topic",), "x"),
        EqualTo(("value", "nested"), 1),
    ]
    assert list(pushed.push(filters)) == filters[5:]
    assert pushed.narrow(ranges_of([100, 100, 5])) == [
        OffsetRange(A, 10, 20),
        OffsetRange(C, 10, 12),
    ]
    at_ms = int(at.timestamp() * 1000)
    assert pushed.timestamp_ms is not None
    assert at_ms - 1 <= pushed.timestamp_ms <= at_ms


def test_readers_may_be_pickled_and_work_where_pushdown_is_off() -> None:
    source = OdradekDataSource({"kafka.bootstrap.servers": "a:1", "subscribe": "t"})
    for made in (
        source.reader(source.schema()),
        source.streamReader(source.schema()),
    ):
        assert type(pickle.loads(pickle.dumps(made))) is type(made)
    reader = source.reader(source.schema())
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    assert list(reader.pushFilters([EqualTo(("partition",), 1)])) == []


def test_lag_is_the_distance_to_the_latest_offsets() -> None:
    end, latest = '{"t":{"0":5,"1":9}}', '{"t":{"0":8,"1":9,"2":4}}'
    assert lag(end, latest) == {
        "minOffsetsBehindLatest": 0,
        "maxOffsetsBehindLatest": 4,
        "avgOffsetsBehindLatest": 7 / 3,
        "totalOffsetsBehindLatest": 7,
    }
    assert lag("0", "1") == {}
    assert lag(None, None) == {}
