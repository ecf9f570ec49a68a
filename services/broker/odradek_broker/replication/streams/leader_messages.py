"""What a leader sends, from the wire to the events of the partition it is about."""

from __future__ import annotations

from odradek_broker.partition import events as ev
from odradek_broker.replication.partition_host import PartitionHost
from odradek_protocol.identity import LeaderEpoch, Offset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.record_messages import PushedMessage


def deliver(host: PartitionHost, session_id: int, pushed: PushedMessage) -> None:
    """Hand a leader's message to its partition."""
    leader_epoch = LeaderEpoch(pushed.leader_epoch)
    data, message = pushed.data, pushed.other
    if data is not None:
        host.data_received(
            session_id=session_id,
            leader_epoch=leader_epoch,
            base_offset=Offset(data.base_offset),
            high_watermark=Offset(data.high_watermark),
            log_start=Offset(data.log_start),
            records=data.records,
        )
        return
    assert message is not None
    kind = message.WhichOneof("message")
    if kind == "attached":
        host.step(
            ev.AttachedReceived(
                session_id=session_id,
                attach_seq=message.attached.attach_seq,
                leader_epoch=leader_epoch,
                high_watermark=Offset(message.attached.high_watermark),
                log_start=Offset(message.attached.log_start),
            )
        )
    elif kind == "diverged":
        diverged = message.diverged
        host.step(
            ev.DivergedReceived(
                session_id=session_id,
                attach_seq=diverged.attach_seq,
                leader_epoch=leader_epoch,
                for_log_end=Offset(diverged.for_log_end),
                for_last_epoch=LeaderEpoch(diverged.for_last_epoch),
                epoch=LeaderEpoch(diverged.epoch),
                end_offset=Offset(diverged.end_offset),
            )
        )
    elif kind == "snapshotless":
        host.step(
            ev.SnapshotlessReceived(
                session_id=session_id,
                attach_seq=message.snapshotless.attach_seq,
                leader_epoch=leader_epoch,
                log_start=Offset(message.snapshotless.log_start),
            )
        )
    elif kind == "refused":
        host.step(
            ev.RefusedReceived(
                session_id=session_id,
                attach_seq=message.refused.attach_seq,
                error_code=ErrorCode.received(message.refused.error_code),
                leader_epoch=leader_epoch,
            )
        )
