"""The bytes that consumers may read are counted exactly, even while the high watermark does not
advance.
"""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from odradek_broker.replication.counters import VisibleBytes
from odradek_protocol.identity import Offset


def _of_an_empty_log() -> VisibleBytes:
    return _at_open(0, 0, 0)


def _at_open(last_stable_offset: int, high_watermark: int, log_end: int) -> VisibleBytes:
    return VisibleBytes(
        last_stable_offset=Offset(last_stable_offset),
        high_watermark=Offset(high_watermark),
        log_end=Offset(log_end),
        log_bytes=100 * log_end,
    )


def test_bytes_are_counted_once_they_are_below_the_watermark() -> None:
    visible = _of_an_empty_log()
    for end in (1, 3, 7):
        visible.appended(Offset(end), 100)
    visible.committed(Offset(1))
    assert visible.total_bytes == 100
    visible.committed(Offset(2))
    assert visible.total_bytes == 150, "half of an append, in proportion"
    visible.committed(Offset(7))
    assert visible.total_bytes == 300


def test_appends_above_a_watermark_that_stands_still_take_no_more_and_more_memory() -> None:
    """With acks=1, appends continue while too few replicas are in sync, which may last for
    hours.
    """
    visible = _of_an_empty_log()
    count = 20_000
    tracemalloc.start()
    try:
        for end in range(1, count + 1):
            visible.appended(Offset(end), 10)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 400_000
    for high_watermark in (1, 500, 5_000):
        visible.committed(Offset(high_watermark))
        assert 0 < visible.total_bytes <= 10 * high_watermark, "nothing above it"
    visible.committed(Offset(count))
    assert visible.total_bytes == 10 * count
    visible.appended(Offset(count + 1), 10)
    visible.committed(Offset(count + 1))
    assert visible.total_bytes == 10 * count + 10


def test_stable_bytes_stop_before_an_open_transaction_and_catch_up_behind_its_marker() -> None:
    visible = _of_an_empty_log()
    for end in (1, 2, 3):
        visible.appended(Offset(end), 100)
    visible.committed(Offset(1))
    assert (visible.total_bytes, visible.stable_bytes) == (100, 100)
    visible.committed_behind(Offset(3), Offset(1))
    assert (visible.total_bytes, visible.stable_bytes) == (300, 100)
    visible.committed_behind(Offset(3), Offset(2))
    assert (visible.total_bytes, visible.stable_bytes) == (300, 200)
    visible.appended(Offset(4), 50)
    visible.committed_behind(Offset(4), Offset(4))
    assert (visible.total_bytes, visible.stable_bytes) == (350, 350)
    visible.appended(Offset(5), 50)
    visible.committed_behind(Offset(5), Offset(4))
    visible.appended(Offset(6), 50)
    visible.committed(Offset(6))
    assert (visible.total_bytes, visible.stable_bytes) == (450, 450)


def test_an_open_transaction_of_any_length_takes_a_bounded_amount_of_memory() -> None:
    visible = _of_an_empty_log()
    count = 20_000
    tracemalloc.start()
    try:
        for end in range(1, count + 1):
            visible.appended(Offset(end), 10)
            visible.committed_behind(Offset(end), Offset(0))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 400_000
    assert (visible.total_bytes, visible.stable_bytes) == (10 * count, 0)
    for stable in (1, 500, 5_000):
        visible.committed_behind(Offset(count), Offset(stable))
        assert 0 < visible.stable_bytes <= 10 * stable, "nothing above it"
    visible.committed_behind(Offset(count), Offset(count))
    assert visible.stable_bytes == 10 * count


def test_records_of_an_earlier_life_are_counted_when_the_watermark_passes_them() -> None:
    visible = _at_open(101, 101, 122)
    counts = [visible.total_bytes]
    for high_watermark in (102, 110, 122):
        visible.committed(Offset(high_watermark))
        counts.append(visible.total_bytes)
    assert counts == sorted(set(counts)), "each step wakes a fetch"


def test_records_of_an_earlier_life_are_counted_when_the_last_stable_offset_passes_them() -> None:
    """Two transactions were open at the start, and the first of them ends."""
    visible = _at_open(90, 101, 101)
    counts = [visible.stable_bytes]
    for end, last_stable in ((102, 95), (103, 103)):
        visible.appended(Offset(end), 50)
        visible.committed_behind(Offset(end), Offset(last_stable))
        counts.append(visible.stable_bytes)
    assert counts == sorted(set(counts)), "each step wakes a fetch"
    assert visible.stable_bytes == visible.total_bytes


def test_records_that_a_truncation_leaves_above_the_watermark_are_counted_later() -> None:
    visible = _of_an_empty_log()
    for end in (5, 10, 20):
        visible.appended(Offset(end), 100)
    visible.committed(Offset(5))
    visible.cut(Offset(15))
    for end, high_watermark in ((15, 10), (15, 15), (17, 16), (18, 18)):
        before = visible.total_bytes
        if end > 15:
            visible.appended(Offset(end), 100)
        visible.committed(Offset(high_watermark))
        assert visible.total_bytes > before


@given(st.lists(st.tuples(st.sampled_from("apsc"), st.integers(1, 30)), max_size=60))
def test_each_progress_of_an_offset_raises_its_count(steps: list[tuple[str, int]]) -> None:
    """Append, commit, commit behind a transaction, cut: in any order."""
    visible = _at_open(0, 0, 7)
    end, watermark, stable = 7, 0, 0
    for what, number in steps:
        counts = visible.total_bytes, visible.stable_bytes
        offsets = watermark, stable
        if what == "a":
            end += number
            visible.appended(Offset(end), 61 * number)
        elif what == "p":
            watermark = stable = min(end, watermark + number)
            visible.committed(Offset(watermark))
        elif what == "s":
            stable = min(watermark, stable + number // 2)
            watermark = min(end, watermark + number)
            visible.committed_behind(Offset(watermark), Offset(stable))
        else:
            end = max(watermark, end - number)
            visible.cut(Offset(end))
        assert (visible.total_bytes > counts[0]) == (watermark > offsets[0])
        assert visible.stable_bytes > counts[1] or stable == offsets[1]
        assert visible.stable_bytes <= visible.total_bytes
        if stable == watermark:
            assert visible.stable_bytes == visible.total_bytes
