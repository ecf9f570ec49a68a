"""Where two lineages part (R3), and how far a follower cuts for it (R4).

Two logs that hold a record with the same offset and epoch are equal up to it, because one leader
wrote each epoch, at offsets of its own. So comparing the follower's last epoch with the leader's
cache finds the end of what they share, without reading a record. A cut to the high watermark would
not do: it may remove records that an elected leader already counted as stored (KIP-101), or keep
ones that no leader has (KIP-279). Each round lowers the epoch asked about, so it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from odradek_broker.partition.log_positions import LogPositions
from odradek_protocol.identity import NO_LEADER_EPOCH, LeaderEpoch, Offset


class Lineage(Enum):
    """Answers of `compare` that carry nothing."""

    SHARED = "shared"  # the follower's log is a prefix of ours: push from its end
    GONE = "gone"  # what the follower needs, or what its records descend from, is not here


@dataclass(frozen=True, slots=True)
class Divergence:
    """The leader's largest epoch <= the follower's last one, and its exclusive end."""

    epoch: LeaderEpoch
    end_offset: Offset


Verdict: TypeAlias = Lineage | Divergence


def compare(leader: LogPositions, log_end: Offset, last_epoch: LeaderEpoch) -> Verdict:
    """Compare a follower's end with the leader's log; `last_epoch` is that of its last record.

    A follower that shares no epoch with us is told to begin anew (GONE): its records above our log
    start were never committed, because whoever is elected holds all that was, and those below are
    deleted.
    """
    if log_end < leader.log_start:
        return Lineage.GONE
    if last_epoch == NO_LEADER_EPOCH:
        return Lineage.SHARED if log_end <= leader.log_end else Lineage.GONE
    shared = _end_of(leader, last_epoch)
    if shared is None:
        return Lineage.GONE
    epoch, end_offset = shared
    if epoch == last_epoch and log_end <= end_offset:
        return Lineage.SHARED
    return Divergence(epoch, end_offset)


def cut_offset(follower: LogPositions, divergence: Divergence) -> Offset:
    """Where the follower cuts: the end of what both lineages have of `divergence.epoch`.

    May lie below the follower's log start offset: then its log is dropped.
    """
    own = _end_of(follower, divergence.epoch)
    own_end = own[1] if own is not None else follower.log_start
    return min(divergence.end_offset, own_end)


def _end_of(log: LogPositions, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset] | None:
    """Return the log's largest epoch at or below `epoch` and its exclusive end; None without one.

    A client is told less about an epoch that is unknown here (`LeaderEpochs.end_of`). A replica
    has to find an end nevertheless: its log may have epochs below or above all of ours.
    """
    epochs = log.epochs
    if epochs.earliest == NO_LEADER_EPOCH or epoch < epochs.earliest:
        return None
    return epochs.end_of(min(epoch, epochs.latest), log.log_end)
