"""Seeds that once found a bug. Every run of the simulator includes them."""

from __future__ import annotations

REGRESSIONS: tuple[int, ...] = (
    2041,  # an empty group restarted its epochs in another protocol (no bug)
    1188,  # a coordinator reloaded without its own writes that were not committed yet
    1269,  # a replica began at the log start without older batches (no bug)
    278,  # a leader waited for ever for a refused replica (now also a directed schedule)
    400_226,  # a fetch slept although the watermark passed records from before the restart
    401_657,  # a restored stray log was used before its new name was durable
)
