"""Partitions move to other brokers, step by step, without losing a copy (KIP-455).

    replicas a b c --alter to c d e--> replicas c d e a b, adding d e, removing a b
                                       (d and e catch up; the leader takes them into the ISR)
                   --all of d e in the ISR--> replicas c d e, ISR without a b, perhaps a new leader

The move completes in the batch that takes in the last of the added ones, so nobody watches for it.
Until then it may be cancelled: the added replicas go, the others stay, those first that the move
wanted (which one was preferred before is not kept, as in Kafka). A completion that removes a replica
sets a leader and so bumps the leader epoch: a removed replica is told by its epoch, too.
"""

from __future__ import annotations

from odradek_metadata_quorum.controller.decision import GOOD, Outcome
from odradek_metadata_quorum.controller.election import Standing, elr_after
from odradek_metadata_quorum.controller.requests import PartitionResult, Reassignment
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import BrokerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import PartitionState
from odradek_protocol.metadata.records import NO_LEADER, PartitionChange


def alter_reassignments(
    work: Workspace,
    reassignments: tuple[Reassignment, ...],
    *,
    keep_replication_factor: bool = False,
) -> tuple[PartitionResult, ...]:
    """Begin, change or cancel moves; each for itself.

    With `keep_replication_factor` those are refused that change how many replicas there are once
    all moves are done (KIP-860).
    """
    return tuple(
        PartitionResult(
            partition=wanted.partition, outcome=_alter(work, wanted, keep_replication_factor)
        )
        for wanted in reassignments
    )


def _alter(work: Workspace, wanted: Reassignment, keep_replication_factor: bool) -> Outcome:
    topic = work.image.topic(wanted.partition.topic)
    index = wanted.partition.partition
    if topic is None or not 0 <= index < len(topic.partitions):
        return Outcome(
            error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message=f"there is no {wanted.partition}"
        )
    state = topic.partitions[index]
    if wanted.replicas is None:
        return _cancel(work, state)
    replication_factor = len(state.replicas) - len(state.removing)
    if keep_replication_factor and len(wanted.replicas) != replication_factor:
        return Outcome(
            error=ErrorCode.INVALID_REPLICATION_FACTOR,
            message=f"{wanted.partition} has {replication_factor} replicas and would have "
            f"{len(wanted.replicas)}; allow a change of the replication factor, or give as many",
        )
    refusal = assignment_refusal(work, wanted.replicas)
    if refusal is not None:
        return refusal
    # A move under way is replaced: what it was adding and is not wanted any more goes.
    present = tuple(b for b in state.replicas if b not in state.adding)
    adding = tuple(b for b in wanted.replicas if b not in present)
    removing = tuple(b for b in present if b not in wanted.replicas)
    replicas = wanted.replicas + removing
    if (replicas, adding, removing) == (state.replicas, state.adding, state.removing):
        return GOOD  # so it is, or will be: an answer got lost
    isr = tuple(b for b in state.isr if b in replicas)
    if not isr and not [b for b in state.elr if b in replicas]:
        return Outcome(
            error=ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            message=f"{wanted.partition}: none of {replicas} has its records; wait until the "
            "present move is done",
        )
    target = _moved(state, replicas=replicas, isr=isr, adding=adding, removing=removing)
    if set(adding) <= set(isr) and set(isr) - set(removing):
        target = _finished(work, state, target, recovering=state.recovering)
    work.write(target)
    _settle_now(work, state)
    return GOOD


def _cancel(work: Workspace, state: PartitionState) -> Outcome:
    if not state.adding and not state.removing:
        return Outcome(
            error=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, message="this partition does not move"
        )
    replicas = tuple(b for b in state.replicas if b not in state.adding)
    isr = tuple(b for b in state.isr if b in replicas)
    if not isr and not [b for b in state.elr if b in replicas]:
        return Outcome(
            error=ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            message="only the replicas that would go are in sync; wait until the move is done",
        )
    work.write(_moved(state, replicas=replicas, isr=isr, adding=(), removing=()))
    _settle_now(work, state)
    return GOOD


def completed(
    work: Workspace, state: PartitionState, isr: tuple[BrokerId, ...], *, recovering: bool
) -> PartitionChange | None:
    """The end of a move, if this ISR holds all that is wanted; else None."""
    if not state.adding and not state.removing:
        return None
    staying = {*state.replicas} - {*state.removing}
    if not {*state.adding} <= {*isr} or not staying & {*isr}:
        return None
    moving = _moved(
        state, replicas=state.replicas, isr=isr, adding=state.adding, removing=state.removing
    )
    return _finished(work, state, moving, recovering=recovering)


def _finished(
    work: Workspace, state: PartitionState, moving: PartitionChange, *, recovering: bool
) -> PartitionChange:
    """The state after the removed replicas are gone, as one change from `state`."""
    assert moving.replicas is not None, moving
    assert moving.isr is not None, moving
    removing = {*(moving.removing or ())}
    replicas = tuple(b for b in moving.replicas if b not in removing)
    isr = tuple(b for b in moving.isr if b in replicas)
    leader = state.leader if state.leader in isr else NO_LEADER
    standing_of = work.standing_in(state)
    for wanted in (Standing.STREAMING, Standing.LIVE):
        if leader == NO_LEADER:
            leader = next((b for b in replicas if b in isr and standing_of(b) >= wanted), NO_LEADER)
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
    return PartitionChange(
        topic_id=state.topic_id,
        partition=state.partition,
        leader=None if state.leader in (*isr, NO_LEADER) else NO_LEADER,
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


def assignment_refusal(work: Workspace, replicas: tuple[BrokerId, ...]) -> Outcome | None:
    """What is wrong with replicas given by hand; None: nothing."""
    if not replicas or len(set(replicas)) != len(replicas):
        return Outcome(
            error=ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            message=f"{list(replicas)}: a partition has one replica or more, each on another broker",
        )
    unknown = [b for b in replicas if b not in work.image.brokers]
    if unknown:
        return Outcome(
            error=ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            message=f"{list(replicas)}: there is no broker {unknown[0]}; registered are "
            f"{sorted(work.image.brokers)}",
        )
    return None
