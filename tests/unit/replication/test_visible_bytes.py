"""The bytes that consumers may read are counted exactly, even while the high watermark does not
advance.
"""

from __future__ import annotations

import tracemalloc

from odradek_broker.replication.counters import VisibleBytes
from odradek_protocol.identity import Offset


def test_bytes_are_counted_once_they_are_below_the_watermark() -> None:
    visible = VisibleBytes()
    for end in (1, 3, 7):
        visible.appended(Offset(end), 100)
    visible.committed(Offset(2))
    assert visible.total_bytes == 100
    visible.committed(Offset(7))
    assert visible.total_bytes == 300


def test_appends_above_a_watermark_that_stands_still_take_no_more_and_more_memory() -> None:
    """With acks=1, appends continue while too few replicas are in sync, which may last for
    hours.
    """
    visible = VisibleBytes()
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
    visible = VisibleBytes()
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
    visible = VisibleBytes()
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
