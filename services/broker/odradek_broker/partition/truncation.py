"""Determines where the logs of a leader and a follower diverge (rule R3), and how far the follower truncates (rule R4).

Two logs that hold a record with the same offset and epoch are equal up to it, because one leader
wrote each epoch, at offsets of its own. So comparing the follower's last epoch with the leader's
epochs finds the end of what they share, without reading a record. Truncating to the high watermark
is no substitute: it may remove records that an elected leader already counted as stored (KIP-101), or
keep records that no leader has (KIP-279). Each round lowers the epoch that is compared, so it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from odradek_broker.partition.effects import SendAttached, SendDiverged, SendSnapshotless
from odradek_broker.partition.events import AttachReceived
from odradek_broker.partition.log_positions import LogPositions
from odradek_protocol.identity import NO_LEADER_EPOCH, LeaderEpoch, Offset


class Lineage(Enum):
    """Results of `compare` that have no offset."""

    # The follower's log is a prefix of the leader's: send batches from its end on.
    SHARED = "shared"
    GONE = "gone"  # the leader's log lacks the records that the follower needs, or their epoch


@dataclass(frozen=True, slots=True)
class Divergence:
    """The largest leader epoch in the leader's log that is not above the follower's last one, and the end offset of
    that epoch (exclusive).
    """

    epoch: LeaderEpoch
    end_offset: Offset


Verdict: TypeAlias = Lineage | Divergence


def compare(leader: LogPositions, log_end: Offset, last_epoch: LeaderEpoch) -> Verdict:
    """Compare a follower's log end with the leader's log; `last_epoch` is that of its last record.

    A follower whose log shares no epoch with the leader's must start over (GONE). Its records above the leader's
    log start were never committed, because an elected leader holds all committed records, and its records below are
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


def attach_response(
    verdict: Verdict, attach: AttachReceived, log: LogPositions, leader_epoch: LeaderEpoch
) -> SendAttached | SendDiverged | SendSnapshotless:
    """Return the response to an Attach: accept it, name the offset to truncate to, or tell the follower to start over
    with an empty log.
    """
    if verdict is Lineage.SHARED:
        return SendAttached(
            session=attach.session,
            attach_seq=attach.attach_seq,
            leader_epoch=leader_epoch,
            high_watermark=log.high_watermark,
            log_start=log.log_start,
        )
    if isinstance(verdict, Divergence):
        return SendDiverged(
            session=attach.session,
            attach_seq=attach.attach_seq,
            leader_epoch=leader_epoch,
            for_log_end=attach.log_end,
            for_last_epoch=attach.last_epoch,
            epoch=verdict.epoch,
            end_offset=verdict.end_offset,
        )
    return SendSnapshotless(
        session=attach.session,
        attach_seq=attach.attach_seq,
        leader_epoch=leader_epoch,
        log_start=log.log_start,
    )


def cut_offset(follower: LogPositions, divergence: Divergence) -> Offset:
    """Return where the follower truncates: the end of the records of `divergence.epoch` that both logs have.

    It may be below the follower's log start offset; then the follower drops its log.
    """
    own = _end_of(follower, divergence.epoch)
    own_end = own[1] if own is not None else follower.log_start
    return min(divergence.end_offset, own_end)


def _end_of(log: LogPositions, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset] | None:
    """Return the log's largest epoch at or below `epoch` and its exclusive end; None if there is none.

    `LeaderEpochs.end_of`, which is for responses to clients, gives other results for two inputs, as Kafka does. Here an
    epoch below all others has no end, and an epoch above the latest one has the end of the latest, because a follower's
    log may have epochs above all of the leader's.
    """
    epochs = log.epochs
    if epochs.earliest == NO_LEADER_EPOCH or epoch < epochs.earliest:
        return None
    return epochs.end_of(min(epoch, epochs.latest), log.log_end)
