"""The replicated log of the metadata quorum, as `rpc` and the process use it."""

from __future__ import annotations

from odradek_metadata_quorum.errors import (
    CorruptStorage,
    InsecureListener,
    LeadershipUnconfirmed,
    NotLeader,
    OutcomeUnknown,
    ProposalTooLarge,
    QuorumError,
    QuorumOverloaded,
    StorageMismatch,
)
from odradek_metadata_quorum.quorum.quorum import Quorum
from odradek_metadata_quorum.quorum.status import (
    CommittedEntry,
    LatencyStatus,
    PeerStatus,
    QuorumRole,
    QuorumStatus,
    StateSnapshot,
)
from odradek_metadata_quorum.raft.shell import StateMachine
from odradek_metadata_quorum.settings import QuorumSettings, QuorumTimers, QuorumTls
from odradek_metadata_quorum.storage.data_directory import check_storage, format_storage

__all__ = [
    "CommittedEntry",
    "CorruptStorage",
    "InsecureListener",
    "LatencyStatus",
    "LeadershipUnconfirmed",
    "NotLeader",
    "OutcomeUnknown",
    "PeerStatus",
    "ProposalTooLarge",
    "Quorum",
    "QuorumError",
    "QuorumOverloaded",
    "QuorumRole",
    "QuorumSettings",
    "QuorumStatus",
    "QuorumTimers",
    "QuorumTls",
    "StateMachine",
    "StateSnapshot",
    "StorageMismatch",
    "check_storage",
    "format_storage",
]
