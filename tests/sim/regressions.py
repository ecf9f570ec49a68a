"""Seeds that found a bug once; every run of the simulator includes them."""

from __future__ import annotations

REGRESSIONS: tuple[int, ...] = (
    2041,  # a group that was empty began its epochs again in another protocol (no bug)
    1188,  # a coordinator loaded anew without what it had written and not yet seen committed
    1269,  # a replica began at the log start, and knew nothing of older batches (no bug)
    278,  # a leader waited for ever for a refused replica (now also a directed schedule)
    400_226,  # a fetch slept beside records from before the broker's restart that the watermark passed
    401_657,  # a stray log was in use again before its new name was durable
)
