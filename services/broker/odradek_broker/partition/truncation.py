"""Determines where the logs of a leader and a follower diverge (rule R3), and how far the follower truncates (rule R4).

If two logs have a record with the same offset and epoch, they are equal up to this record, because one leader wrote all
records of an epoch, each at its own offset. So the end of the common part follows from the follower's last epoch and
the leader's epochs, without reading a record. Truncating to the high watermark is no substitute: it may remove records
that an elected leader already counted as stored (KIP-101), or keep records that no leader has (KIP-279). Each round of
Attach and truncation lowers the epoch that is compared, so the rounds come to an end.
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
    """The results of `compare` that have no offset."""

    # The follower's log is a prefix of the leader's log, so the leader sends batches from the follower's log end on.
    SHARED = "shared"
    # The leader has deleted the records that the follower needs, or the two logs share no epoch.
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Divergence:
    """The largest leader epoch in the leader's log that is not above the follower's last epoch, and the end offset of
    that epoch (exclusive) in the leader's log.
    """

    epoch: LeaderEpoch
    end_offset: Offset


Verdict: TypeAlias = Lineage | Divergence


def compare(leader: LogPositions, log_end: Offset, last_epoch: LeaderEpoch) -> Verdict:
    """Compare a follower's log with the leader's log. `log_end` and `last_epoch` are the follower's log end and the
    epoch of its last record.

    GONE: the follower must delete its log and start an empty one, because the leader has deleted the records after the
    follower's log end, or the two logs share no epoch. Nothing committed is lost: an elected leader has all committed
    records that are not deleted, so the follower's records above the leader's log start were never committed.
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
    """Return the offset to which the follower truncates: the end of the records of `divergence.epoch` that both logs
    have.

    The offset may be below the follower's log start; then the follower deletes its log and starts an empty one.
    """
    own = _end_of(follower, divergence.epoch)
    own_end = own[1] if own is not None else follower.log_start
    return min(divergence.end_offset, own_end)


def _end_of(log: LogPositions, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset] | None:
    """Return the log's largest epoch at or below `epoch`, and the exclusive end of that epoch; None if there is none.

    `LeaderEpochs.end_of`, which is for responses to clients, gives other results for two inputs, as Kafka does. In this
    function an epoch below all others has no end, and an epoch above the latest one counts as the latest, because
    a follower's log may have epochs above all of the leader's.
    """
    epochs = log.epochs
    if epochs.earliest == NO_LEADER_EPOCH or epoch < epochs.earliest:
        return None
    return epochs.end_of(min(epoch, epochs.latest), log.log_end)
