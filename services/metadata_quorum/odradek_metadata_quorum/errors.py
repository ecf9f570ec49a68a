"""The errors of the quorum. Each class stands for one remedy."""

from __future__ import annotations


class QuorumError(Exception):
    """Base class of the errors that callers of the quorum may handle."""


class NotLeader(QuorumError):
    """The proposal was not appended, because this node is not the leader in the epoch of the proposal. `leader_id` is
    the present leader, or None if it is unknown.
    """

    def __init__(self, message: str, *, leader_id: int | None) -> None:
        super().__init__(message)
        self.leader_id = leader_id


class OutcomeUnknown(QuorumError):
    """The proposal was appended on this node, but it is not known whether it will be committed. Read the state before
    repeating the proposal.
    """


class ProposalTooLarge(QuorumError):
    """The payload is larger than `proposal_bytes_max`, and was not appended. Divide it into several proposals."""


class QuorumOverloaded(QuorumError):
    """Too many proposals are not committed yet, so this one was not appended. Try again later."""


class LeadershipUnconfirmed(QuorumError):
    """No majority responded in time, so another controller may lead by now. Try again, or ask another controller."""


class StorageMismatch(QuorumError):
    """The data directory cannot be used: it is not formatted, is in use by another process, or belongs to another
    cluster, another node or a later release.
    """


class CorruptStorage(QuorumError):
    """A file in the data directory is damaged in a way that a crash cannot cause. Starting could lose committed
    entries.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Keep this directory: it may contain the only copy of the cluster's metadata. If a"
            " majority of the controllers is healthy without this one, move the directory aside and replace"
            " this controller (docs/operations.md, Replacing a controller)"
        )


def is_newer(version: int, known: int) -> bool:
    """Return whether a format number above `known` is that of a later release. A number of 100 or more is damage."""
    return known < version < 100


def newer_format(what: str, version: int, known: int) -> StorageMismatch:
    """Return the error for a file whose format number is above `known`, because a later release wrote it."""
    return StorageMismatch(
        f"{what} has format {version}, but this program reads formats up to {known}: a newer program wrote it."
        " Start this controller with that program; nothing in the directory was changed"
    )


class InsecureListener(QuorumError):
    """Other machines can reach the listener for voters, so TLS or the explicit setting `insecure` is required."""


class WireError(QuorumError):
    """Another voter sent bytes that are not a message of this protocol, so its connection is closed."""
