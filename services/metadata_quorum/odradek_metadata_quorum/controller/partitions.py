"""ISR proposals of partition leaders, and moves of partitions to other brokers by administrators.

The leader of a partition proposes an ISR for one partition epoch (rule R17, KIP-497, KIP-903). The proposal is accepted
only if the sender is the leader in the image, the leader epoch and the partition epoch are the present ones, and all
proposed members may be in sync. The proposal has the broker epoch of each member. So a broker that restarted and may
have lost bytes is not confused with its earlier process.

An accepted proposal raises the partition epoch, but not the leader epoch. The leader adopts the change only when the
leader's image has it (rule R18). A proposal that equals the present ISR raises the partition epoch, too. By such a
proposal a leader withdraws an earlier proposal that was refused because a replica was not live at that moment.
Otherwise a delayed copy of the refused proposal could be accepted later, when the leader does not wait for that replica
before it advances the high watermark. Because of the new partition epoch, all delayed copies are refused.

A move proceeds in steps and never loses a copy of the records (KIP-455):

    replicas a b c --alter to c d e--> replicas c d e a b, adding d e, removing a b
                                       (d and e catch up; the leader takes them into the ISR)
                   --all of d e in the ISR--> replicas c d e, ISR without a b, perhaps a new leader

A move is completed by the batch that adds the last added replica to the ISR, so no timer is needed. If this ISR then
has less than the minimum of final replicas (`min.insync.replicas`, or their number if that is lower), because a replica
that stays is out of sync, the move waits for that replica. Without the removed replicas, which have all acknowledged
records, fewer copies would remain than the topic requires. If the out-of-sync replica is lost for good, the
administrator can request another move, or lower `min.insync.replicas` and request the same move again.

A move can be cancelled until it is complete: the added replicas are removed and the others stay. In the new replica
order, the replicas that the move would have kept come first, because the former preferred leader is not recorded, as in
Kafka. A completion or cancellation that removes a replica also sets the leader and so raises the leader epoch. So the
removed replica notices that it was removed, and the leader drops the offset that this replica acknowledged. If the
replica is added again, it begins with an empty log.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek_metadata_quorum.controller.election import Standing, elr_after
from odradek_metadata_quorum.controller.requests import (
    GOOD,
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    Outcome,
    PartitionResult,
    Reassignment,
)
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import BrokerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import PartitionState
from odradek_protocol.metadata.records import NO_LEADER, PartitionChange


def alter_partitions(work: Workspace, request: AlterPartitionRequest) -> AlterPartitionResponse:
    """Decide each ISR proposal independently of the others. The accepted proposals are written as one batch."""
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
        # The leader is shutting down or cannot write. A replica that joined the ISR now may replace it.
        work.unsettled.append((state.topic_id, state.partition))
    return AlterPartitionResult(partition=item.partition, partition_epoch=after.partition_epoch)


def _refusal(
    work: Workspace, state: PartitionState, broker_id: BrokerId, item: AlterPartitionItem
) -> ErrorCode:
    isr = [member for member, _ in item.isr]
    if item.leader_epoch > state.leader_epoch or item.partition_epoch > state.partition_epoch:
        # The leader knows an epoch that is higher than that of this controller, so this controller was deposed.
        return ErrorCode.NOT_CONTROLLER
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
        broker = work.image.brokers.get(member)
        if broker is None or broker.broker_epoch != broker_epoch:
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


def alter_reassignments(
    work: Workspace,
    reassignments: Sequence[Reassignment],
    *,
    keep_replication_factor: bool = False,
) -> tuple[PartitionResult, ...]:
    """Begin, change or cancel moves of partitions; each succeeds or fails independently.

    With `keep_replication_factor`, moves that change the final number of replicas are refused (KIP-860).
    """
    return tuple(
        PartitionResult(
            partition=reassignment.partition,
            outcome=_alter_reassignment(work, reassignment, keep_replication_factor),
        )
        for reassignment in reassignments
    )


def _alter_reassignment(
    work: Workspace, reassignment: Reassignment, keep_replication_factor: bool
) -> Outcome:
    topic = work.image.topic(reassignment.partition.topic)
    index = reassignment.partition.partition
    if topic is None or not 0 <= index < len(topic.partitions):
        return Outcome(
            error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            message=f"there is no {reassignment.partition}",
        )
    state = topic.partitions[index]
    if reassignment.replicas is None:
        return _cancel(work, state)
    replication_factor = len(state.replicas) - len(state.removing)
    if keep_replication_factor and len(reassignment.replicas) != replication_factor:
        return Outcome(
            error=ErrorCode.INVALID_REPLICATION_FACTOR,
            message=f"{reassignment.partition} has {replication_factor} replicas, but the new assignment has "
            f"{len(reassignment.replicas)}: name {replication_factor} brokers, or allow another number of replicas",
        )
    refusal = assignment_refusal(work, reassignment.replicas)
    if refusal is not None:
        return refusal
    # A new move replaces the one in progress: replicas that only the old move adds are removed.
    present = tuple(b for b in state.replicas if b not in state.adding)
    adding = tuple(b for b in reassignment.replicas if b not in present)
    removing = tuple(b for b in present if b not in reassignment.replicas)
    replicas = reassignment.replicas + removing
    if (replicas, adding, removing) == (state.replicas, state.adding, state.removing):
        # The request is repeated because the first response was lost, or because min.insync.replicas was lowered, so
        # that the move can be completed now.
        if (done := completed(work, state, state.isr, recovering=state.recovering)) is not None:
            work.write(done)
            _settle_now(work, state)
        return GOOD
    isr = tuple(b for b in state.isr if b in replicas)
    if not keep_all_records(state, replicas):
        return Outcome(
            error=ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            message=f"{reassignment.partition}: the replicas {replicas} may lack acknowledged records; wait until the "
            "move in progress is complete, or until the partition has a leader",
        )
    target = _moved(state, replicas=replicas, isr=isr, adding=adding, removing=removing)
    if _is_complete(work, state, target):
        target = _finished(work, state, target, recovering=state.recovering)
    work.write(target)
    _settle_now(work, state)
    return GOOD


def _cancel(work: Workspace, state: PartitionState) -> Outcome:
    if not state.adding and not state.removing:
        return Outcome(
            error=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, message="this partition is not being moved"
        )
    replicas = tuple(b for b in state.replicas if b not in state.adding)
    isr = tuple(b for b in state.isr if b in replicas)
    if not keep_all_records(state, replicas):
        return Outcome(
            error=ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            message="the move cannot be cancelled now: the added replicas, which would be removed, may have records "
            "that the others lack; wait until the move is complete, or until the partition has a leader",
        )
    work.write(_moved(state, replicas=replicas, isr=isr, adding=(), removing=()))
    _settle_now(work, state)
    return GOOD


def completed(
    work: Workspace, state: PartitionState, isr: tuple[BrokerId, ...], *, recovering: bool
) -> PartitionChange | None:
    """Return the change that completes the partition's move, if there is one and this ISR allows it; otherwise None."""
    if not state.adding and not state.removing:
        return None
    moving = _moved(
        state, replicas=state.replicas, isr=isr, adding=state.adding, removing=state.removing
    )
    return (
        _finished(work, state, moving, recovering=recovering)
        if _is_complete(work, state, moving)
        else None
    )


def _is_complete(work: Workspace, state: PartitionState, moving: PartitionChange) -> bool:
    """Return whether all added replicas, and at least the minimum of the final replicas, are in the ISR of `moving`."""
    isr, removing = {*(moving.isr or ())}, {*(moving.removing or ())}
    final = {*(moving.replicas or ())} - removing
    minimum = min(work.image.min_insync_replicas(state), len(final))
    return {*(moving.adding or ())} <= isr and len(isr & final) >= minimum


def _finished(
    work: Workspace, state: PartitionState, moving: PartitionChange, *, recovering: bool
) -> PartitionChange:
    """Return the change that completes the move `moving`: the removed replicas leave, and one of the others leads."""
    assert moving.replicas is not None, moving
    assert moving.isr is not None, moving
    removing = {*(moving.removing or ())}
    replicas = tuple(b for b in moving.replicas if b not in removing)
    isr = tuple(b for b in moving.isr if b in replicas)
    leader = state.leader if state.leader in isr else NO_LEADER
    standing_of = work.standing_in(state)
    for standing in (Standing.STREAMING, Standing.LIVE):
        if leader == NO_LEADER:
            leader = next(
                (b for b in replicas if b in isr and standing_of(b) >= standing), NO_LEADER
            )
    minimum = min(work.image.min_insync_replicas(state), len(replicas))
    elr = tuple(b for b in elr_after(state, isr, minimum) if b in replicas)
    is_anyone_gone = not {*state.replicas} <= {*replicas}
    return PartitionChange(
        topic_id=state.topic_id,
        partition=state.partition,
        leader=leader if is_anyone_gone or leader != state.leader else None,
        isr=isr,
        elr=elr,
        replicas=replicas,
        adding=(),
        removing=(),
        lost=tuple(b for b in state.lost if b in replicas and b not in isr),
        recovering=recovering and len(isr) == 1,
    )


def _moved(
    state: PartitionState,
    *,
    replicas: tuple[BrokerId, ...],
    isr: tuple[BrokerId, ...],
    adding: tuple[BrokerId, ...],
    removing: tuple[BrokerId, ...],
) -> PartitionChange:
    leader = state.leader if state.leader in isr else NO_LEADER
    is_anyone_gone = not {*state.replicas} <= {*replicas}
    return PartitionChange(
        topic_id=state.topic_id,
        partition=state.partition,
        leader=leader if is_anyone_gone or leader != state.leader else None,
        isr=isr,
        elr=tuple(b for b in state.elr if b in replicas),
        replicas=replicas,
        adding=adding,
        removing=removing,
        lost=tuple(b for b in state.lost if b in replicas),
    )


def _settle_now(work: Workspace, before: PartitionState) -> None:
    state = work.image.partition(before.topic_id, before.partition)
    assert state is not None, before
    if (change := work.settled(state)) is not None:
        work.write(change)


def keep_all_records(state: PartitionState, replicas: tuple[BrokerId, ...]) -> bool:
    """Return whether a partition keeps all acknowledged records if it has only these replicas.

    One member of the ISR or ELR that lost no bytes is enough. If all members may have lost bytes, any of them may have
    the longest log (rule R22, leaders.py), so all of them must stay.
    """
    members = {*state.isr, *state.elr}
    if members <= {*state.lost}:
        return members | {*state.lost} <= {*replicas}
    return not (members - {*state.lost}).isdisjoint(replicas)


def assignment_refusal(work: Workspace, replicas: tuple[BrokerId, ...]) -> Outcome | None:
    """Return the error for the replicas that a client chose for one partition, or None if they are valid."""
    if not replicas or len(set(replicas)) != len(replicas):
        return Outcome(
            error=ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            message=f"replicas {list(replicas)} are not valid: a partition has one replica or more, "
            "each on a different broker",
        )
    unknown = [b for b in replicas if b not in work.image.brokers]
    if unknown:
        return Outcome(
            error=ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            message=f"there is no broker {unknown[0]}, which the replicas {list(replicas)} include; the registered "
            f"brokers are {sorted(work.image.brokers)}",
        )
    return None
