"""The change of a group's protocol while the group has members (KIP-848, "online migration").

    classic  --a member of the consumer protocol joins, and all classic members are consumers------> consumer
    consumer --the last member of the consumer protocol leaves, and only classic members remain----> classic

Each migration writes one batch of records: the tombstones of the old group and the state of the new group. A
coordinator that loads the log therefore reads the group either before or after its migration.

*Upgrade.* The members keep their ids. The generation becomes the group epoch and the member epochs, so that heartbeats
and commits of the members remain valid. A member may own the partitions that its last SyncGroup assigned to it, and the
partitions that it reported as owned in its last JoinGroup, because during a rebalance a member with cooperative
rebalancing owns either the former or the latter. If two members claim a partition, its owner is the member to which the
partition was assigned. If the partition was assigned to neither member, its owner is the member that reported it in the
later generation, because the earlier report is outdated. The member that joins raises the group epoch, and all members
are reconciled to new targets. No member gets a partition that another member may still own. Waiting JoinGroup requests
are handled by the new group at once, and waiting SyncGroup requests are refused, so that their members join again.

*Downgrade.* All members have to join again, as in any rebalance of a classic group. Until then, each member owns its
partitions and may commit their offsets. The state is written without a leader, so that a coordinator that loads the log
knows that this generation has no assignment.
"""

from __future__ import annotations

from collections.abc import Mapping

from odradek_broker.groups.classic_group import ClassicGroup
from odradek_broker.groups.classic_members import Member, PendingMembers
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
    """Return a consumer group with the same members, and the records of the migration.

    Return None if the migration policy or the size limit forbids the migration, or if the members are not consumers.
    The caller has to respond to the requests that wait in `classic`.
    """
    if not settings.migration_policy.upgrades or classic.protocol_type != PROTOCOL_TYPE:
        return None
    if len(classic.members) > settings.members_max:
        return None
    try:
        subscriptions = {m: _subscription(member) for m, member in classic.members.items()}
        assigned = {
            m: by_id(read_assignment(member.assignment), catalog)
            for m, member in classic.members.items()
        }
    except Malformed:
        return None
    group = ConsumerGroup(
        group_id=classic.group_id,
        settings=settings,
        pending_members=PendingMembers(classic.pending_members),
    )
    records: list[GroupRecord] = [ClassicGroupRecord(group_id=classic.group_id, state=None)]
    for member_id, member in classic.members.items():
        group.state.emit_member(_consumer_member(member, subscriptions[member_id]), records)
    group.state.emit_epoch(classic.generation, records)
    owned = _without_double_claims(assigned, subscriptions, catalog)
    for member_id in classic.members:
        group.state.emit_target(member_id, assigned[member_id], records)
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
    assigned: Mapping[MemberId, Assignment],
    subscriptions: Mapping[MemberId, Subscription],
    catalog: TopicCatalog,
) -> dict[MemberId, Assignment]:
    """Return the partitions that each member may own, so that each partition has one owner. The module's docstring has
    the rule.
    """
    owned: dict[MemberId, Assignment] = {member_id: {} for member_id in assigned}
    taken: Assignment = {}

    def claim(member_id: MemberId, claimed: Assignment) -> None:
        nonlocal taken
        untaken = minus(claimed, taken)
        owned[member_id] = plus(owned[member_id], untaken)
        taken = plus(taken, untaken)

    for member_id, assignment in assigned.items():
        claim(member_id, assignment)
    for member_id in sorted(assigned, key=lambda m: (-subscriptions[m].generation, m)):
        claim(member_id, by_id(subscriptions[member_id].owned, catalog))
    return owned


def may_downgrade(group: ConsumerGroup, *, members_max: int, without: MemberId | None) -> bool:
    """Return whether the group may become a classic group: the policy allows this, all members except `without` use the
    classic protocol, and their number is 1 to `members_max`.
    """
    members = [m for member_id, m in group.state.members.items() if member_id != without]
    return (
        group.settings.migration_policy.downgrades
        and 0 < len(members) <= members_max
        and all(m.classic is not None for m in members)
    )


def downgraded(
    group: ConsumerGroup, *, initial_rebalance_delay_ms: int, members_max: int, now_ms: int
) -> tuple[ClassicGroup, list[GroupRecord]]:
    """Return a classic group with the same members, and the records of the migration. The group has to rebalance."""
    protocols = {m: _classic_protocols(member) for m, member in group.state.members.items()}
    shared = set.intersection(*({name for name, _ in c.protocols} for c in protocols.values()))
    first = next(iter(protocols.values()))
    protocol = next((name for name, _ in first.protocols if name in shared), "")
    state = ClassicGroupState(
        protocol_type=PROTOCOL_TYPE,
        # No current or former member has received a higher epoch, so no epoch of a member equals a later generation.
        generation=group.state.epoch,
        protocol=protocol,
        leader=None,
        state_timestamp_ms=now_ms,
        members=tuple(
            _classic_member(group, member, protocols[member_id], protocol)
            for member_id, member in group.state.members.items()
        ),
    )
    classic = ClassicGroup(
        group_id=group.group_id,
        initial_rebalance_delay_ms=initial_rebalance_delay_ms,
        members_max=members_max,
        pending_members=PendingMembers(group.pending_members),
    )
    classic.restore(state)
    classic.begin_sessions(now_ms=now_ms)
    classic.members.come_from_consumer_group(
        protocols={m: of_member.protocols for m, of_member in protocols.items()},
        epochs={m: current.member_epoch for m, current in group.state.currents.items()},
    )
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
    owned = plus(current.assigned, current.pending_revocation)
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
        assignment=write_assignment(by_name(group, owned), version=version),
    )
