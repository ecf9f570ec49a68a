"""When a log is compacted, and how far: decided on the loop, without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from odradek_broker.log.cleaning.compaction import CompactJob
from odradek_broker.log.segments.segment import Segment
from odradek_protocol.identity import Offset

if TYPE_CHECKING:
    from odradek_broker.log.partition_log import PartitionLog


def begin_compaction(
    log: PartitionLog, basics: dict[str, Any], segments: Sequence[Segment], *, now_ms: int
) -> CompactJob | None:
    """A pass over `log`, or None if it is not compacted, or not dirty enough yet; `basics` are what
    all its jobs have. Raises OSError."""
    config = log.config
    if not config.cleanup_compact:
        return None
    covered = _covered(log, segments, now_ms=now_ms)
    dirty = [s for s in covered if s.end_offset > log.cleaned_offset]
    if not dirty:
        return None
    dirty_bytes = sum(s.size_bytes for s in dirty)
    ratio = dirty_bytes / max(sum(s.size_bytes for s in covered), 1)
    late_ms = now_ms - config.max_compaction_lag_ms
    is_late = any(0 <= s.first_timestamp_ms < late_ms for s in dirty)
    if ratio < config.min_cleanable_dirty_ratio and not is_late:
        return None
    last_batches = frozenset(
        entry.batches[-1].last_offset for entry in log.producers.entries().values() if entry.batches
    )
    end_offset = Offset(covered[-1].end_offset)
    return CompactJob(
        **basics,
        segments=covered,
        dirty_offset=max(log.cleaned_offset, log.log_start_offset),
        aborted=log.aborted_transactions(Offset(covered[0].base_offset), end_offset),
        last_batches=last_batches,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
    )


def _covered(log: PartitionLog, segments: Sequence[Segment], *, now_ms: int) -> list[Segment]:
    """The closed segments below the limit: durable, below the last stable offset, and not too young.

    A transaction whose marker is not below the high watermark counts as open: a cut may take the marker,
    and another one may say the opposite.
    """
    limit = min(log.last_stable_offset, log.recovery_point)
    young_ms = now_ms - log.config.min_compaction_lag_ms
    covered: list[Segment] = []
    for segment in segments[:-1]:
        is_young = log.config.min_compaction_lag_ms > 0 and segment.newest_ms() > young_ms
        if segment.end_offset > limit or is_young:
            break
        covered.append(segment)
    return covered
