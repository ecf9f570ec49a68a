"""ISR proposals of partition leaders, and moves of partitions to other brokers by administrators.

A proposal (R17, KIP-497, KIP-903) is made by the leader for one partition epoch. It is accepted only if the sender is
the leader in the image, names exactly its leader epoch and partition epoch, and lists only replicas that may be in
sync: each by the broker epoch under which the leader knows it, so that a replica that restarted, and may have lost
bytes, is not taken for its earlier registration.

A success raises the partition epoch, never the leader epoch. It says that a change is coming; the
leader adopts the change from the image only (rule R18). A proposal of the present ISR raises the epoch as well:
with it a leader withdraws a proposal that was refused because a replica was not live at that moment.
A copy of the refused proposal may still be on its way and would be accepted later, when the leader no longer
counts that replica for its high watermark; a new partition epoch makes all copies void.

A move takes steps and never loses a copy (KIP-455):

    replicas a b c --alter to c d e--> replicas c d e a b, adding d e, removing a b
                                       (d and e catch up; the leader takes them into the ISR)
                   --all of d e in the ISR--> replicas c d e, ISR without a b, perhaps a new leader

The move completes in the batch that takes the last added replica into the ISR, so nothing has to watch for it. If the
final replicas in that ISR are fewer than their minimum (`min.insync.replicas`, at most their number), because one that
stays is not in sync, the move waits for it: the removed replicas have what was acknowledged, and without them fewer
copies would be left than the topic asks for. If that replica is lost for good, another move replaces this one, or the
minimum is lowered and the same move requested again.
Until it is complete, a move can be cancelled: the added replicas are removed and the others stay, those that the move
kept first (which one was preferred before is not recorded, as in Kafka). A completion or cancellation that removes a
replica sets a leader and so raises the leader epoch. By that the removed replica learns of it, and the leader forgets
what that replica acknowledged: added again, it begins with an empty log.
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
    """Decide each ISR proposal, independently of the others. All accepted ones are written as one batch."""
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
        # The leader is shutting down or cannot write: a replica that joined its ISR may lead from now on.
        work.unsettled.append((state.topic_id, state.partition))
    return AlterPartitionResult(partition=item.partition, partition_epoch=after.partition_epoch)


def _refusal(
    work: Workspace, state: PartitionState, broker_id: BrokerId, item: AlterPartitionItem
) -> ErrorCode:
    isr = [member for member, _ in item.isr]
    if item.leader_epoch > state.leader_epoch or item.partition_epoch > state.partition_epoch:
        # The leader has seen an epoch that is not in this log: this controller is deposed.
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
            message=f"{reassignment.partition} has {replication_factor} replicas and would then have "
            f"{len(reassignment.replicas)}; allow a change of the replication factor, or name as many",
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
        # The same request again: its first response was lost, or min.insync.replicas was lowered so that the move can
        # be completed.
        if (done := completed(work, state, state.isr, recovering=state.recovering)) is not None:
            work.write(done)
            _settle_now(work, state)
        return GOOD
    isr = tuple(b for b in state.isr if b in replicas)
    if not keep_all_records(state, replicas):
        return Outcome(
            error=ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            message=f"{reassignment.partition}: the replicas {replicas} may lack records; wait until the present move "
            "is complete, or the partition has a leader",
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
            message="the move cannot be cancelled: the replicas that this would remove may have records that the "
            "others lack; wait until the move is complete, or the partition has a leader",
        )
    work.write(_moved(state, replicas=replicas, isr=isr, adding=(), removing=()))
    _settle_now(work, state)
    return GOOD


def completed(
    work: Workspace, state: PartitionState, isr: tuple[BrokerId, ...], *, recovering: bool
) -> PartitionChange | None:
    """Return the change that completes a move if this ISR lets it complete; otherwise None."""
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
    """Return whether all added replicas are in the ISR, and enough of the final replicas are."""
    isr, removing = {*(moving.isr or ())}, {*(moving.removing or ())}
    final = {*(moving.replicas or ())} - removing
    minimum = min(work.image.min_insync_replicas(state), len(final))
    return {*(moving.adding or ())} <= isr and len(isr & final) >= minimum


def _finished(
    work: Workspace, state: PartitionState, moving: PartitionChange, *, recovering: bool
) -> PartitionChange:
    """Return the change that completes a move: without the removed replicas, and with a leader among the others."""
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
    """Return whether a partition keeps all its acknowledged records if only these replicas are left.

    One member of the ISR or ELR is enough. If all of them may have lost bytes, the longest log is being looked for
    (leaders.py), and any of those that are asked may have it.
    """
    members = {*state.isr, *state.elr}
    if members <= {*state.lost}:
        return members | {*state.lost} <= {*replicas}
    return not (members - {*state.lost}).isdisjoint(replicas)


def assignment_refusal(work: Workspace, replicas: tuple[BrokerId, ...]) -> Outcome | None:
    """Return the error of an assignment of replicas that a client sent; None if it is valid."""
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
            message=f"there is no broker {unknown[0]}, named in replicas {list(replicas)}; the registered brokers are "
            f"{sorted(work.image.brokers)}",
        )
    return None
