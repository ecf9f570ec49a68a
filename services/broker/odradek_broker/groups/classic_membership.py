"""Members of the classic protocol inside a consumer group (KIP-848, online migration).

The coordinator assigns the partitions, so no member waits for another member, and the response to each request is sent
at once:

    JoinGroup    stores the member's subscription and owned partitions, and reconciles the member. The generation in
                 the response is the member epoch, and the member is never the leader.
    SyncGroup    returns the partitions that the member owns now, as a ConsumerProtocolAssignment.
    Heartbeat    returns REBALANCE_IN_PROGRESS if the member has to join again, because the group epoch has risen, the
                 member has to revoke partitions, or partitions for which it waits are free.
    LeaveGroup   removes the member.

In the state UNREVOKED, SyncGroup returns fewer partitions than the member owns. A member with cooperative rebalancing
revokes the partitions that SyncGroup no longer returns, and joins again with the remaining ones. A member with eager
rebalancing owns no partitions when it joins. A member is removed if it does not join again, or does not send SyncGroup
after JoinGroup, within its rebalance timeout.

As in a classic group, a new member gets an id before it joins. A member with an unknown id has to start without an id,
so that it cannot claim partitions that have been assigned to others.
"""

from __future__ import annotations

from odradek_broker.groups.consumer_group import ConsumerGroup
from odradek_broker.groups.formats.consumer_protocol import (
    PROTOCOL_TYPE,
    Subscription,
    by_id,
    read_subscription,
    write_assignment,
)
from odradek_broker.groups.messages import (
    Assignment,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    Synced,
    SyncGroup,
    TopicCatalog,
)
from odradek_broker.groups.reconciliation import MemberState, free_of, minus
from odradek_broker.groups.records import ClassicProtocols, ConsumerMember, GroupRecord
from odradek_protocol.identity import MemberId, PartitionIndex, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.primitives import Malformed

NO_MEMBER = MemberId("")


def join(
    group: ConsumerGroup, request: JoinGroup, catalog: TopicCatalog, *, now_ms: int
) -> tuple[list[GroupRecord], Joined]:
    """Handle JoinGroup of a classic member of a consumer group. Return the records and the response."""
    error, subscription = _refuse_join(group, request)
    if subscription is None:
        return [], Joined(error=error, member_id=request.member_id)
    member_id = request.member_id
    if member_id == NO_MEMBER:
        member_id = request.new_member_id
        if request.instance_id is None and request.requires_known_member:
            group.pending_members.hand_out(member_id, ends_ms=now_ms + request.session_timeout_ms)
            return [], Joined(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
    group.pending_members.use(member_id)
    records: list[GroupRecord] = []
    restarted = request.member_id == NO_MEMBER
    if restarted:
        group.take_over_static(member_id, request.instance_id, records)
    current = group.settle_member(
        _member_of(member_id, request, subscription),
        catalog,
        owned=by_id(subscription.owned, catalog),
        restarted=restarted and member_id in group.state.members,
        now_ms=now_ms,
        records=records,
    )
    group.begin_duty(member_id, now_ms=now_ms, renew=True)
    return records, Joined(
        error=ErrorCode.NONE,
        generation=current.member_epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol=request.protocols[0][0],
        member_id=member_id,
    )


def _refuse_join(group: ConsumerGroup, request: JoinGroup) -> tuple[ErrorCode, Subscription | None]:
    """Return (NONE, subscription), or (error code, None) if the request is refused."""
    member = group.state.members.get(request.member_id)
    holder = group.state.static_holder(request.instance_id)
    if request.member_id != NO_MEMBER:
        if holder is not None and holder != request.member_id:
            return ErrorCode.FENCED_INSTANCE_ID, None
        if member is None and request.member_id not in group.pending_members:
            return ErrorCode.UNKNOWN_MEMBER_ID, None
        if member is not None and member.classic is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, None
    is_stranger = member is None and holder is None
    pending = len(group.pending_members) if request.member_id == NO_MEMBER else 0
    if is_stranger and max(len(group.state.members), pending) >= group.settings.members_max:
        return ErrorCode.GROUP_MAX_SIZE_REACHED, None
    names = {name for name, _ in request.protocols}
    others = [m.classic for m in group.state.members.values() if m.member_id != request.member_id]
    shared = [{name for name, _ in classic.protocols} for classic in others if classic is not None]
    if request.protocol_type != PROTOCOL_TYPE or not names.intersection(*shared):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None
    try:
        return ErrorCode.NONE, read_subscription(request.protocols[0][1])
    except Malformed:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None


def _member_of(
    member_id: MemberId, request: JoinGroup, subscription: Subscription
) -> ConsumerMember:
    return ConsumerMember(
        member_id=member_id,
        instance_id=request.instance_id,
        rack_id=subscription.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topics=tuple(sorted(set(subscription.topics))),
        subscribed_regex=None,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        server_assignor=None,
        classic=ClassicProtocols(
            session_timeout_ms=request.session_timeout_ms, protocols=request.protocols
        ),
    )


def sync(group: ConsumerGroup, request: SyncGroup, *, now_ms: int) -> Synced:
    """Handle SyncGroup of a classic member of a consumer group. Return the response."""
    error = _check(group, request.member_id, request.instance_id, request.generation)
    if error is not ErrorCode.NONE:
        return Synced(error=error)
    classic = group.state.members[request.member_id].classic
    assert classic is not None, request.member_id
    protocol, metadata = classic.protocols[0]
    if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol not in (
        None,
        protocol,
    ):
        return Synced(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    group.touch(request.member_id, now_ms=now_ms)
    current = group.state.currents[request.member_id]
    if group.state.epoch > current.member_epoch and current.state != MemberState.UNREVOKED:
        group.begin_duty(request.member_id, now_ms=now_ms, renew=False)
        return Synced(error=ErrorCode.REBALANCE_IN_PROGRESS)
    group.end_duty(request.member_id)
    version = read_subscription(metadata).version
    return Synced(
        error=ErrorCode.NONE,
        protocol_type=PROTOCOL_TYPE,
        protocol=protocol,
        assignment=write_assignment(by_name(group, current.assigned), version=version),
    )


def heartbeat(
    group: ConsumerGroup, request: Heartbeat, catalog: TopicCatalog, *, now_ms: int
) -> tuple[list[GroupRecord], ErrorCode]:
    """Handle Heartbeat of a classic member of a consumer group. Return the records and an error code.

    REBALANCE_IN_PROGRESS means that the member has to join again.
    """
    member_id = request.member_id
    error = _check(group, member_id, request.instance_id, request.generation)
    if error is not ErrorCode.NONE:
        return [], error
    records: list[GroupRecord] = []
    group.touch(member_id, now_ms=now_ms)
    group.update_epoch(catalog, records, subscription_changed=False)
    if not _must_join_again(group, member_id):
        return records, ErrorCode.NONE
    group.begin_duty(member_id, now_ms=now_ms, renew=False)
    return records, ErrorCode.REBALANCE_IN_PROGRESS


def _must_join_again(group: ConsumerGroup, member_id: MemberId) -> bool:
    current = group.state.currents[member_id]
    if current.member_epoch < group.state.epoch or current.state == MemberState.UNREVOKED:
        return True
    if current.state == MemberState.STABLE:
        return False
    awaited = minus(group.state.targets.get(member_id, {}), current.assigned)
    return bool(free_of(awaited, lambda t, i: group.state.owner_of(t, i) is None))


def leave(group: ConsumerGroup, request: LeaveGroup) -> tuple[list[GroupRecord], Left]:
    """Handle LeaveGroup. The request may omit the member id of a static member, even if the member uses the consumer
    protocol.
    """
    records: list[GroupRecord] = []
    results: list[tuple[MemberId, str | None, ErrorCode]] = []
    for member_id, instance_id in request.members:
        named = member_id if instance_id is None else group.state.static_holder(instance_id)
        member = group.state.members.get(named or NO_MEMBER)
        error = ErrorCode.NONE
        if member is None:
            is_pending = group.pending_members.use(member_id) and instance_id is None
            error = ErrorCode.NONE if is_pending else ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id not in (NO_MEMBER, member.member_id):
            error = ErrorCode.FENCED_INSTANCE_ID
        elif member_id == member.member_id and member.classic is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        else:
            group.remove(member.member_id, records)
        results.append((member_id, instance_id, error))
    return records, Left(error=ErrorCode.NONE, members=tuple(results))


def by_name(
    group: ConsumerGroup, assignment: Assignment
) -> dict[TopicName, frozenset[PartitionIndex]]:
    """Convert an assignment by topic id to one by topic name. Topics that are no longer subscribed are omitted."""
    names = {snapshot.topic_id: snapshot.topic for snapshot in group.state.topics}
    return {names[t]: indexes for t, indexes in assignment.items() if t in names}


def _check(
    group: ConsumerGroup, member_id: MemberId, instance_id: str | None, generation: int
) -> ErrorCode:
    holder = group.state.static_holder(instance_id)
    if instance_id is not None and holder is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if holder is not None and holder != member_id:
        return ErrorCode.FENCED_INSTANCE_ID
    member = group.state.members.get(member_id)
    if member is None or member.classic is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if generation != group.state.currents[member_id].member_epoch:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE
