"""Where a partition that is read stands, and what its stream is to be told."""

from __future__ import annotations

from dataclasses import dataclass, field

from odradek.partitions import TopicPartition

UNKNOWN = -1


@dataclass(slots=True)
class PartitionProgress:
    """Where one partition stands."""

    name: TopicPartition
    position: int = UNKNOWN
    fetch_offset: int = UNKNOWN
    lookup_ms: int | None = None
    """What to look up while the position is unknown: a timestamp, EARLIEST or LATEST."""
    is_looking_up: bool = False
    last_epoch: int = -1
    """Leader epoch of the last record handed out."""
    validated_epoch: int = -1
    """Leader epoch under which the position is known to be good."""
    is_validating: bool = False
    is_paused: bool = False
    """By the user."""
    is_held: bool = False
    """By the group: it is about to go, or not all has been told that it came."""
    endpoint: str | None = None
    """Where it is being fetched; None: nowhere."""
    fetch_epoch: int = -1
    fetch_id: int = 0
    buffered: int = 0
    """Chunks that wait to be read."""
    must_drain: bool = False
    """Its offset is out of range, but what came before is good, and is read first."""
    not_before_ms: int = 0
    failures: int = 0
    failing_since_ms: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    preferred_replica: int = -1
    is_end_reached: bool = False

    @property
    def is_drained(self) -> bool:
        """What it had to be read out for is due now."""
        return self.must_drain and not self.buffered

    def needs_check(self, leader_epoch: int) -> bool:
        """Whether the log may have been truncated under the position since it was read."""
        return (
            self.position != UNKNOWN
            and self.last_epoch >= 0
            and leader_epoch > max(self.last_epoch, self.validated_epoch)
        )


@dataclass(slots=True)
class FetchAdd:
    """Put this partition on a stream."""

    name: TopicPartition
    offset: int
    leader_epoch: int
    fetch_id: int


@dataclass(slots=True)
class StreamChange:
    """What one stream is to be told."""

    add: dict[TopicPartition, FetchAdd] = field(default_factory=dict)
    remove: set[TopicPartition] = field(default_factory=set)
