"""Which segments a log may let go: a decision over their ages, sizes and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.segments.segment import Segment


def expired_segments(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    now_ms: int,
    log_start_offset: int,
    last_stable_offset: int,
    high_watermark: int,
) -> tuple[int, bool]:
    """(how many of the oldest segments may go, whether to roll first so that all of these may).

    Nothing at or above the high watermark goes, and nothing whose successor may not go either: a
    log has no holes. Segments below the log start offset go whatever `cleanup.policy` says; age and
    size count with `delete` only, and below the last stable offset: nobody who reads committed records
    could see the rest yet. The active segment goes only by age, when nothing in it is young.
    Raises OSError, if a segment without timestamps cannot be asked for its file's.
    """
    sizes_bytes = sum(segment.size_bytes for segment in segments)
    excess_bytes = sizes_bytes - config.retention_bytes if config.retention_bytes >= 0 else 0
    count = 0
    for segment, successor in pairwise(segments):
        if successor.base_offset > high_watermark:
            return count, False
        is_below = successor.base_offset <= log_start_offset
        is_excess = excess_bytes >= segment.size_bytes > 0
        is_deletable = (
            config.cleanup_delete
            and successor.base_offset <= last_stable_offset
            and (is_excess or _is_old(segment, config, now_ms))
        )
        if not is_below and not is_deletable:
            return count, False
        excess_bytes -= segment.size_bytes
        count += 1
    active = segments[-1]
    if (
        config.cleanup_delete
        and active.size_bytes
        and active.end_offset <= last_stable_offset
        and _is_old(active, config, now_ms)
    ):
        return count + 1, True
    return count, False


def _is_old(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    if config.retention_ms < 0:
        return False
    if segment.size_bytes == 0:
        return True
    return segment.newest_ms() < now_ms - config.retention_ms
