"""What the quorum tells about itself: for metrics, health checks and `odradek quorum status`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class QuorumRole(Enum):
    """Raft's roles, and `JOINING`: a voter that may have forgotten votes and must not cast one."""

    JOINING = "joining"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """One other voter as this node sees it; indices and age mean something on the leader only."""

    node_id: int
    connected: bool
    match_index: int
    next_index: int
    last_response_age_ms: int
    receives_snapshot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStatus:
    """Durations of the write-ahead log's writes with fdatasync since the start, in nanoseconds."""

    count: int
    total_ns: int
    last_ns: int
    max_ns: int
    entries: int
    bytes: int
    buckets: tuple[tuple[str, int], ...]
    """(upper bound in seconds, how many at or below it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumStatus:
    """One consistent reading; offsets are inclusive indices of the last entry each names."""

    node_id: int
    cluster_id: str
    role: QuorumRole
    term: int
    leader_id: int | None
    active: bool
    commit_index: int
    applied: int
    log_start_offset: int
    log_last_offset: int
    log_synced_offset: int
    log_entries: int
    log_bytes: int
    snapshot_offset: int
    snapshot_epoch: int
    snapshot_bytes: int
    snapshot_bytes_max: int
    snapshot_taken_bytes: int
    """Size of the last one that was taken here, stored or not; 0 before the first."""
    snapshots_not_stored: int
    """Taken here since the start, and too large, or without room on the disk."""
    pending_proposals: int
    peers: tuple[PeerStatus, ...]
    sync: LatencyStatus
