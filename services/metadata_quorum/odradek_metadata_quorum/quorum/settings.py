"""The quorum's settings, with their units, defaults and the reason for each bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SNAPSHOT_LIMIT_SETTING: Final = "metadata.log.max.snapshot.bytes"
"""The operator's name of `snapshot_bytes_max`: Kafka has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumTls:
    """PEM files of mutual TLS between voters; the certificate's SAN is `controller-<node id>`."""

    certificate_path: Path
    key_path: Path
    ca_path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumTimers:
    """Raft's clocks, in milliseconds.

    The defaults replace a leader whose process died in about 0.3 s, a silent one in 0.6 s, and
    bear stalls of 0.5 s.
    """

    election_timeout_min_ms: int = 500
    election_timeout_max_ms: int = 1_000
    lost_leader_timeout_min_ms: int = 100  # after the connection to the leader broke
    lost_leader_timeout_max_ms: int = 300
    heartbeat_interval_ms: int = 100  # under a third of the smallest election timeout
    leader_fallback_ms: int = 1_000  # a leader without a majority's acknowledgements steps down
    tick_interval_ms: int = 20

    def __post_init__(self) -> None:
        if not 0 < self.election_timeout_min_ms < self.election_timeout_max_ms:
            raise ValueError("election_timeout_min_ms must be above 0 and below the maximum")
        if not 0 < self.lost_leader_timeout_min_ms < self.lost_leader_timeout_max_ms:
            raise ValueError("lost_leader_timeout_min_ms must be above 0 and below the maximum")
        if self.heartbeat_interval_ms * 3 > self.election_timeout_min_ms:
            raise ValueError("heartbeat_interval_ms must be at most a third of the least timeout")
        if self.leader_fallback_ms < self.election_timeout_min_ms:
            raise ValueError("leader_fallback_ms must not be below election_timeout_min_ms")
        if not 0 < self.tick_interval_ms <= self.heartbeat_interval_ms:
            raise ValueError("tick_interval_ms must be above 0 and at most heartbeat_interval_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSettings:
    """Everything one voter must be told.

    `voters` maps every voter's id, this node's included, to the (host, port) it is dialled at;
    names are resolved again at each dial. Without `tls` the listener must be on loopback, unless
    `insecure` says that the operator knows better.
    """

    node_id: int
    cluster_id: str
    voters: dict[int, tuple[str, int]]
    data_dir: Path
    listen_host: str = "127.0.0.1"
    listen_port: int = 0
    tls: QuorumTls | None = None
    insecure: bool = False
    timers: QuorumTimers = field(default_factory=QuorumTimers)

    proposal_bytes_max: int = 1 << 20  # one proposal's payload
    pending_proposals_max: int = 10_000  # appended here, not applied yet
    pending_bytes_max: int = 64 << 20
    snapshot_interval_entries: int = 20_000  # applied since the last snapshot
    snapshot_interval_bytes: int = 64 << 20  # or this many bytes of entries applied since then
    snapshot_entries_min: int = 20_000  # kept in the log behind a snapshot, for slow followers
    snapshot_entries_bytes_max: int = 64 << 20  # fewer are kept when they are larger than this
    snapshot_chunk_bytes: int = 256 << 10
    snapshot_bytes_max: int = 1 << 30  # larger ones are neither stored nor taken from a leader
    segment_bytes_max: int = 8 << 20  # of the write-ahead log: trimming removes whole segments
    frame_bytes_max: int = 16 << 20  # one message between voters
    peer_queue_bytes_max: int = 4 << 20  # waiting for one peer; more is dropped, Raft sends again

    def __post_init__(self) -> None:
        if self.node_id not in self.voters:
            raise ValueError(f"node_id {self.node_id} is not among the voters {list(self.voters)}")
        if not 0 < self.proposal_bytes_max <= 1 << 20:
            raise ValueError("proposal_bytes_max must be between 1 and 1048576")
        if self.snapshot_interval_entries < 1 or self.snapshot_entries_min < 1:
            raise ValueError("the snapshot's entry counts must be positive")
