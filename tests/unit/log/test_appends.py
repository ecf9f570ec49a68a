"""Appends to a log: where segments end, what an append returns, and which batches it refuses."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.segments.segment import Segment
from odradek_protocol.records.errors import CorruptBatch
from tests.unit.log.material import Broker, batch, memory_broker


def bases(broker: Broker) -> list[int]:
    return [int(path.stem) for path in broker.files(".log")]


def test_a_segment_is_closed_before_it_would_grow_past_its_size() -> None:
    size_bytes = len(batch(10, count=2))  # the longest: records say their offsets
    broker = memory_broker(LogConfig(segment_bytes=3 * size_bytes))
    for _ in range(7):
        broker.append(2)
    assert bases(broker) == [0, 6, 12]


def test_a_batch_larger_than_a_segment_gets_one_of_its_own() -> None:
    broker = memory_broker(LogConfig(segment_bytes=200))
    broker.append(1, value_bytes=1000)
    broker.append(1)
    broker.append(1, value_bytes=1000)
    assert bases(broker) == [0, 1, 2]


def test_a_segment_is_closed_by_the_time_of_its_records() -> None:
    broker = memory_broker(LogConfig(segment_ms=1000))
    for timestamp_ms in (5000, 5500, 6000, 6001, 5200, 7001, 7002, 9000):
        broker.append(1, timestamp_ms=timestamp_ms)
    assert bases(broker) == [0, 3, 6, 7]


@given(
    st.lists(st.lists(st.integers(-1, 4000), min_size=1, max_size=6), min_size=1, max_size=12),
    st.sampled_from([1, 300, 1000, 5000]),
    st.sampled_from([36, 60, 1 << 20]),
    st.sampled_from([0, 500, 10_000]),
)
@settings(max_examples=200, deadline=None)
def test_the_quick_check_of_an_append_closes_segments_where_the_check_of_each_batch_does(
    appends: list[list[int]], segment_bytes: int, segment_index_bytes: int, segment_ms: int
) -> None:
    config = LogConfig(
        segment_bytes=segment_bytes,
        segment_index_bytes=segment_index_bytes,
        segment_ms=segment_ms,
        index_interval_bytes=100,
    )
    quick, slow = memory_broker(config), memory_broker(config)
    for timestamps_ms in appends:
        end = quick.log.log_end_offset
        data = b"".join(
            batch(end + number, timestamp_ms=timestamp_ms)
            for number, timestamp_ms in enumerate(timestamps_ms)
        )
        quick.log.append(data, now_ms=0)
        with patch.object(Segment, "has_room_for_all", return_value=False):
            slow.log.append(data, now_ms=0)
    assert bases(quick) == bases(slow)
    assert quick.read_all() == slow.read_all()


def test_a_segment_is_closed_when_its_index_is_full() -> None:
    config = LogConfig(segment_index_bytes=40, index_interval_bytes=0)
    broker = memory_broker(config)
    for number in range(12):
        broker.append(1, timestamp_ms=1000 + number)
    assert len(bases(broker)) > 2
    broker.sync(full=True)
    sizes = [broker.storage.size_bytes(path) for path in broker.files("index")]
    assert max(sizes) <= 40


def test_relative_offsets_stay_within_32_bits() -> None:
    broker = memory_broker(LogConfig())
    broker.append(1)
    broker.log.append(batch((1 << 31) - 1), now_ms=0)
    broker.log.append(batch(1 << 31), now_ms=0)
    assert bases(broker) == [0, 1 << 31]
    broker.kill_and_start()
    assert broker.log.log_end_offset == (1 << 31) + 1


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 200)), min_size=1, max_size=30),
    at_once=st.integers(2, 7),
    times=st.lists(st.integers(0, 3000), min_size=30, max_size=30),
)
def test_leader_and_follower_close_segments_at_the_same_places(
    sizes: list[tuple[int, int]], at_once: int, times: list[int]
) -> None:
    """However the batches were grouped in messages, the files of both are identical."""
    config = LogConfig(segment_bytes=1000, segment_ms=800, index_interval_bytes=100)
    leader, follower = memory_broker(config), memory_broker(config)
    parts = [
        leader.append(count, value_bytes=value_bytes, timestamp_ms=time)
        for (count, value_bytes), time in zip(sizes, times, strict=False)
    ]
    for number in range(0, len(parts), at_once):
        follower.log.append(b"".join(parts[number : number + at_once]), now_ms=0)
    leader.sync(full=True)
    follower.sync(full=True)
    names = leader.storage.names(leader.log.directory)
    assert names == follower.storage.names(follower.log.directory)
    for name in names:
        path = leader.log.directory / name
        assert leader.storage.read(path) == follower.storage.read(path), name


def test_an_append_tells_its_offsets_and_times() -> None:
    broker = memory_broker()
    broker.append(3)
    data = batch(3, count=2, timestamp_ms=70) + batch(5, count=4, timestamp_ms=60)
    info = broker.log.append(data, now_ms=0)
    assert (info.base_offset, info.end_offset, info.max_timestamp_ms) == (3, 9, 71)
    assert info.size_bytes == len(data)


@pytest.mark.parametrize(
    "data",
    [batch(0)[:-1] + b"x" * 80, b"\0" * 61, batch(0)[:16] + b"\1" + batch(0)[17:]],
    ids=["more", "zeros", "magic 1"],
)
def test_bytes_that_are_no_batches_are_refused_before_anything_is_written(data: bytes) -> None:
    broker = memory_broker()
    with pytest.raises((CorruptBatch, AssertionError)):
        broker.log.append(data, now_ms=0)
    assert broker.log.size_bytes == 0
    assert broker.storage.size_bytes(broker.files(".log")[0]) == 0


def test_offsets_that_go_back_are_a_bug() -> None:
    broker = memory_broker()
    broker.append(3)
    with pytest.raises(AssertionError):
        broker.log.append(batch(2), now_ms=0)
    assert broker.log.log_end_offset == 3
