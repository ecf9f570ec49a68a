"""The replicated log of the metadata quorum: what `controller` and `rpc` may see of it.

Nothing outside this package knows that pysyncobj turns the wheels inside.
"""

from __future__ import annotations

from odradek_metadata_quorum.quorum.errors import (
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
from odradek_metadata_quorum.quorum.raft.shell import StateMachine
from odradek_metadata_quorum.quorum.settings import QuorumSettings, QuorumTimers, QuorumTls
from odradek_metadata_quorum.quorum.state_machine import (
    CommittedEntry,
    StateSnapshot,
)
from odradek_metadata_quorum.quorum.status import (
    LatencyStatus,
    PeerStatus,
    QuorumRole,
    QuorumStatus,
)
from odradek_metadata_quorum.quorum.storage_format import check_storage, format_storage

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
