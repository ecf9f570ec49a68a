"""The types between a Raft node and the code that does its I/O: timers, limits, events, status and the state
machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftTimers:
    """Raft's timers in seconds; `QuorumTimers` has their defaults."""

    election_min_s: float
    election_max_s: float
    lost_leader_min_s: float
    lost_leader_max_s: float
    heartbeat_s: float
    fallback_s: float
    tick_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftLimits:
    """Raft's limits, as counts and in bytes; `QuorumSettings` has their defaults."""

    snapshot_interval_entries: int
    snapshot_interval_bytes: int
    snapshot_entries_min: int
    snapshot_entries_bytes_max: int
    snapshot_chunk_bytes: int
    snapshot_bytes_max: int
    window_bytes_max: int  # most bytes that are sent to one follower and not acknowledged


class RaftEvents(Protocol):
    """The events that a Raft node reports to its owner. It calls these methods only within `step` or `receive`."""

    def wake(self, delay_s: float) -> None:
        """Ask the owner to call `step` after `delay_s`, or earlier."""

    def applied(self, offset: int, epoch: int) -> None:
        """Report that an entry was applied."""

    def restored(self, offset: int, epoch: int) -> None:
        """Report that a snapshot replaced the state."""

    def active(self, epoch: int) -> None:
        """Report that this node is the leader, and has applied all entries before its term."""

    def resigned(self, epoch: int) -> None:
        """Report that this node is no longer the leader. It is also called if the node never became active."""

    def joined(self) -> None:
        """Report that this node may vote from now on. The owner must store that durably, and then call
        `confirm_joined`.
        """

    def snapshot_weighed(self, size: int, size_max: int, failure: OSError | None) -> None:
        """Report the size of a snapshot that this node took.

        It is stored unless it is too large, or `failure` has a reason not to store it.
        """

    def snapshot_refused(self, peer_id: int, size: int, size_max: int) -> None:
        """Report that the leader sends a snapshot above this node's limit. It is called for each chunk."""

    def snapshot_found_no_room(self, peer_id: int, size: int, failure: OSError) -> None:
        """Report that the leader's snapshot does not fit on this node's disk. The leader will send it again."""


class StateMachine(Protocol):
    """The replicated state machine. Every method except `restore` runs on the event loop and must not block.

    The same entries give the same state on every node, so nothing here may read the clock, draw
    random numbers or touch a file. An exception is a bug that would make this node diverge: the
    process ends with status 70.
    """

    def apply(self, offset: int, epoch: int, payload: bytes) -> None:
        """Replay one committed entry. Offsets rise by one, except where no-ops of new leaders lie between."""

    def snapshot(self) -> Callable[[], bytes]:
        """Capture the state in a short time. The callable that is returned encodes it on another thread."""

    def restore(self, offset: int, epoch: int, data: bytes) -> Callable[[], None]:
        """Decode a snapshot that covers all entries up to and including `offset`. This may run on any thread.

        Decoding changes nothing. The callable that is returned replaces the whole state in a short time, on the event
        loop.
        """


class QuorumRole(Enum):
    """Raft's roles, and `JOINING`: a voter that may have forgotten votes and must not cast one."""

    JOINING = "joining"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """Another voter as this node sees it. The indices and the age have a meaning only on the leader."""

    node_id: int
    connected: bool
    match_index: int
    next_index: int
    last_response_age_ms: int
    receives_snapshot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStatus:
    """Durations in nanoseconds of the writes of the write-ahead log, with their fdatasync, since the start."""

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
    """The status of the quorum, read at one moment. Each offset is the index of the last entry that it includes."""

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
    """Size of the snapshot that was last taken here, whether it was stored or not; 0 if none was taken."""
    snapshots_not_stored: int
    """Number of snapshots that were taken here since the start and not stored, because they were too large or the disk
    was full.
    """
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
    """The state of the state machine after the entry at `offset`, in the encoding of its method `snapshot`."""

    offset: int
    epoch: int
    data: bytes
