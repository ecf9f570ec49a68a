"""The rules by which the controller chooses the leader, the ISR and the ELR of one partition.

`settle` computes the leader, ISR and ELR that a partition must have for the present state of its brokers. It returns
None if the partition need not change. When a broker is fenced, unfenced, restarted or shut down, the controller records
that change and then calls `settle` for the broker's partitions. `settle` depends only on the present state, so a second
call changes nothing. A new active controller calls it for all partitions, to complete the changes that the previous
controller began.

The standings of a broker for a partition, from worst to best:

    FENCED      The broker is not registered or is fenced, or its replica of this partition failed. It leaves
                the ISR. If the ISR is then below min.insync.replicas, the replica enters the ELR.
    LEAVING     The broker is in a controlled shutdown. It remains the leader only if no other replica can
                lead. It leaves the ISR if enough other replicas remain in the ISR.
    READ_ONLY   Like LEAVING, but because its disk is full. If no better replica can lead, it is elected: it
                serves consumers and refuses producers.
    LIVE        The broker may lead.
    STREAMING   The broker is LIVE and its heartbeat stream is open, so it is preferred to one that is only LIVE.

A clean election (rule R21) takes the first replica, in replica order, that is in the ISR and STREAMING; otherwise the
first that is LIVE; otherwise the first that is READ_ONLY, unless the present leader is LEAVING and can continue. If the
ISR is empty, a member of the ELR is elected by the same order and becomes the only member of the ISR. A READ_ONLY
leader is replaced as soon as a LIVE replica is in the ISR. A replica in `lost` may have lost acknowledged bytes and is
never elected by these rules (see rule R22 in leaders.py).

Why no acknowledged record is lost: an acknowledged record is below the high watermark, so it was in the logs of all
members of the ISR at a time when the ISR had at least min.insync.replicas members. A replica that leaves an ISR while
enough members remain is no longer eligible. A replica that leaves a smaller ISR stays eligible in the ELR, because the
high watermark has not moved since. So each member of the ISR and the ELR has all acknowledged records, unless it lost
bytes; such a member is in `lost`.

ISR and ELR are never both empty (I6 in tests/sim/README.md). A replica that lost bytes leaves both only if another
member remains. The last member stays in the ELR (rule R19), except when its disk was replaced, so that its log is
empty. Then the other replicas, which were out of sync, enter the ELR and `lost`, and rule R22 elects the one with the
longest log. Otherwise the empty log would become the log of the partition.

Two more cases are treated like a replaced disk. First, when a broker registers with the id of an unregistered broker,
the controller cannot tell the old disk of that id from a new one. If the disk is the old one, the broker reports the
longest log and is elected. Second, a replica may lack records that it had synced, because its log was truncated where
damage begins or its directory is gone. A replica that only lost power still has all synced records, and stays in the
ELR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum

from odradek_protocol.identity import BrokerId
from odradek_protocol.metadata.image import PartitionState
from odradek_protocol.metadata.records import NO_LEADER, PartitionChange


class Standing(IntEnum):
    """How well a broker can serve a partition now, from worst to best. The docstring of the module
    explains the values.
    """

    FENCED = 0
    LEAVING = 1
    READ_ONLY = 2
    LIVE = 3
    STREAMING = 4


StandingOf = Callable[[BrokerId], Standing]
Brokers = tuple[BrokerId, ...]


def settle(
    state: PartitionState,
    *,
    standing_of: StandingOf,
    min_insync_replicas: int,
    lost: Iterable[BrokerId] = (),
    emptied: Iterable[BrokerId] = (),
) -> PartitionChange | None:
    """Return the change that a partition needs because of the present state of its brokers, or None if it needs none.

    Args:
        state: The present state of the partition.
        standing_of: Returns the present Standing of a broker for this partition.
        min_insync_replicas: The effective minimum of the partition (KIP-966).
        lost: Brokers whose replica of this partition may just have lost bytes, because the power failed or a directory
            was lost. Brokers that are neither in the ISR nor in the ELR are ignored.
        emptied: Brokers of `lost` whose replica may have fewer records than an out-of-sync replica, because the disk
            was replaced or is unknown, or because synced records are missing.
    """
    lost_now = set(lost) & {*state.isr, *state.elr}
    isr, fenced = _split_isr(state, lost_now, standing_of, min_insync_replicas)
    claims = [b for b in state.elr if b not in lost_now]
    claims += [b for b in fenced if b not in claims]
    elr = _in_order(claims, state.replicas) if len(isr) < min_insync_replicas else ()
    if not isr and not elr:
        # Rule R19: the last replica that had all records stays eligible, unless its log may be empty now.
        empty = set(emptied)
        last = (lost_now - empty) or ({*state.replicas} - empty) or lost_now
        elr = _in_order(last, state.replicas)
        lost_now |= last
    lost_after = (
        _in_order({*state.lost, *lost_now}, state.replicas) if len(state.replicas) > 1 else ()
    )

    leader = _keeps_leading(state.leader, isr, standing_of)
    if leader == NO_LEADER:
        leader, isr, elr = _elect(state.replicas, isr, elr, lost_after, standing_of)
        # A leader with a standing below LIVE remains the leader unless a LIVE replica can be elected.
        if state.leader in isr and (leader == NO_LEADER or standing_of(leader) < Standing.LIVE):
            leader = state.leader
        if len(isr) >= min_insync_replicas:
            elr = ()
    return difference(state, leader=leader, isr=isr, elr=elr, lost=lost_after)


def _split_isr(
    state: PartitionState, lost_now: set[BrokerId], standing_of: StandingOf, minimum: int
) -> tuple[Brokers, Brokers]:
    """Return the members that stay in the ISR, and the members that leave the ISR because they are fenced."""
    staying = [b for b in state.isr if b not in lost_now and standing_of(b) > Standing.FENCED]
    fenced = tuple(b for b in state.isr if b not in lost_now and standing_of(b) is Standing.FENCED)
    for broker in [b for b in staying if standing_of(b) < Standing.LIVE]:
        others = [b for b in staying if b != broker]
        if len(others) >= minimum and any(standing_of(b) >= Standing.LIVE for b in others):
            staying = others
    return tuple(staying), fenced


def _keeps_leading(leader: BrokerId, isr: Brokers, standing_of: StandingOf) -> BrokerId:
    return leader if leader in isr and standing_of(leader) >= Standing.LIVE else NO_LEADER


def _elect(
    replicas: Brokers, isr: Brokers, elr: Brokers, lost: Brokers, standing_of: StandingOf
) -> tuple[BrokerId, Brokers, Brokers]:
    """Return the leader, ISR and ELR after a clean election (rule R21). The leader is NO_LEADER if none
    can be elected.
    """
    pool = isr or elr
    for lowest in (Standing.STREAMING, Standing.LIVE, Standing.READ_ONLY):
        for broker in replicas:
            if broker in pool and broker not in lost and standing_of(broker) >= lowest:
                if isr:
                    return broker, isr, elr
                return broker, (broker,), tuple(b for b in elr if b != broker)
    return NO_LEADER, isr, elr


def clean_candidate_exists(state: PartitionState, standing_of: StandingOf) -> bool:
    """Return whether a clean election (rule R21) can elect a leader for this partition now."""
    leader, _, _ = _elect(state.replicas, state.isr, state.elr, state.lost, standing_of)
    return leader != NO_LEADER


def elect_preferred(state: PartitionState, standing_of: StandingOf) -> PartitionChange | None:
    """Return the change that makes the preferred leader, which is the first replica, the leader of the partition.

    Return None if it already leads, is not in the ISR, or may not lead.
    """
    preferred = state.replicas[0]
    if state.leader == preferred or preferred not in state.isr or preferred in state.lost:
        return None
    if standing_of(preferred) < Standing.LIVE:
        return None
    return PartitionChange(topic_id=state.topic_id, partition=state.partition, leader=preferred)


def elect_unclean(state: PartitionState, leader: BrokerId) -> PartitionChange:
    """Return the change that elects a leader uncleanly (rule R22). The leader's log becomes the partition's log,
    and the partition is in the state RECOVERING.
    """
    return PartitionChange(
        topic_id=state.topic_id,
        partition=state.partition,
        leader=leader,
        isr=(leader,),
        elr=(),
        lost=(),
        recovering=True,
    )


def elr_after(state: PartitionState, isr: Brokers, minimum: int) -> Brokers:
    """Return the ELR that the partition has after its leader has proposed this ISR (rule R18).

    `minimum` is the effective min.insync.replicas of the partition.
    """
    if len(isr) >= minimum:
        return ()
    claims = ({*state.elr, *state.isr} - {*isr}) - {*state.lost}
    return _in_order(claims, state.replicas)


def difference(
    state: PartitionState,
    *,
    leader: BrokerId,
    isr: Brokers,
    elr: Brokers,
    lost: Brokers,
    recovering: bool | None = None,
) -> PartitionChange | None:
    """Return the change from `state` to these values, or None if the partition already has them."""
    change = PartitionChange(
        topic_id=state.topic_id,
        partition=state.partition,
        leader=None if leader == state.leader else leader,
        isr=None if isr == state.isr else isr,
        elr=None if elr == state.elr else elr,
        lost=None if lost == state.lost else lost,
        recovering=None if recovering in (None, state.recovering) else recovering,
    )
    values = (change.leader, change.isr, change.elr, change.lost, change.recovering)
    return None if values == (None,) * 5 else change


def _in_order(members: Iterable[BrokerId], replicas: Brokers) -> Brokers:
    member_set = set(members)
    return tuple(b for b in replicas if b in member_set)
