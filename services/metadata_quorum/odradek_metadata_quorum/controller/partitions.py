"""A leader proposes who is in sync: which proposals the controller takes (R17, KIP-497, KIP-903).

A proposal is the leader's word about one epoch of the partition. It is taken only if the leader is
the one that the image has, speaks of exactly this leader epoch and partition epoch, and names only
replicas that may be in sync: each by the broker epoch under which the leader knows it, so that a
replica that restarted, and may have lost bytes, is not taken for its former life.

A success bumps the partition epoch, never the leader epoch. It answers that a change is coming; the
leader adopts it from the image only (R18). Each success bumps it, also that of an unchanged ISR:
with such a proposal a leader withdraws one that was refused because a replica was not live just
now. The refused one may have a copy under way that would be taken later, while the leader no longer
counts that replica for its high watermark; a new partition epoch makes all copies void.
"""

from __future__ import annotations

from odradek_metadata_quorum.controller.election import Standing, elr_after
from odradek_metadata_quorum.controller.reassignment import completed
from odradek_metadata_quorum.controller.requests import (
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
)
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import BrokerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import PartitionState
from odradek_protocol.metadata.records import PartitionChange


def alter_partitions(work: Workspace, request: AlterPartitionRequest) -> AlterPartitionResponse:
    """Judge each proposal for itself; those that are taken are one batch."""
    error = work.broker_error(request.broker_id, request.broker_epoch)
    if error is not ErrorCode.NONE:
        return AlterPartitionResponse(error=error)
    if len(request.partitions) > work.settings.partitions_per_batch_max:
        return AlterPartitionResponse(error=ErrorCode.INVALID_REQUEST)
    return AlterPartitionResponse(
        partitions=tuple(_alter(work, request.broker_id, item) for item in request.partitions)
    )


def _alter(work: Workspace, broker_id: BrokerId, item: AlterPartitionItem) -> AlterPartitionResult:
    state = work.state_of(item.partition)
    if state is None:
        return AlterPartitionResult(partition=item.partition, error=ErrorCode.UNKNOWN_TOPIC_ID)
    error = _refusal(work, state, broker_id, item)
    if error is not ErrorCode.NONE:
        return AlterPartitionResult(
            partition=item.partition, error=error, partition_epoch=state.partition_epoch
        )
    work.write(_change(work, state, item))
    after = work.state_of(item.partition)
    assert after is not None, item
    if work.standing_of(state.leader) < Standing.LIVE:
        # The leader leaves, or cannot write: whoever joined its ISR may lead from now on.
        work.unsettled.append((state.topic_id, state.partition))
    return AlterPartitionResult(partition=item.partition, partition_epoch=after.partition_epoch)


def _refusal(
    work: Workspace, state: PartitionState, broker_id: BrokerId, item: AlterPartitionItem
) -> ErrorCode:
    isr = [member for member, _ in item.isr]
    if item.leader_epoch > state.leader_epoch or item.partition_epoch > state.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # the leader has seen what we have not: we are deposed
    if item.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != state.leader:
        return ErrorCode.INVALID_REQUEST
    if item.partition_epoch < state.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if len(set(isr)) != len(isr) or state.leader not in isr or not {*isr} <= {*state.replicas}:
        return ErrorCode.INVALID_REQUEST
    if item.recovering and (len(isr) > 1 or not state.recovering):
        return ErrorCode.INVALID_REQUEST
    standing_of = work.standing_in(state)
    for member, broker_epoch in item.isr:
        known = work.image.brokers.get(member)
        if known is None or known.broker_epoch != broker_epoch:
            return ErrorCode.INELIGIBLE_REPLICA
        if member not in state.isr and standing_of(member) < Standing.LIVE:
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _change(work: Workspace, state: PartitionState, item: AlterPartitionItem) -> PartitionChange:
    minimum = work.image.min_insync_replicas(state)
    isr = tuple(member for member, _ in item.isr)
    elr = elr_after(state, isr, minimum)
    lost = () if len(isr) >= minimum else tuple(b for b in state.lost if b not in isr)
    moved = completed(work, state, isr, recovering=item.recovering)
    if moved is not None:
        return moved
    return PartitionChange(
        topic_id=state.topic_id,
        partition=state.partition,
        isr=isr,
        elr=None if elr == state.elr else elr,
        lost=None if lost == state.lost else lost,
        recovering=None if item.recovering == state.recovering else item.recovering,
    )
