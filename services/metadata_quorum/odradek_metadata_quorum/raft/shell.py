"""The types that a Raft node and the code around it share: timers, limits, events, status, and the state machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftTimers:
    """Raft's timers in seconds. `QuorumTimers` has the defaults and explains the timers."""

    election_min_s: float
    election_max_s: float
    lost_leader_min_s: float
    lost_leader_max_s: float
    heartbeat_s: float
    fallback_s: float
    tick_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftLimits:
    """Raft's limits, as counts or in bytes. `QuorumSettings` has the defaults and explains the limits."""

    snapshot_interval_entries: int
    snapshot_interval_bytes: int
    snapshot_entries_min: int
    snapshot_entries_bytes_max: int
    snapshot_chunk_bytes: int
    snapshot_bytes_max: int
    # The most bytes of entries that were sent to one follower and are not acknowledged.
    window_bytes_max: int


class RaftEvents(Protocol):
    """The events that a Raft node reports to its owner. The node calls these methods only from within a call that the
    owner makes to the node.
    """

    def wake(self, delay_s: float) -> None:
        """Ask the owner to call `step` after `delay_s`, or earlier."""

    def applied(self, offset: int, epoch: int) -> None:
        """Report that the entry at `offset`, with the term `epoch`, was applied."""

    def restored(self, offset: int, epoch: int) -> None:
        """Report that the leader's snapshot, which ends with the entry (offset, epoch), replaced the state."""

    def active(self, epoch: int) -> None:
        """Report that this node is the leader of term `epoch`, and has applied all entries of earlier terms."""

    def resigned(self, epoch: int) -> None:
        """Report that this node is no longer the leader of term `epoch`. Called even if `active` was not called."""

    def joined(self) -> None:
        """Report that this node, which joined with an empty directory, may vote. The owner must store this durably, and
        then call `confirm_joined`.
        """

    def snapshot_weighed(self, size: int, size_max: int, failure: OSError | None) -> None:
        """Report the size in bytes of a snapshot that this node took.

        The snapshot was stored, unless `size` is above `size_max` or `failure` is the error of the disk.
        """

    def snapshot_refused(self, peer_id: int, size: int, size_max: int) -> None:
        """Report that the leader `peer_id` sends a snapshot above this node's limit. Called for each chunk."""

    def snapshot_found_no_room(self, peer_id: int, size: int, failure: OSError) -> None:
        """Report that the leader's snapshot was not stored because the disk is full. The leader will send the
        snapshot again.
        """


class StateMachine(Protocol):
    """The replicated state machine. Every method except `restore` runs on the event loop and must not block.

    The same entries must result in the same state on every node, so no method may read a clock, draw random numbers or
    use files. If a method raises an exception, the process ends with status 70, because the state of this node would
    otherwise differ from that of the other nodes.
    """

    def apply(self, offset: int, epoch: int, payload: bytes) -> None:
        """Apply one committed entry. Offsets rise by one, except that the no-ops of new leaders are left out."""

    def snapshot(self) -> Callable[[], bytes]:
        """Capture the state, which must not take long. Return a function that encodes the captured state, and that the
        caller calls on another thread.
        """

    def restore(self, offset: int, epoch: int, data: bytes) -> Callable[[], None]:
        """Decode a snapshot of the state after the entry (offset, epoch). This may run on any thread and changes
        nothing.

        Return a function that replaces the whole state by the decoded one. The caller calls it on the event loop, so it
        must not take long.
        """


class QuorumRole(Enum):
    """The roles of Raft, and JOINING: a voter that may have lost the record of its votes, and so must not vote yet."""

    JOINING = "joining"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """The state of another voter, as this node knows it. The indices and the age are valid only on the leader."""

    node_id: int
    connected: bool
    match_index: int
    next_index: int
    last_response_age_ms: int
    receives_snapshot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStatus:
    """The number, durations and sizes of the synced writes to the write-ahead log since the start."""

    count: int
    total_ns: int
    last_ns: int
    max_ns: int
    entries: int
    bytes: int
    buckets: tuple[tuple[str, int], ...]
    """Pairs of an upper bound in seconds and the number of writes whose duration is at or below the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumStatus:
    """The status of this node at one moment. Offsets are indices of entries, inclusive."""

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
    """The size of the last snapshot that this node took, whether it was stored or not; 0 if it has taken none."""
    snapshots_not_stored: int
    """The number of snapshots that this node took since the start and did not store, because they were too large or the
    disk was full.
    """
    pending_proposals: int
    peers: tuple[PeerStatus, ...]
    sync: LatencyStatus


@dataclass(frozen=True, slots=True)
class CommittedEntry:
    """A committed entry of the log. The payload of a leader's no-op is empty."""

    offset: int
    epoch: int
    payload: bytes


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StateSnapshot:
    """The state after the entry (offset, epoch), as the state machine encoded it."""

    offset: int
    epoch: int
    data: bytes
