"""Seeds that once found a bug. Every run of the simulator includes them."""

from __future__ import annotations

REGRESSIONS: tuple[int, ...] = (
    2041,  # a false alarm: an empty group changed its protocol, so its epochs began again
    1188,  # a coordinator reloaded without its own writes that were not committed yet
    1269,  # a false alarm: a replica began at the log start, without older batches
    278,  # a leader waited for ever for a refused replica (now also a directed schedule)
    400_226,  # a fetch slept although the watermark passed records from before the restart
    401_657,  # a restored stray log was used before its new name was durable
    405_050,  # a start took the first batch that compaction had left for the first of its epoch
    408_146,  # a false alarm: an append failed, and so did its undoing, after the file was cut
)
