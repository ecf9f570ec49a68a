"""The handlers of all groups of one partition of `__consumer_offsets`; `odradek_broker.coordination` hosts them.

Every handler returns a `Step` whose records have been replayed already; `GroupTable.replay` is for loading. `now_ms` is
the time of the monotonic clock, which sessions use; `wall_ms` is the time that records contain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from odradek_broker.coordinator_step import NOTHING, RequestId, Response, Step, judges, respond
from odradek_broker.groups import classic_membership, migration
from odradek_broker.groups.classic_group import ClassicGroup
from odradek_broker.groups.classic_members import NO_MEMBER, ClassicState
from odradek_broker.groups.consumer_group import JOIN_EPOCH, ConsumerGroup
from odradek_broker.groups.formats.consumer_protocol import PROTOCOL_TYPE
from odradek_broker.groups.group_table import GroupTable
from odradek_broker.groups.messages import (
    CommitOffsets,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    FetchedOffsets,
    FetchOffsets,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    OffsetsAnswer,
    Synced,
    SyncGroup,
    TopicCatalog,
)
from odradek_broker.groups.records import (
    ClassicGroupRecord,
    GroupRecord,
    OffsetCommitRecord,
    has_room_for,
    says_too_much,
)
from odradek_broker.groups.settings import GroupSettings
from odradek_protocol.identity import NO_TOPIC_ID, GroupId, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode


@dataclass(slots=True, kw_only=True)
class GroupShard:
    """The handlers of one shard; `table` is its state."""

    settings: GroupSettings
    table: GroupTable = field(init=False)

    def __post_init__(self) -> None:
        self.table = GroupTable(settings=self.settings)

    def handle_join(
        self,
        request_id: RequestId,
        join: JoinGroup,
        catalog: TopicCatalog,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> Step[GroupRecord]:
        """JoinGroup; the response comes when the rebalance is complete, or at once in a consumer group."""
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
        # A refused join leaves no group behind.
        if classic.members or classic.pending_members:
            self.table.groups[join.group_id] = classic
        return step + self.table.stamped(joined_step, wall_ms)

    def _replace_last_of_consumer_protocol(
        self, group: ConsumerGroup, join: JoinGroup, now_ms: int, wall_ms: int
    ) -> Step[GroupRecord]:
        """Remove the last member of the consumer protocol if it is static and comes back with the classic one."""
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
        """SyncGroup; the response comes when the leader has sent the assignment, or at once in a consumer group."""
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
        """Heartbeat; the response is an ErrorCode."""
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
        """ConsumerGroupHeartbeat (KIP-848)."""
        refusal = _refuse_beat(beat)
        if refusal is not ErrorCode.NONE:
            return respond(request_id, ConsumerHeartbeatAnswer(error=refusal))
        self.table.due_ms.pop(beat.group_id, None)
        present = self.table.groups.get(beat.group_id)
        if not isinstance(present, ConsumerGroup) and beat.member_epoch != JOIN_EPOCH:
            response = ConsumerHeartbeatAnswer(
                error=ErrorCode.UNKNOWN_MEMBER_ID,
                error_message=f"{beat.group_id} has no members of the consumer protocol",
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
                        error_message=f"group {beat.group_id} has members of the classic protocol",
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
        """Respond to the requests that wait in a classic group, which has become this consumer group."""
        step = classic.members.refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        joins = classic.members.take_joins(group.group_id, classic.protocol_type or "")
        for request_id, join in joins:
            records, joined = classic_membership.join(group, join, catalog, now_ms=now_ms)
            step += Step(tuple(records), (Response(request_id, joined),))
        return step

    def _maybe_downgrade(
        self, group: ConsumerGroup, now_ms: int, wall_ms: int
    ) -> Step[GroupRecord]:
        """Turn a consumer group into a classic one when its last member of the consumer protocol has left."""
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

    def handle_commit(
        self,
        request_id: RequestId,
        commit: CommitOffsets,
        catalog: TopicCatalog,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> Step[GroupRecord]:
        """OffsetCommit: all partitions of the request that exist, in one batch."""
        error = self._check_commit(commit, now_ms)
        if error is not ErrorCode.NONE:
            return respond(request_id, OffsetsAnswer(error=error))
        results: dict[TopicPartition, ErrorCode] = {}
        records: list[GroupRecord] = []
        for partition, committed in commit.offsets.items():
            topic_id = catalog.id_of(partition)
            if topic_id is None:
                results[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            if len(committed.metadata.encode()) > self.settings.offset_metadata_bytes_max:
                results[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            results[partition] = ErrorCode.NONE
            record = OffsetCommitRecord(
                group_id=commit.group_id,
                partition=partition,
                committed=replace(committed, topic_id=topic_id, commit_timestamp_ms=wall_ms),
            )
            self.table.offsets.replay(record)
            records.append(record)
        response = OffsetsAnswer(partitions=results)
        return Step(tuple(records), (Response(request_id, response),))

    @judges
    def _check_commit(self, commit: CommitOffsets, now_ms: int) -> ErrorCode:
        group = self.table.groups.get(commit.group_id)
        if not commit.group_id or not has_room_for(commit.group_id):
            return ErrorCode.INVALID_GROUP_ID
        if group is None:
            is_alone = commit.generation_or_epoch < 0
            return ErrorCode.NONE if is_alone else ErrorCode.ILLEGAL_GENERATION
        if isinstance(group, ClassicGroup):
            return group.check_commit(
                commit.member_id, commit.instance_id, commit.generation_or_epoch, now_ms=now_ms
            )
        return group.check_epoch(commit.member_id, commit.generation_or_epoch, commit.instance_id)

    @judges
    def handle_fetch_offsets(self, request_id: RequestId, fetch: FetchOffsets) -> Step[GroupRecord]:
        """OffsetFetch of one group."""
        group = self.table.groups.get(fetch.group_id)
        if isinstance(group, ConsumerGroup) and fetch.member_id is not None:
            error = group.check_epoch(fetch.member_id, fetch.member_epoch)
            if error is not ErrorCode.NONE:
                return respond(request_id, FetchedOffsets(error=error))
        committed = self.table.offsets.of(fetch.group_id)
        partitions = list(committed) if fetch.partitions is None else fetch.partitions
        offsets = {partition: committed.get(partition) for partition in partitions}
        return respond(request_id, FetchedOffsets(error=ErrorCode.NONE, offsets=offsets))

    def handle_delete_offsets(
        self,
        request_id: RequestId,
        group_id: GroupId,
        partitions: Sequence[TopicPartition],
    ) -> Step[GroupRecord]:
        """OffsetDelete (KIP-496): refused for topics that a member subscribes to, or may subscribe to."""
        if group_id not in self.table.groups and not self.table.offsets.of(group_id):
            return respond(request_id, OffsetsAnswer(error=ErrorCode.GROUP_ID_NOT_FOUND))
        group, subscribed = self.table.groups.get(group_id), self.table.subscribed(group_id)
        if (
            isinstance(group, ClassicGroup)
            and not group.is_empty
            and group.protocol_type != PROTOCOL_TYPE
        ):
            return respond(request_id, OffsetsAnswer(error=ErrorCode.NON_EMPTY_GROUP))
        results = {
            p: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if subscribed is None or p.topic in subscribed
            else ErrorCode.NONE
            for p in partitions
        }
        records = self._forget(
            group_id, [p for p, error in results.items() if error is ErrorCode.NONE]
        )
        response = OffsetsAnswer(partitions=results)
        return Step(tuple(records), (Response(request_id, response),))

    def forget_deleted_topics(self, catalog: TopicCatalog) -> Step[GroupRecord]:
        """Delete the offsets of partitions that no longer exist, also if a new topic has the same name.

        `catalog` must be at least as new as those that the commits in the log were checked against.
        """
        records: list[GroupRecord] = []
        for group_id in list(self.table.offsets.groups()):
            deleted = [
                partition
                for partition, committed in self.table.offsets.of(group_id).items()
                if (topic_id := catalog.id_of(partition)) is None
                or committed.topic_id not in (NO_TOPIC_ID, topic_id)
            ]
            records += self._forget(group_id, deleted)
        return Step(tuple(records))

    def _forget(
        self, group_id: GroupId, partitions: Sequence[TopicPartition]
    ) -> list[OffsetCommitRecord]:
        records = self.table.offsets.forget(group_id, partitions)
        for record in records:
            self.table.offsets.replay(record)
        return records

    def expire_offsets(self, *, wall_ms: int) -> Step[GroupRecord]:
        """Delete offsets past their retention, and empty groups without offsets. Call it every few minutes."""
        records: list[GroupRecord] = []
        for group_id in list(self.table.offsets.groups()):
            group, subscribed = self.table.groups.get(group_id), self.table.subscribed(group_id)
            if subscribed is None or not _has_told_all(group):
                continue
            is_empty = group is None or group.is_empty
            expired = self.table.offsets.expired(
                group_id,
                wall_ms=wall_ms,
                retention_ms=self.settings.offsets_retention_ms,
                empty_since_ms=self.table.empty_since_ms.get(group_id) if is_empty else None,
                subscribed=subscribed,
            )
            records += self._forget(group_id, list(expired))
        for group_id, group in list(self.table.groups.items()):
            if group.is_empty and not self.table.offsets.of(group_id):
                if isinstance(group, ClassicGroup) and group.state is not ClassicState.EMPTY:
                    continue
                records += self.table.forget_group(group_id)
        return Step(tuple(records))

    def handle_delete_group(self, request_id: RequestId, group_id: GroupId) -> Step[GroupRecord]:
        """DeleteGroups, for one group; the response is an ErrorCode."""
        group = self.table.groups.get(group_id)
        if group is None and not self.table.offsets.of(group_id):
            return respond(request_id, ErrorCode.GROUP_ID_NOT_FOUND)
        if group is not None and not group.is_empty:
            return respond(request_id, ErrorCode.NON_EMPTY_GROUP)
        return Step(tuple(self.table.forget_group(group_id))) + respond(request_id, ErrorCode.NONE)

    def tick(self, *, now_ms: int, wall_ms: int) -> Step[GroupRecord]:
        """End sessions and rebalances whose time is up. Call it a few times a second.

        A group is examined when its next deadline has passed, and after each request of a member.
        """
        step, due_ms = NOTHING, self.table.due_ms
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
    if not beat.group_id or not has_room_for(beat.group_id):
        return ErrorCode.INVALID_GROUP_ID
    texts = (beat.subscribed_regex or "", beat.rack_id or "", *(beat.subscribed_topics or ()))
    if not has_room_for(beat.member_id, beat.instance_id) or says_too_much(texts):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _has_told_all(group: ClassicGroup | ConsumerGroup | None) -> bool:
    """Return whether the subscriptions of all members are known: no rebalance of the group is under way."""
    if not isinstance(group, ClassicGroup):
        return True
    return group.state in (ClassicState.EMPTY, ClassicState.STABLE)
