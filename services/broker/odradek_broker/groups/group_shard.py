"""All groups of one partition of `__consumer_offsets`: what the coordination host runs.

Every handler returns a `Step` whose records are replayed already; `replay` is for loading. Times: `now_ms` is the
monotonic clock that sessions run on, `wall_ms` the clock that stands in records.
"""

from __future__ import annotations

from dataclasses import dataclass

from odradek_broker.groups import classic_membership, migration
from odradek_broker.groups.classic_group import ClassicGroup
from odradek_broker.groups.classic_roster import NO_MEMBER
from odradek_broker.groups.consumer_group import JOIN_EPOCH, ConsumerGroup
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
)
from odradek_broker.groups.offset_shard import OffsetShard
from odradek_broker.groups.records import (
    ClassicGroupRecord,
    GroupRecord,
    has_room_for,
    says_too_much,
)
from odradek_broker.groups.step import NOTHING, Answer, RequestId, Step, answer, judges
from odradek_broker.groups.topic_catalog import TopicCatalog
from odradek_protocol.identity import GroupId
from odradek_protocol.kafka.error_codes import ErrorCode


@dataclass(slots=True, kw_only=True)
class GroupShard(OffsetShard):
    """See the module's essay."""

    # --- classic protocol ------------------------------------------------------------------------

    def handle_join(
        self,
        request_id: RequestId,
        join: JoinGroup,
        catalog: TopicCatalog,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> Step:
        """JoinGroup; answered when its rebalance is complete, in a consumer group at once."""
        refusal = self._refuse_join(join)
        if refusal is not ErrorCode.NONE:
            return answer(request_id, Joined(error=refusal, member_id=join.member_id))
        self._due_ms.pop(join.group_id, None)
        step, group = NOTHING, self.groups.get(join.group_id)
        if isinstance(group, ConsumerGroup):
            step += self._replace_last_of_consumer_protocol(group, join, now_ms, wall_ms)
            if self.groups[join.group_id] is group and group.members:
                records, joined = classic_membership.join(group, join, catalog, now_ms=now_ms)
                return Step(tuple(records), (Answer(request_id, joined),))
            if not group.members:
                fresh = self._new_classic(join.group_id, generation=group.epoch)
                step += Step(tuple(group.tombstones()))
                self.groups[join.group_id] = fresh
        classic = self._classic(join.group_id)
        if classic is None:
            classic = self._new_classic(join.group_id)
        told = classic.handle_join(request_id, join, now_ms=now_ms)
        if classic.members or classic.pending_members:  # who was refused leaves no group behind
            self.groups[join.group_id] = classic
        return step + self._stamped(told, wall_ms)

    def _replace_last_of_consumer_protocol(
        self, group: ConsumerGroup, join: JoinGroup, now_ms: int, wall_ms: int
    ) -> Step:
        """A static member that comes back with the classic protocol, where all others have that too."""
        holder = group.static_holder(join.instance_id)
        if holder is None or join.member_id != NO_MEMBER:
            return NOTHING
        if group.members[holder].classic is not None:
            return NOTHING
        is_alone = len(group.members) == 1 and group.settings.migration_policy.downgrades
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
        said = (join.new_member_id, join.instance_id, join.client_id, join.protocol_type, *names)
        if not has_room_for(*said):
            return ErrorCode.INVALID_REQUEST
        if says_too_much(names, (metadata for _, metadata in join.protocols)):
            return ErrorCode.INVALID_REQUEST
        low, high = self.settings.min_session_timeout_ms, self.settings.max_session_timeout_ms
        if not low <= join.session_timeout_ms <= high:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if join.member_id and join.group_id not in self.groups:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def handle_sync(
        self, request_id: RequestId, sync: SyncGroup, *, now_ms: int, wall_ms: int
    ) -> Step:
        """SyncGroup; answered when the leader has brought the assignment, in a consumer group at once."""
        self._due_ms.pop(sync.group_id, None)
        match self.groups.get(sync.group_id):
            case ClassicGroup() as group:
                return self._stamped(group.handle_sync(request_id, sync, now_ms=now_ms), wall_ms)
            case ConsumerGroup() as group:
                return answer(request_id, classic_membership.sync(group, sync, now_ms=now_ms))
        return answer(request_id, Synced(error=ErrorCode.UNKNOWN_MEMBER_ID))

    def handle_heartbeat(
        self, request_id: RequestId, heartbeat: Heartbeat, catalog: TopicCatalog, *, now_ms: int
    ) -> Step:
        """Heartbeat; the response is an ErrorCode."""
        self._due_ms.pop(heartbeat.group_id, None)
        match self.groups.get(heartbeat.group_id):
            case ClassicGroup() as group:
                return answer(request_id, group.handle_heartbeat(heartbeat, now_ms=now_ms))
            case ConsumerGroup() as group:
                records, error = classic_membership.heartbeat(
                    group, heartbeat, catalog, now_ms=now_ms
                )
                return Step(tuple(records)) + answer(request_id, error)
        return answer(request_id, ErrorCode.UNKNOWN_MEMBER_ID)

    def handle_leave(
        self, request_id: RequestId, leave: LeaveGroup, *, now_ms: int, wall_ms: int
    ) -> Step:
        """LeaveGroup."""
        self._due_ms.pop(leave.group_id, None)
        match self.groups.get(leave.group_id):
            case ClassicGroup() as group:
                return self._stamped(group.handle_leave(request_id, leave, now_ms=now_ms), wall_ms)
            case ConsumerGroup() as group:
                records, left = classic_membership.leave(group, leave)
                step = Step(tuple(records), (Answer(request_id, left),))
                return step + self._maybe_downgrade(group, now_ms, wall_ms)
        unknown = tuple((m, i, ErrorCode.UNKNOWN_MEMBER_ID) for m, i in leave.members)
        return answer(request_id, Left(error=ErrorCode.NONE, members=unknown))

    # --- consumer protocol -----------------------------------------------------------------------

    def handle_consumer_heartbeat(
        self,
        request_id: RequestId,
        beat: ConsumerHeartbeat,
        catalog: TopicCatalog,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> Step:
        """ConsumerGroupHeartbeat (KIP-848)."""
        refusal = _refuse_beat(beat)
        if refusal is not ErrorCode.NONE:
            return answer(request_id, ConsumerHeartbeatAnswer(error=refusal))
        self._due_ms.pop(beat.group_id, None)
        before = self.groups.get(beat.group_id)
        if not isinstance(before, ConsumerGroup) and beat.member_epoch != JOIN_EPOCH:
            told = ConsumerHeartbeatAnswer(
                error=ErrorCode.UNKNOWN_MEMBER_ID,
                error_message=f"{beat.group_id} has no members of the consumer protocol",
            )
            return answer(request_id, told)
        records: list[GroupRecord] = []
        match before:
            case ConsumerGroup():
                group = before
            case ClassicGroup(members=members) if members:
                upgrade = migration.upgraded(before, self.settings.consumer, catalog, now_ms=now_ms)
                if upgrade is None:
                    told = ConsumerHeartbeatAnswer(
                        error=ErrorCode.GROUP_ID_NOT_FOUND,
                        error_message=f"group {beat.group_id} has members of the classic protocol",
                    )
                    return answer(request_id, told)
                group, records = upgrade
            case _:
                if before is not None:
                    records.append(ClassicGroupRecord(group_id=beat.group_id, state=None))
                group = ConsumerGroup(group_id=beat.group_id, settings=self.settings.consumer)
        more, response = group.handle_heartbeat(beat, catalog, now_ms=now_ms)
        told_step = answer(request_id, response)
        if response.error is not ErrorCode.NONE:
            return told_step
        self.groups[beat.group_id] = group
        step = Step((*records, *more)) + told_step
        if isinstance(before, ClassicGroup):
            return step + self._bring_over(before, group, catalog, now_ms)
        if beat.member_epoch < JOIN_EPOCH:
            return step + self._maybe_downgrade(group, now_ms, wall_ms)
        return step

    # --- migration -------------------------------------------------------------------------------

    def _bring_over(
        self, classic: ClassicGroup, group: ConsumerGroup, catalog: TopicCatalog, now_ms: int
    ) -> Step:
        """Answer all who wait in a group that became that consumer group."""
        step = classic.interrupt_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        for request_id, join in classic.take_joins():
            records, joined = classic_membership.join(group, join, catalog, now_ms=now_ms)
            step += Step(tuple(records), (Answer(request_id, joined),))
        return step

    def _maybe_downgrade(self, group: ConsumerGroup, now_ms: int, wall_ms: int) -> Step:
        """Make a classic group of it when the last member of the consumer protocol is gone."""
        if not migration.may_downgrade(group, members_max=self.settings.max_size, without=None):
            return NOTHING
        classic, records = migration.downgraded(
            group,
            initial_rebalance_delay_ms=self.settings.initial_rebalance_delay_ms,
            members_max=self.settings.max_size,
            now_ms=now_ms,
        )
        self.groups[group.group_id] = classic
        return self._stamped(Step(tuple(records)), wall_ms)

    # --- administration and time -----------------------------------------------------------------

    def handle_delete_group(self, request_id: RequestId, group_id: GroupId) -> Step:
        """DeleteGroups, one of them; the response is an ErrorCode."""
        group = self.groups.get(group_id)
        if group is None and not self.offsets.of(group_id):
            return answer(request_id, ErrorCode.GROUP_ID_NOT_FOUND)
        if group is not None and group.members:
            return answer(request_id, ErrorCode.NON_EMPTY_GROUP)
        return Step(tuple(self._forget_group(group_id))) + answer(request_id, ErrorCode.NONE)

    def tick(self, *, now_ms: int, wall_ms: int) -> Step:
        """Sessions and rebalances whose time is up. Call it a few times a second.

        A group is looked at when its next time is up, and after each request of a member.
        """
        step, due_ms = NOTHING, self._due_ms
        for group_id, group in list(self.groups.items()):
            if due_ms.get(group_id, now_ms) > now_ms:
                continue
            if isinstance(group, ClassicGroup):
                step += self._stamped(group.tick(now_ms=now_ms), wall_ms)
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
    if not beat.group_id or not has_room_for(beat.group_id):
        return ErrorCode.INVALID_GROUP_ID
    said = (beat.subscribed_regex or "", beat.rack_id or "", *(beat.subscribed_topics or ()))
    if not has_room_for(beat.member_id, beat.instance_id) or says_too_much(said):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE
