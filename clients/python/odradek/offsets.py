"""Offsets that are asked for by time."""

from __future__ import annotations

from typing import Final, NamedTuple

LATEST: Final = -1
EARLIEST: Final = -2
LARGEST_TIMESTAMP: Final = -3


class OffsetAndTimestamp(NamedTuple):
    """An offset that was looked up. All are -1 where there is no such record."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
