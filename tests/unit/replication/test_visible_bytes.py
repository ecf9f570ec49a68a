"""What may be read is counted exactly, however long the high watermark stood still."""

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
    """acks=1 goes on while too few replicas are in sync; that may last for hours."""
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
