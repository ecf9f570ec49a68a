"""The request handlers for all groups of one partition of `__consumer_offsets`.

Every handler has already replayed the records of the `Step` that it returns; `GroupTable.replay` is called only during
a load. `now_ms` is monotonic time, for sessions and timeouts. `wall_ms` is wall-clock time, for records.
`odradek_broker.coordination` hosts the shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from odradek_broker.coordinator_step import NOTHING, RequestId, Response, Step, judges, respond
from odradek_broker.groups import classic_membership, migration
from odradek_broker.groups.classic_group import ClassicGroup
from odradek_broker.groups.classic_members import NO_MEMBER
from odradek_broker.groups.consumer_group import JOIN_EPOCH, STATIC_LEAVE_EPOCH, ConsumerGroup
from odradek_broker.groups.group_table import GroupTable
from odradek_broker.groups.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    Synced,
    SyncGroup,
    TopicCatalog,
)
from odradek_broker.groups.offset_shard import OffsetShard
from odradek_broker.groups.records import (
    ClassicGroupRecord,
    GroupRecord,
    has_room_for,
    says_too_much,
)
from odradek_broker.groups.settings import GroupSettings
from odradek_protocol.identity import (
    GroupId,
)
from odradek_protocol.kafka.error_codes import ErrorCode


@dataclass(kw_only=True)
class GroupShard:
    """The handlers of one shard. `table` is its state, and `offsets` has the handlers for offsets.

    `guards` yields the numbers of guards (pending_offsets.py). All shards of a process share this iterator, so that no
    number is used twice.
    """

    settings: GroupSettings
    guards: Iterator[int] = field(default_factory=lambda: count(1))
    table: GroupTable = field(init=False)
    offsets: OffsetShard = field(init=False)

    def __post_init__(self) -> None:
        self.table = GroupTable(settings=self.settings)
        self.table.offsets.pending.numbers = self.guards
        self.offsets = OffsetShard(settings=self.settings, table=self.table)

    def handle_join(
        self,
        request_id: RequestId,
        join: JoinGroup,
        catalog: TopicCatalog,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> Step[GroupRecord]:
        """Handle JoinGroup. In a classic group, the response is sent when the rebalance is complete; in a consumer
        group, it is sent at once.
        """
        refusal = self._refuse_join(join)
        if refusal is not ErrorCode.NONE:
            return respond(request_id, Joined(error=refusal, member_id=join.member_id))
        self.table.due_ms.pop(join.group_id, None)
        step, group = NOTHING, self.table.groups.get(join.group_id)
        if isinstance(group, ConsumerGroup):
            step += self._replace_last_of_consumer_protocol(group, join, now_ms, wall_ms)
            if self.table.groups[join.group_id] is group and not group.is_empty:
                records, joined = classic_membership.join(group, join, catalog, now_ms=now_ms)
                return Step(tuple(records), (Response(request_id, joined),))
            if group.is_empty:
                successor = self.table.new_classic(join.group_id, generation=group.state.epoch)
                step += Step(tuple(group.state.tombstones()))
                self.table.groups[join.group_id] = successor
        classic = self.table.classic(join.group_id)
        if classic is None:
            classic = self.table.new_classic(join.group_id)
        joined_step = classic.handle_join(request_id, join, now_ms=now_ms)
        # A refused join must not create an empty group.
        if classic.members or classic.pending_members:
            self.table.groups[join.group_id] = classic
        return step + self.table.stamped(joined_step, wall_ms)

    def _replace_last_of_consumer_protocol(
        self, group: ConsumerGroup, join: JoinGroup, now_ms: int, wall_ms: int
    ) -> Step[GroupRecord]:
        """If a static member joins again with the classic protocol, and that member was the last one with the consumer
        protocol, remove its old member id, so that the group can become a classic group.
        """
        holder = group.state.static_holder(join.instance_id)
        if holder is None or join.member_id != NO_MEMBER:
            return NOTHING
        if group.state.members[holder].classic is not None:
            return NOTHING
        is_alone = len(group.state.members) == 1 and group.settings.migration_policy.downgrades
        if not is_alone and not migration.may_downgrade(
            group, members_max=self.settings.max_size, without=holder
        ):
            return NOTHING
        records: list[GroupRecord] = []
        group.remove(holder, records)
        return Step(tuple(records)) + self._maybe_downgrade(group, now_ms, wall_ms)

    @judges
    def _refuse_join(self, join: JoinGroup) -> ErrorCode:
        if not join.group_id or not has_room_for(join.group_id):
            return ErrorCode.INVALID_GROUP_ID
        names = [name for name, _ in join.protocols]
        texts = (join.new_member_id, join.instance_id, join.client_id, join.protocol_type, *names)
        if not has_room_for(*texts):
            return ErrorCode.INVALID_REQUEST
        if says_too_much(names, (metadata for _, metadata in join.protocols)):
            return ErrorCode.INVALID_REQUEST
        low, high = self.settings.min_session_timeout_ms, self.settings.max_session_timeout_ms
        if not low <= join.session_timeout_ms <= high:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if join.member_id and join.group_id not in self.table.groups:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def handle_sync(
        self, request_id: RequestId, sync: SyncGroup, *, now_ms: int, wall_ms: int
    ) -> Step[GroupRecord]:
        """Handle SyncGroup. In a classic group, the response is sent when the leader has sent the assignment; in a
        consumer group, it is sent at once.
        """
        if not sync.group_id:
            return respond(request_id, Synced(error=ErrorCode.INVALID_GROUP_ID))
        self.table.due_ms.pop(sync.group_id, None)
        match self.table.groups.get(sync.group_id):
            case ClassicGroup() as group:
                return self.table.stamped(
                    group.handle_sync(request_id, sync, now_ms=now_ms), wall_ms
                )
            case ConsumerGroup() as group:
                return respond(request_id, classic_membership.sync(group, sync, now_ms=now_ms))
        return respond(request_id, Synced(error=ErrorCode.UNKNOWN_MEMBER_ID))

    def handle_heartbeat(
        self, request_id: RequestId, heartbeat: Heartbeat, catalog: TopicCatalog, *, now_ms: int
    ) -> Step[GroupRecord]:
        """Handle Heartbeat. The response is an ErrorCode."""
        if not heartbeat.group_id:
            return respond(request_id, ErrorCode.INVALID_GROUP_ID)
        self.table.due_ms.pop(heartbeat.group_id, None)
        match self.table.groups.get(heartbeat.group_id):
            case ClassicGroup() as group:
                return respond(request_id, group.handle_heartbeat(heartbeat, now_ms=now_ms))
            case ConsumerGroup() as group:
                records, error = classic_membership.heartbeat(
                    group, heartbeat, catalog, now_ms=now_ms
                )
                return Step(tuple(records)) + respond(request_id, error)
        return respond(request_id, ErrorCode.UNKNOWN_MEMBER_ID)

    def handle_leave(
        self, request_id: RequestId, leave: LeaveGroup, *, now_ms: int, wall_ms: int
    ) -> Step[GroupRecord]:
        if not leave.group_id:
            return respond(request_id, Left(error=ErrorCode.INVALID_GROUP_ID))
        self.table.due_ms.pop(leave.group_id, None)
        match self.table.groups.get(leave.group_id):
            case ClassicGroup() as group:
                return self.table.stamped(
                    group.handle_leave(request_id, leave, now_ms=now_ms), wall_ms
                )
            case ConsumerGroup() as group:
                records, response = classic_membership.leave(group, leave)
                step = Step(tuple(records), (Response(request_id, response),))
                return step + self._maybe_downgrade(group, now_ms, wall_ms)
        unknown = tuple((m, i, ErrorCode.UNKNOWN_MEMBER_ID) for m, i in leave.members)
        return respond(request_id, Left(error=ErrorCode.NONE, members=unknown))

    def handle_consumer_heartbeat(
        self,
        request_id: RequestId,
        beat: ConsumerHeartbeat,
        catalog: TopicCatalog,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> Step[GroupRecord]:
        """Handle ConsumerGroupHeartbeat (KIP-848)."""
        refusal = _refuse_beat(beat)
        if refusal is not ErrorCode.NONE:
            return respond(request_id, ConsumerHeartbeatAnswer(error=refusal))
        self.table.due_ms.pop(beat.group_id, None)
        present = self.table.groups.get(beat.group_id)
        if not isinstance(present, ConsumerGroup) and beat.member_epoch != JOIN_EPOCH:
            response = ConsumerHeartbeatAnswer(
                error=ErrorCode.UNKNOWN_MEMBER_ID,
                error_message=f"group {beat.group_id} has no members of the consumer protocol: join again with member"
                " epoch 0",
            )
            return respond(request_id, response)
        records: list[GroupRecord] = []
        match present:
            case ConsumerGroup():
                group = present
            case ClassicGroup(members=members) if members:
                upgrade = migration.upgraded(
                    present, self.settings.consumer, catalog, now_ms=now_ms
                )
                if upgrade is None:
                    response = ConsumerHeartbeatAnswer(
                        error=ErrorCode.GROUP_ID_NOT_FOUND,
                        error_message=f"group {beat.group_id} has members of the classic protocol and cannot change to"
                        " the consumer protocol: stop these members, use group.protocol=classic, or check"
                        " group.consumer.migration.policy",
                    )
                    return respond(request_id, response)
                group, records = upgrade
            case _:
                if present is not None:
                    records.append(ClassicGroupRecord(group_id=beat.group_id, state=None))
                group = ConsumerGroup(group_id=beat.group_id, settings=self.settings.consumer)
        heartbeat_records, response = group.handle_heartbeat(beat, catalog, now_ms=now_ms)
        if response.error is not ErrorCode.NONE:
            return respond(request_id, response)
        self.table.groups[beat.group_id] = group
        step = Step((*records, *heartbeat_records)) + respond(request_id, response)
        if isinstance(present, ClassicGroup):
            return step + self._bring_over(present, group, catalog, now_ms)
        if beat.member_epoch < JOIN_EPOCH:
            return step + self._maybe_downgrade(group, now_ms, wall_ms)
        return step

    def _bring_over(
        self, classic: ClassicGroup, group: ConsumerGroup, catalog: TopicCatalog, now_ms: int
    ) -> Step[GroupRecord]:
        """Respond to the requests that wait in `classic`, a group that has become the consumer group `group`."""
        step = classic.members.refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        joins = classic.members.take_joins(group.group_id, classic.protocol_type or "")
        for request_id, join in joins:
            records, joined = classic_membership.join(group, join, catalog, now_ms=now_ms)
            step += Step(tuple(records), (Response(request_id, joined),))
        return step

    def _maybe_downgrade(
        self, group: ConsumerGroup, now_ms: int, wall_ms: int
    ) -> Step[GroupRecord]:
        """Change a consumer group into a classic group if no member uses the consumer protocol any more."""
        if not migration.may_downgrade(group, members_max=self.settings.max_size, without=None):
            return NOTHING
        classic, records = migration.downgraded(
            group,
            initial_rebalance_delay_ms=self.settings.initial_rebalance_delay_ms,
            members_max=self.settings.max_size,
            now_ms=now_ms,
        )
        self.table.groups[group.group_id] = classic
        return self.table.stamped(Step(tuple(records)), wall_ms)

    def handle_delete_group(self, request_id: RequestId, group_id: GroupId) -> Step[GroupRecord]:
        """Handle DeleteGroups for one group. The response is an ErrorCode."""
        group = self.table.groups.get(group_id)
        if not self.table.exists(group_id):
            return respond(request_id, ErrorCode.GROUP_ID_NOT_FOUND)
        has_pending = self.table.offsets.pending.has_any(group_id)
        if has_pending or (group is not None and not group.is_empty):
            return respond(request_id, ErrorCode.NON_EMPTY_GROUP)
        return Step(tuple(self.table.forget_group(group_id))) + respond(request_id, ErrorCode.NONE)

    def tick(self, *, now_ms: int, wall_ms: int) -> Step[GroupRecord]:
        """Remove members whose session has expired, and end rebalances whose timeout has passed. The host calls this a
        few times a second.

        A group is checked when its next deadline has passed, and after each request of a member.
        """
        step, due_ms = NOTHING, self.table.due_ms
        step += self.offsets.tick(now_ms=now_ms)
        for group_id, group in list(self.table.groups.items()):
            if due_ms.get(group_id, now_ms) > now_ms:
                continue
            if isinstance(group, ClassicGroup):
                step += self.table.stamped(group.tick(now_ms=now_ms), wall_ms)
                due_ms[group_id] = group.due_ms()
                continue
            records = group.tick(now_ms=now_ms)
            due_ms[group_id] = group.due_ms(now_ms=now_ms)
            if records:
                due_ms.pop(group_id)
                step += Step(tuple(records)) + self._maybe_downgrade(group, now_ms, wall_ms)
        return step


@judges
def _refuse_beat(beat: ConsumerHeartbeat) -> ErrorCode:
    if not has_room_for(beat.group_id):
        return ErrorCode.INVALID_GROUP_ID
    # As in Kafka, an empty id (even an empty group id) is refused with INVALID_REQUEST, because an empty id is a bug of
    # the client, not a wrong setting.
    named = (beat.group_id, beat.member_id, beat.instance_id, beat.rack_id)
    if any(text is not None and not text.strip() for text in named):
        return ErrorCode.INVALID_REQUEST
    if beat.member_epoch < STATIC_LEAVE_EPOCH:
        return ErrorCode.INVALID_REQUEST
    if beat.member_epoch == STATIC_LEAVE_EPOCH and beat.instance_id is None:
        return ErrorCode.INVALID_REQUEST
    texts = (beat.subscribed_regex or "", beat.rack_id or "", *(beat.subscribed_topics or ()))
    if not has_room_for(beat.member_id, beat.instance_id) or says_too_much(texts):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE
