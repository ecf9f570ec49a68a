"""Which logs want a full sync, so that a restart has little to scan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from odradek_broker.log.partition_log import PartitionLog

FLUSH_BYTES_MAX: Final = 64 << 20  # unsynced bytes of one log
FLUSH_AGE_MS_MAX: Final = 60_000
FLUSH_TOTAL_BYTES_MAX: Final = 2 << 30  # unsynced bytes of all: bounds what a restart scans
FLUSHES_AT_ONCE_MAX: Final = 64


def due_flushes(
    logs: Iterable[PartitionLog], *, now_ms: int, total_bytes_max: int
) -> list[PartitionLog]:
    """By unsynced bytes or age: the neediest first, FLUSHES_AT_ONCE_MAX at most.

    Begin the sync of each (`begin_sync(full=True)`) when its turn comes: a sync under way holds up
    those of its log's fsync producers.
    """
    candidates = [
        (log.unsynced_bytes, number, log)
        for number, log in enumerate(logs)
        if log.recovery_point < log.stored_end_offset
    ]
    total_bytes = sum(unsynced_bytes for unsynced_bytes, _, _ in candidates)
    due: list[PartitionLog] = []
    for unsynced_bytes, _, log in sorted(candidates, reverse=True):
        since_ms = log.unsynced_since_ms
        is_old = since_ms is not None and now_ms - since_ms >= FLUSH_AGE_MS_MAX
        is_big = unsynced_bytes >= FLUSH_BYTES_MAX or total_bytes >= total_bytes_max
        if (is_old or is_big) and len(due) < FLUSHES_AT_ONCE_MAX:
            due.append(log)
            total_bytes -= unsynced_bytes
    return due
