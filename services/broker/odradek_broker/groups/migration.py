"""A group goes from one protocol to the other with its members alive (KIP-848, "online migration").

    classic  --a member of the consumer protocol joins, and the classic ones are consumers--> consumer
    consumer --the last member of the consumer protocol is gone, classic ones are left------> classic

Either way is one decision, and one batch of records: the one kind's tombstones and the other kind's state. A
coordinator that loads the log therefore sees the group before, or after.

*Up.* The members keep their ids; generation becomes epoch, so that their heartbeats and commits stay good. What a
member may own is what its last sync gave it and what it said when it joined, since a cooperative member owns either
while a rebalance is on. A partition that two of them claim goes to who was given it, or else to who said so last:
the other's claim is from before it was taken out. The joining member raises the epoch, and all reconcile to new
targets; nobody is given what another may still own. Who waits in a join is let into the new group at once; who waits
in a sync is told to join again.

*Down.* All join again, as after any change of a classic group. Until they have, each owns and commits what it had. The
state is written with no leader: a coordinator that loads it knows that nobody assigned it.
"""

from __future__ import annotations

from collections.abc import Mapping

from odradek_broker.groups.classic_group import ClassicGroup
from odradek_broker.groups.classic_members import Member
from odradek_broker.groups.classic_membership import by_name
from odradek_broker.groups.consumer_group import ConsumerGroup
from odradek_broker.groups.formats.consumer_protocol import (
    PROTOCOL_TYPE,
    Subscription,
    by_id,
    read_assignment,
    read_subscription,
    write_assignment,
)
from odradek_broker.groups.messages import Assignment, TopicCatalog
from odradek_broker.groups.reconciliation import NOTHING_OWNED, MemberState, minus, plus
from odradek_broker.groups.records import (
    ClassicGroupRecord,
    ClassicGroupState,
    ClassicMember,
    ClassicProtocols,
    ConsumerMember,
    CurrentAssignment,
    GroupRecord,
)
from odradek_broker.groups.settings import ConsumerGroupSettings
from odradek_protocol.identity import MemberId
from odradek_protocol.primitives import Malformed


def upgraded(
    classic: ClassicGroup, settings: ConsumerGroupSettings, catalog: TopicCatalog, *, now_ms: int
) -> tuple[ConsumerGroup, list[GroupRecord]] | None:
    """The same members in a consumer group; None where they may not go, or are no consumers.

    The caller answers the joins and syncs that wait in `classic`.
    """
    if not settings.migration_policy.upgrades or classic.protocol_type != PROTOCOL_TYPE:
        return None
    if len(classic.members) > settings.members_max:
        return None
    try:
        subscriptions = {m: _subscription(member) for m, member in classic.members.items()}
        given = {
            m: by_id(read_assignment(member.assignment), catalog)
            for m, member in classic.members.items()
        }
    except Malformed:
        return None
    group = ConsumerGroup(group_id=classic.group_id, settings=settings)
    group.pending_members = dict(classic.pending_members)
    records: list[GroupRecord] = [ClassicGroupRecord(group_id=classic.group_id, state=None)]
    for member_id, member in classic.members.items():
        group.state.emit_member(_consumer_member(member, subscriptions[member_id]), records)
    group.state.emit_epoch(classic.generation, records)
    owned = _without_double_claims(given, subscriptions, catalog)
    for member_id in classic.members:
        group.state.emit_target(member_id, given[member_id], records)
        current = CurrentAssignment(
            member_epoch=classic.generation,
            previous_epoch=classic.generation,
            state=MemberState.STABLE,
            assigned=owned[member_id],
            pending_revocation=NOTHING_OWNED,
        )
        group.state.emit_current(member_id, current, records)
    group.state.emit_target_epoch(classic.generation, records)
    group.begin_sessions(now_ms=now_ms)
    return group, records


def _subscription(member: Member) -> Subscription:
    return read_subscription(member.protocols[0][1])


def _consumer_member(member: Member, subscription: Subscription) -> ConsumerMember:
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topics=tuple(sorted(set(subscription.topics))),
        subscribed_regex=None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=None,
        classic=ClassicProtocols(
            session_timeout_ms=member.session_timeout_ms, protocols=member.protocols
        ),
    )


def _without_double_claims(
    given: Mapping[MemberId, Assignment],
    subscriptions: Mapping[MemberId, Subscription],
    catalog: TopicCatalog,
) -> dict[MemberId, Assignment]:
    owned: dict[MemberId, Assignment] = {member_id: {} for member_id in given}
    taken: Assignment = {}

    def claim(member_id: MemberId, wanted: Assignment) -> None:
        nonlocal taken
        fresh = minus(wanted, taken)
        owned[member_id] = plus(owned[member_id], fresh)
        taken = plus(taken, fresh)

    for member_id, assignment in given.items():
        claim(member_id, assignment)
    for member_id in sorted(given, key=lambda m: (-subscriptions[m].generation, m)):
        claim(member_id, by_id(subscriptions[member_id].owned, catalog))
    return owned


def may_downgrade(group: ConsumerGroup, *, members_max: int, without: MemberId | None) -> bool:
    """Whether all members but that one speak the classic protocol, and there are any."""
    left = [m for member_id, m in group.state.members.items() if member_id != without]
    return (
        group.settings.migration_policy.downgrades
        and 0 < len(left) <= members_max
        and all(m.classic is not None for m in left)
    )


def downgraded(
    group: ConsumerGroup, *, initial_rebalance_delay_ms: int, members_max: int, now_ms: int
) -> tuple[ClassicGroup, list[GroupRecord]]:
    """The same members, all classic, in a classic group that rebalances."""
    protocols = {m: _classic_protocols(member) for m, member in group.state.members.items()}
    shared = set.intersection(*({name for name, _ in c.protocols} for c in protocols.values()))
    first = next(iter(protocols.values()))
    protocol = next((name for name, _ in first.protocols if name in shared), "")
    state = ClassicGroupState(
        protocol_type=PROTOCOL_TYPE,
        generation=group.state.epoch,  # above what any member was told, those who are gone as well
        protocol=protocol,
        leader=None,
        state_timestamp_ms=now_ms,
        members=tuple(
            _classic_member(group, member, protocols[member_id], protocol)
            for member_id, member in group.state.members.items()
        ),
    )
    epochs = {m: current.member_epoch for m, current in group.state.currents.items()}
    classic = ClassicGroup(
        group_id=group.group_id,
        initial_rebalance_delay_ms=initial_rebalance_delay_ms,
        members_max=members_max,
    )
    classic.restore(state)
    classic.begin_sessions(now_ms=now_ms)
    classic.pending_members = dict(group.pending_members)
    for member_id, member in classic.members.items():
        member.protocols = protocols[member_id].protocols
        member.consumer_epoch = epochs[member_id]
    records = group.state.tombstones()
    records.append(ClassicGroupRecord(group_id=group.group_id, state=state))
    return classic, records


def _classic_protocols(member: ConsumerMember) -> ClassicProtocols:
    assert member.classic is not None, member.member_id
    return member.classic


def _classic_member(
    group: ConsumerGroup, member: ConsumerMember, classic: ClassicProtocols, protocol: str
) -> ClassicMember:
    current = group.state.currents[member.member_id]
    holds = plus(current.assigned, current.pending_revocation)
    metadata = dict(classic.protocols).get(protocol, b"")
    version = read_subscription(classic.protocols[0][1]).version
    return ClassicMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        subscription=metadata,
        assignment=write_assignment(by_name(group, holds), version=version),
    )
