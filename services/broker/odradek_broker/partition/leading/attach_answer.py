"""What a leader answers to an Attach, once the lineages are compared (R3)."""

from __future__ import annotations

from odradek_broker.partition.effects import SendAttached, SendDiverged, SendSnapshotless
from odradek_broker.partition.events import AttachReceived
from odradek_broker.partition.log_positions import LogPositions
from odradek_broker.partition.truncation import Divergence, Lineage, Verdict
from odradek_protocol.identity import LeaderEpoch


def attach_answer(
    verdict: Verdict, attach: AttachReceived, log: LogPositions, leader_epoch: LeaderEpoch
) -> SendAttached | SendDiverged | SendSnapshotless:
    """Pushing begins; or where the follower has to cut first; or that it has to begin anew."""
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
