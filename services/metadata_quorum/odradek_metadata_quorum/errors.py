"""Errors of the quorum, one class for each remedy."""

from __future__ import annotations


class QuorumError(Exception):
    """Base class of the errors that callers of the quorum may handle."""


class NotLeader(QuorumError):
    """The proposal was not appended, because this node is not the leader of that epoch. Send it to
    `leader_id` instead.
    """

    def __init__(self, message: str, *, leader_id: int | None) -> None:
        super().__init__(message)
        self.leader_id = leader_id


class OutcomeUnknown(QuorumError):
    """The proposal was appended here, but it is not known whether it will be committed. Read the state before you
    repeat it.
    """


class ProposalTooLarge(QuorumError):
    """The payload is larger than `proposal_bytes_max`; nothing was appended. Split it."""


class QuorumOverloaded(QuorumError):
    """Too many proposals wait for their commit; nothing was appended. Try again later."""


class LeadershipUnconfirmed(QuorumError):
    """No majority responded in time, so another controller may lead by now. Try again, or ask another controller."""


class StorageMismatch(QuorumError):
    """The data directory cannot be used: it is not formatted, is in use, or is of another cluster, another node or a
    later release.
    """


class CorruptStorage(QuorumError):
    """A file of the quorum is damaged in a way that a crash cannot cause; starting would lose data."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Keep this directory, it may hold the only copy of the cluster's metadata. If a"
            " majority of the other controllers is healthy, move it aside and replace this controller"
            " (docs/operations.md, Replacing a controller)"
        )


def is_newer(version: int, known: int) -> bool:
    """Return whether a format number is of a later release. A very high number is treated as damage instead."""
    return known < version < 100


def newer_format(what: str, version: int, known: int) -> StorageMismatch:
    """Return the error for a file whose format number is above `known`, because a later release wrote it."""
    return StorageMismatch(
        f"{what} has format {version}, this program reads up to {known}: a newer program wrote it."
        " Start this controller with that program; nothing in the directory was changed"
    )


class InsecureListener(QuorumError):
    """The listener is reachable from other machines, so it needs TLS or the explicit setting `insecure`."""


class WireError(QuorumError):
    """Another voter sent bytes that are not a message of this protocol, so its connection is closed."""
