"""Rules for one partition: which replica leads it, which stay in its ISR, and which stay eligible as leader in its
ELR.

`settle` decides what fencing, unfencing, restarts and controlled shutdown change in a partition: from the
present state of the brokers it computes the leader, ISR and ELR that the partition must have, and returns
None if nothing has to change. The controller records the change of a broker and then calls `settle` for the
partitions of that broker. Because `settle` depends only on the present state, a second call changes nothing,
and a new controller calls it for all partitions to finish what the last controller began.

What a replica can be, worst first:

    FENCED      not registered, or fenced,     leaves the ISR; below the minimum it enters the ELR
                or its replica failed
    LEAVING     in controlled shutdown         leads on only if no other replica can; leaves an
                                               ISR that stays at its minimum without it
    READ_ONLY   LEAVING, because its disk is   like LEAVING; elected if no better replica can be: it
                full, not because it stops     serves readers, and producers are refused
    LIVE        may lead
    STREAMING   LIVE, and its heartbeat stream is open: preferred to one that is only LIVE

The order of election (rule R21): the first replica, in replica order, that is in the ISR and STREAMING; then
one that is LIVE; then one that is READ_ONLY, unless the present leader is LEAVING and can go on. Only if
the ISR is empty, a member of the ELR is elected by the same order and becomes the whole ISR. A READ_ONLY
leader gives way as soon as a LIVE replica is in the ISR. A replica in `lost` may have lost acknowledged
bytes: it is never elected here (R22, leaders.py).

Why no acknowledged record is lost: it is in every member of the ISR of its time and below the high
watermark, which needs |ISR| >= min. A replica that leaves a full ISR loses its claim; one that leaves a
smaller one keeps it in the ELR, because the high watermark has not moved since. So each of ISR and ELR
holds all that was acknowledged, unless it lost bytes; and then it is in `lost`.

ISR and ELR are never both empty (I6 in tests/sim/README.md): a member leaves both only if it lost bytes and another
member is left. The last copy stays in the ELR (rule R19), unless its disk was replaced and it has nothing. Then the
other replicas, which had fallen behind, are the best that there is: they enter the ELR and `lost`, so that the longest
of their logs is elected by rule R22, and the empty one does not become the log of the partition. A broker that was
unregistered is treated like that when its id registers again: nothing tells its old disk from a new one, and if it is
the old one, it reports the longest log. So is a replica that misses records which it had synced: its log was cut where
the damage begins, or its directory is gone. A replica that only lost power has all that it had synced, and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum

from odradek_protocol.identity import BrokerId
from odradek_protocol.metadata.image import PartitionState
from odradek_protocol.metadata.records import NO_LEADER, PartitionChange


class Standing(IntEnum):
    """How well a broker can serve a partition now, from FENCED to STREAMING. The docstring of the module explains the
    values.
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
    """Return the change that a partition needs because of the present state of its brokers; None if it needs none.

    Args:
        state: the partition as it is.
        standing_of: returns the present Standing of a broker.
        min_insync_replicas: the partition's effective minimum.
        lost: brokers whose replica of this partition may have lost bytes just now, because the power failed or a
            directory was lost. Only those in the ISR or ELR matter.
        emptied: those of `lost` than which other replicas may have more: a disk was replaced or is unknown, or
            records that had been synced are missing.
    """
    lost_now = set(lost) & {*state.isr, *state.elr}
    isr, fenced = _split_isr(state, lost_now, standing_of, min_insync_replicas)
    claims = [b for b in state.elr if b not in lost_now]
    claims += [b for b in fenced if b not in claims]
    elr = _in_order(claims, state.replicas) if len(isr) < min_insync_replicas else ()
    if not isr and not elr:
        # Rule R19: the last replica that has all records stays eligible.
        empty = set(emptied)
        last = (lost_now - empty) or ({*state.replicas} - empty) or lost_now
        elr = _in_order(last, state.replicas)
        lost_now |= last
    gone = _in_order({*state.lost, *lost_now}, state.replicas) if len(state.replicas) > 1 else ()

    leader = _keeps_leading(state.leader, isr, standing_of)
    if leader == NO_LEADER:
        leader, isr, elr = _elect(state.replicas, isr, elr, gone, standing_of)
        # A leader that is leaving stays unless a better one can be elected.
        if state.leader in isr and (leader == NO_LEADER or standing_of(leader) < Standing.LIVE):
            leader = state.leader
        if len(isr) >= min_insync_replicas:
            elr = ()
    return difference(state, leader=leader, isr=isr, elr=elr, lost=gone)


def _split_isr(
    state: PartitionState, lost_now: set[BrokerId], standing_of: StandingOf, minimum: int
) -> tuple[Brokers, Brokers]:
    """Return the members that stay in the ISR, and the fenced members that leave it."""
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
    """Return leader, ISR and ELR after a clean election (rule R21); NO_LEADER if no replica may lead."""
    pool = isr or elr
    for wanted in (Standing.STREAMING, Standing.LIVE, Standing.READ_ONLY):
        for broker in replicas:
            if broker in pool and broker not in lost and standing_of(broker) >= wanted:
                if isr:
                    return broker, isr, elr
                return broker, (broker,), tuple(b for b in elr if b != broker)
    return NO_LEADER, isr, elr


def clean_candidate_exists(state: PartitionState, standing_of: StandingOf) -> bool:
    """Return whether a leader can be elected without asking brokers for their log end offsets."""
    leader, _, _ = _elect(state.replicas, state.isr, state.elr, state.lost, standing_of)
    return leader != NO_LEADER


def elect_preferred(state: PartitionState, standing_of: StandingOf) -> PartitionChange | None:
    """Return the change that makes the first replica the leader, if it is in sync, may lead and is not the leader yet;
    otherwise None.
    """
    preferred = state.replicas[0]
    if state.leader == preferred or preferred not in state.isr or preferred in state.lost:
        return None
    if standing_of(preferred) < Standing.LIVE:
        return None
    return PartitionChange(topic_id=state.topic_id, partition=state.partition, leader=preferred)


def elect_unclean(state: PartitionState, leader: BrokerId) -> PartitionChange:
    """Elect a replica uncleanly (rule R22). Its log becomes the partition's log, and the partition is RECOVERING."""
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
    """Return the ELR that belongs to an ISR which the leader proposes (rule R18)."""
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
    """Return the change from `state` to these values; None if they are the present ones."""
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
    wanted = set(members)
    return tuple(b for b in replicas if b in wanted)
