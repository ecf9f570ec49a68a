"""What the quorum reports of itself, its entries and its snapshots."""

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
    """Another voter as this node sees it; indices and age are meaningful on the leader only."""

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
    """Pairs of an upper bound in seconds and the number of writes at or below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumStatus:
    """One consistent reading. Each offset is the index of the last entry that it includes."""

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
    """Size of the snapshot that was taken here last, stored or not; 0 before the first."""
    snapshots_not_stored: int
    """Snapshots taken here since the start that were too large, or found no room on the disk."""
    pending_proposals: int
    peers: tuple[PeerStatus, ...]
    sync: LatencyStatus


@dataclass(frozen=True, slots=True)
class CommittedEntry:
    """A committed entry of the log; an empty payload is a leader's no-op."""

    offset: int
    epoch: int
    payload: bytes


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StateSnapshot:
    """The state machine's state after the entry at `offset`, as its own `snapshot()` encoded it."""

    offset: int
    epoch: int
    data: bytes
