"""All groups of one partition of `__consumer_offsets`: what the coordination host runs.

A group is *classic* or *consumer*, by who came first; an empty one becomes the other kind when a member of that kind
joins. A group that has only offsets is a *simple* one: it exists as long as its offsets do.

Every handler returns a `Step` whose records are replayed already; `replay` is for loading. Times: `now_ms` is the
monotonic clock that sessions run on, `wall_ms` the clock that stands in records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from odradek_broker.groups.classic_group import ClassicGroup, ClassicState
from odradek_broker.groups.committed_offsets import CommittedOffsets
from odradek_broker.groups.consumer_group import ConsumerGroup, ConsumerGroupSettings
from odradek_broker.groups.group_descriptions import describe_classic, describe_consumer
from odradek_broker.groups.messages import (
    CommitOffsets,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    FetchedOffsets,
    FetchOffsets,
    GroupDescription,
    GroupListing,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    OffsetsAnswer,
    Synced,
    SyncGroup,
)
from odradek_broker.groups.records import (
    ClassicGroupRecord,
    GroupRecord,
    OffsetCommitRecord,
)
from odradek_broker.groups.step import NOTHING, Answer, RequestId, Step, answer
from odradek_broker.groups.subscription import subscribed_topics
from odradek_broker.groups.topic_catalog import TopicCatalog
from odradek_protocol.identity import GroupId, TopicName, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The group settings of a broker, under Kafka's names without their prefixes."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 10_000
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offset_metadata_bytes_max: int = 4_096
    consumer: ConsumerGroupSettings = field(
        default_factory=lambda: ConsumerGroupSettings(
            session_timeout_ms=45_000,
            heartbeat_interval_ms=5_000,
            members_max=10_000,
            default_assignor="uniform",
        )
    )


@dataclass(slots=True, kw_only=True)
class GroupShard:
    """See the module's essay."""

    settings: GroupSettings
    groups: dict[GroupId, ClassicGroup | ConsumerGroup] = field(default_factory=dict)
    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)
    _empty_since_ms: dict[GroupId, int] = field(default_factory=dict)  # wall clock

    # --- classic protocol ------------------------------------------------------------------------

    def handle_join(
        self, request_id: RequestId, join: JoinGroup, *, now_ms: int, wall_ms: int
    ) -> Step:
        """JoinGroup; answered when its rebalance is complete."""
        refusal = self._refuse_join(join)
        if refusal is not ErrorCode.NONE:
            return answer(request_id, Joined(error=refusal, member_id=join.member_id))
        step, group = NOTHING, self.groups.get(join.group_id)
        if isinstance(group, ConsumerGroup):
            if group.members:
                told = Joined(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=join.member_id)
                return answer(request_id, told)
            step, group = Step(tuple(group.tombstones())), None
        if group is None:
            group = self._new_classic(join.group_id)
            self.groups[join.group_id] = group
        return step + self._stamped(group.handle_join(request_id, join, now_ms=now_ms), wall_ms)

    def _refuse_join(self, join: JoinGroup) -> ErrorCode:
        if not join.group_id:
            return ErrorCode.INVALID_GROUP_ID
        low, high = self.settings.min_session_timeout_ms, self.settings.max_session_timeout_ms
        if not low <= join.session_timeout_ms <= high:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if join.member_id and join.group_id not in self.groups:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def handle_sync(
        self, request_id: RequestId, sync: SyncGroup, *, now_ms: int, wall_ms: int
    ) -> Step:
        """SyncGroup; answered when the leader has brought the assignment."""
        group = self._classic(sync.group_id)
        if group is None:
            return answer(request_id, Synced(error=ErrorCode.UNKNOWN_MEMBER_ID))
        return self._stamped(group.handle_sync(request_id, sync, now_ms=now_ms), wall_ms)

    def handle_heartbeat(self, request_id: RequestId, heartbeat: Heartbeat, *, now_ms: int) -> Step:
        """Heartbeat; the response is an ErrorCode."""
        group = self._classic(heartbeat.group_id)
        if group is None:
            return answer(request_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return answer(request_id, group.handle_heartbeat(heartbeat, now_ms=now_ms))

    def handle_leave(
        self, request_id: RequestId, leave: LeaveGroup, *, now_ms: int, wall_ms: int
    ) -> Step:
        """LeaveGroup."""
        group = self._classic(leave.group_id)
        if group is None:
            unknown = tuple((m, i, ErrorCode.UNKNOWN_MEMBER_ID) for m, i in leave.members)
            return answer(request_id, Left(error=ErrorCode.NONE, members=unknown))
        return self._stamped(group.handle_leave(request_id, leave, now_ms=now_ms), wall_ms)

    # --- consumer protocol -----------------------------------------------------------------------

    def handle_consumer_heartbeat(
        self,
        request_id: RequestId,
        beat: ConsumerHeartbeat,
        catalog: TopicCatalog,
        *,
        now_ms: int,
    ) -> Step:
        """ConsumerGroupHeartbeat (KIP-848)."""
        if not beat.group_id:
            return answer(request_id, ConsumerHeartbeatAnswer(error=ErrorCode.INVALID_GROUP_ID))
        step, group = NOTHING, self.groups.get(beat.group_id)
        if isinstance(group, ClassicGroup):
            if group.members:
                told = ConsumerHeartbeatAnswer(
                    error=ErrorCode.GROUP_ID_NOT_FOUND,
                    error_message=f"group {beat.group_id} has members of the classic protocol",
                )
                return answer(request_id, told)
            if beat.member_epoch == 0:
                gone = ClassicGroupRecord(group_id=beat.group_id, state=None)
                step, group = Step((gone,)), None
        if not isinstance(group, ConsumerGroup):
            if beat.member_epoch != 0:
                told = ConsumerHeartbeatAnswer(
                    error=ErrorCode.UNKNOWN_MEMBER_ID,
                    error_message=f"group {beat.group_id} does not exist",
                )
                return answer(request_id, told)
            group = ConsumerGroup(group_id=beat.group_id, settings=self.settings.consumer)
        records, response = group.handle_heartbeat(beat, catalog, now_ms=now_ms)
        if response.error is ErrorCode.NONE:
            self.groups[beat.group_id] = group
        else:
            step = NOTHING
        return step + Step(tuple(records), (Answer(request_id, response),))

    # --- offsets ---------------------------------------------------------------------------------

    def handle_commit(
        self, request_id: RequestId, commit: CommitOffsets, *, now_ms: int, wall_ms: int
    ) -> Step:
        """OffsetCommit: all partitions of the request in one batch."""
        error = self._check_commit(commit, now_ms)
        if error is not ErrorCode.NONE:
            return answer(request_id, OffsetsAnswer(error=error))
        results: dict[TopicPartition, ErrorCode] = {}
        records: list[GroupRecord] = []
        for partition, committed in commit.offsets.items():
            if len(committed.metadata.encode()) > self.settings.offset_metadata_bytes_max:
                results[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            results[partition] = ErrorCode.NONE
            record = OffsetCommitRecord(
                group_id=commit.group_id,
                partition=partition,
                committed=replace(committed, commit_timestamp_ms=wall_ms),
            )
            self.offsets.replay(record)
            records.append(record)
        told = OffsetsAnswer(partitions=results)
        return Step(tuple(records), (Answer(request_id, told),))

    def _check_commit(self, commit: CommitOffsets, now_ms: int) -> ErrorCode:
        group = self.groups.get(commit.group_id)
        if not commit.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if group is None:
            is_alone = commit.generation_or_epoch < 0
            return ErrorCode.NONE if is_alone else ErrorCode.ILLEGAL_GENERATION
        if isinstance(group, ClassicGroup):
            return group.check_commit(
                commit.member_id, commit.instance_id, commit.generation_or_epoch, now_ms=now_ms
            )
        return group.check_epoch(commit.member_id, commit.generation_or_epoch)

    def handle_fetch_offsets(self, request_id: RequestId, fetch: FetchOffsets) -> Step:
        """OffsetFetch of one group."""
        group = self.groups.get(fetch.group_id)
        if isinstance(group, ConsumerGroup) and fetch.member_id is not None:
            error = group.check_epoch(fetch.member_id, fetch.member_epoch)
            if error is not ErrorCode.NONE:
                return answer(request_id, FetchedOffsets(error=error))
        known = self.offsets.of(fetch.group_id)
        wanted = list(known) if fetch.partitions is None else fetch.partitions
        found = {partition: known.get(partition) for partition in wanted}
        return answer(request_id, FetchedOffsets(error=ErrorCode.NONE, offsets=found))

    def handle_delete_offsets(
        self,
        request_id: RequestId,
        group_id: GroupId,
        partitions: Sequence[TopicPartition],
        catalog: TopicCatalog,
    ) -> Step:
        """OffsetDelete (KIP-496): not of topics that a living member is subscribed to."""
        if group_id not in self.groups and not self.offsets.of(group_id):
            return answer(request_id, OffsetsAnswer(error=ErrorCode.GROUP_ID_NOT_FOUND))
        subscribed = self._subscribed(group_id, catalog)
        results = {
            p: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if p.topic in subscribed else ErrorCode.NONE
            for p in partitions
        }
        records = self.offsets.forget(
            group_id, [p for p, error in results.items() if error is ErrorCode.NONE]
        )
        for record in records:
            self.offsets.replay(record)
        told = OffsetsAnswer(partitions=results)
        return Step(tuple(records), (Answer(request_id, told),))

    # --- administration --------------------------------------------------------------------------

    def handle_delete_group(self, request_id: RequestId, group_id: GroupId) -> Step:
        """DeleteGroups, one of them; the response is an ErrorCode."""
        group = self.groups.get(group_id)
        if group is None and not self.offsets.of(group_id):
            return answer(request_id, ErrorCode.GROUP_ID_NOT_FOUND)
        if group is not None and group.members:
            return answer(request_id, ErrorCode.NON_EMPTY_GROUP)
        return Step(tuple(self._forget_group(group_id))) + answer(request_id, ErrorCode.NONE)

    def listings(self) -> list[GroupListing]:
        """All groups, for ListGroups."""
        listed = [
            GroupListing(
                group_id=g.group_id,
                protocol_type=g.protocol_type or "",
                state=g.state.value,
                group_type="classic",
            )
            if isinstance(g, ClassicGroup)
            else GroupListing(
                group_id=g.group_id,
                protocol_type="consumer",
                state=g.state_name,
                group_type="consumer",
            )
            for g in self.groups.values()
        ]
        simple = [g for g in self.offsets.groups() if g not in self.groups]
        listed += [
            GroupListing(group_id=g, protocol_type="", state="Empty", group_type="classic")
            for g in simple
        ]
        return listed

    def describe(self, group_id: GroupId) -> GroupDescription:
        """One group, of either kind."""
        group = self.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return describe_classic(group)
        if isinstance(group, ConsumerGroup):
            return describe_consumer(group)
        exists = bool(self.offsets.of(group_id))
        return GroupDescription(
            error=ErrorCode.NONE if exists else ErrorCode.GROUP_ID_NOT_FOUND,
            group_id=group_id,
            state="Empty" if exists else "Dead",
        )

    # --- time ------------------------------------------------------------------------------------

    def tick(self, *, now_ms: int, wall_ms: int) -> Step:
        """Sessions and rebalances whose time is up. Call it a few times a second."""
        step = NOTHING
        for group in list(self.groups.values()):
            if isinstance(group, ClassicGroup):
                step += self._stamped(group.tick(now_ms=now_ms), wall_ms)
            else:
                step += Step(tuple(group.tick(now_ms=now_ms)))
        return step

    def expire_offsets(self, catalog: TopicCatalog, *, wall_ms: int) -> Step:
        """Forget offsets past their retention, and empty groups without any. Call it every few minutes."""
        records: list[GroupRecord] = []
        for group_id in list(self.offsets.groups()):
            group = self.groups.get(group_id)
            is_empty = group is None or not group.members
            gone = self.offsets.expired(
                group_id,
                wall_ms=wall_ms,
                retention_ms=self.settings.offsets_retention_ms,
                empty_since_ms=self._empty_since_ms.get(group_id) if is_empty else None,
                subscribed=() if is_empty else self._subscribed(group_id, catalog),
            )
            for record in self.offsets.forget(group_id, list(gone)):
                self.offsets.replay(record)
                records.append(record)
        for group_id, group in list(self.groups.items()):
            if not group.members and not self.offsets.of(group_id):
                if isinstance(group, ClassicGroup) and group.state is not ClassicState.EMPTY:
                    continue
                records += self._forget_group(group_id)
        return Step(tuple(records))

    def _forget_group(self, group_id: GroupId) -> list[GroupRecord]:
        records: list[GroupRecord] = list(self.offsets.forget(group_id))
        for record in records:
            assert isinstance(record, OffsetCommitRecord)
            self.offsets.replay(record)
        group = self.groups.pop(group_id, None)
        if isinstance(group, ConsumerGroup):
            records += group.tombstones()
        elif group is not None:
            records.append(ClassicGroupRecord(group_id=group_id, state=None))
        self._empty_since_ms.pop(group_id, None)
        return records

    def _subscribed(self, group_id: GroupId, catalog: TopicCatalog) -> frozenset[TopicName]:
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return (
                frozenset(snapshot.topic for snapshot in group.topics)
                if group.members
                else frozenset()
            )
        if group is None or group.protocol_type != "consumer":
            return frozenset()
        return frozenset().union(
            *(subscribed_topics(m.metadata(group.protocol)) for m in group.members.values())
        )

    # --- state -----------------------------------------------------------------------------------

    def replay(self, record: GroupRecord, *, now_ms: int) -> None:
        """Apply one record while loading."""
        match record:
            case OffsetCommitRecord():
                self.offsets.replay(record)
            case ClassicGroupRecord(group_id=group_id, state=None):
                if isinstance(self.groups.get(group_id), ClassicGroup):
                    del self.groups[group_id]
            case ClassicGroupRecord(group_id=group_id, state=state):
                assert state is not None
                group = self._new_classic(group_id)
                group.restore(state, now_ms=now_ms)
                self.groups[group_id] = group
                self._note_emptiness(group, state.state_timestamp_ms)
            case _:
                self._replay_consumer(record)

    def _replay_consumer(self, record: GroupRecord) -> None:
        assert not isinstance(record, (OffsetCommitRecord, ClassicGroupRecord))
        group = self.groups.get(record.group_id)
        if not isinstance(group, ConsumerGroup):
            group = ConsumerGroup(group_id=record.group_id, settings=self.settings.consumer)
            self.groups[record.group_id] = group
        group.replay(record)

    def loaded(self, *, now_ms: int) -> None:
        """All records are replayed; sessions begin, groups that were deleted are dropped."""
        for group_id, group in list(self.groups.items()):
            if isinstance(group, ConsumerGroup):
                if group.epoch == 0 and not group.members:
                    del self.groups[group_id]
                else:
                    group.begin_sessions(now_ms=now_ms)

    def _new_classic(self, group_id: GroupId) -> ClassicGroup:
        return ClassicGroup(
            group_id=group_id,
            initial_rebalance_delay_ms=self.settings.initial_rebalance_delay_ms,
            members_max=self.settings.max_size,
        )

    def _classic(self, group_id: GroupId) -> ClassicGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def _stamped(self, step: Step, wall_ms: int) -> Step:
        """Classic groups know no wall clock: their records get it here."""
        records: list[GroupRecord] = []
        for record in step.records:
            if isinstance(record, ClassicGroupRecord) and record.state is not None:
                record = replace(record, state=replace(record.state, state_timestamp_ms=wall_ms))
                group = self._classic(record.group_id)
                if group is not None:
                    self._note_emptiness(group, wall_ms)
            records.append(record)
        return Step(tuple(records), step.answers)

    def _note_emptiness(self, group: ClassicGroup, wall_ms: int) -> None:
        if group.members:
            self._empty_since_ms.pop(group.group_id, None)
        else:
            self._empty_since_ms[group.group_id] = wall_ms
