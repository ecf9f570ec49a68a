"""Seeds that once found something; they are run each time, whatever seeds are asked for."""

from __future__ import annotations

REGRESSIONS: tuple[int, ...] = (
    278,  # a withdrawn ISR proposal did not bump the partition epoch: the watermark stood still
)
