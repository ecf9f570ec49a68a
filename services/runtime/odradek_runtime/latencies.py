"""Histograms of durations, as Prometheus expects them."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BUCKETS_SECONDS: Final = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
    *(0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)


class Latencies:
    """A histogram of durations. `counts` has one number for each bucket of `BUCKETS_SECONDS`, and one for longer
    durations.
    """

    __slots__ = ("counts", "sum_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_SECONDS) + 1)
        self.sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Add one duration to the histogram."""
        self.counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        """Return (upper bound, number of durations at or below that bound) for each bucket; the last bound is +Inf."""
        total = 0
        buckets: list[tuple[str, int]] = []
        bounds = [*(str(bound) for bound in BUCKETS_SECONDS), "+Inf"]
        for bound, count in zip(bounds, self.counts, strict=True):
            total += count
            buckets.append((bound, total))
        return buckets
