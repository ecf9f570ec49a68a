"""What groups commit, fetch and forget, as requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from odradek_broker.groups.classic_group import ClassicGroup
from odradek_broker.groups.classic_roster import ClassicState
from odradek_broker.groups.consumer_group import ConsumerGroup
from odradek_broker.groups.formats.consumer_protocol import PROTOCOL_TYPE
from odradek_broker.groups.group_table import GroupTable
from odradek_broker.groups.messages import (
    CommitOffsets,
    FetchedOffsets,
    FetchOffsets,
    OffsetsAnswer,
)
from odradek_broker.groups.records import GroupRecord, OffsetCommitRecord, has_room_for
from odradek_broker.groups.step import Answer, RequestId, Step, answer, judges
from odradek_broker.groups.topic_catalog import TopicCatalog
from odradek_protocol.identity import NO_TOPIC_ID, GroupId, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode


@dataclass(slots=True, kw_only=True)
class OffsetShard(GroupTable):
    """The offsets' part of a shard. `now_ms` is the monotonic clock, `wall_ms` the one that stands in records."""

    def handle_commit(
        self,
        request_id: RequestId,
        commit: CommitOffsets,
        catalog: TopicCatalog,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> Step:
        """OffsetCommit: all partitions of the request that are there, in one batch."""
        error = self._check_commit(commit, now_ms)
        if error is not ErrorCode.NONE:
            return answer(request_id, OffsetsAnswer(error=error))
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
            self.offsets.replay(record)
            records.append(record)
        told = OffsetsAnswer(partitions=results)
        return Step(tuple(records), (Answer(request_id, told),))

    @judges
    def _check_commit(self, commit: CommitOffsets, now_ms: int) -> ErrorCode:
        group = self.groups.get(commit.group_id)
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
    ) -> Step:
        """OffsetDelete (KIP-496): not of topics that a living member is subscribed to, or may be."""
        if group_id not in self.groups and not self.offsets.of(group_id):
            return answer(request_id, OffsetsAnswer(error=ErrorCode.GROUP_ID_NOT_FOUND))
        group, subscribed = self.groups.get(group_id), self._subscribed(group_id)
        if (
            isinstance(group, ClassicGroup)
            and group.members
            and group.protocol_type != PROTOCOL_TYPE
        ):
            return answer(request_id, OffsetsAnswer(error=ErrorCode.NON_EMPTY_GROUP))
        results = {
            p: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if subscribed is None or p.topic in subscribed
            else ErrorCode.NONE
            for p in partitions
        }
        records = self._forget(
            group_id, [p for p, error in results.items() if error is ErrorCode.NONE]
        )
        told = OffsetsAnswer(partitions=results)
        return Step(tuple(records), (Answer(request_id, told),))

    def forget_deleted_topics(self, catalog: TopicCatalog) -> Step:
        """Forget what was committed in partitions that are no more, though a topic may have the name again.

        `catalog` must not be older than any that a commit in the log was decided on.
        """
        records: list[GroupRecord] = []
        for group_id in list(self.offsets.groups()):
            gone = [
                partition
                for partition, committed in self.offsets.of(group_id).items()
                if (topic_id := catalog.id_of(partition)) is None
                or committed.topic_id not in (NO_TOPIC_ID, topic_id)
            ]
            records += self._forget(group_id, gone)
        return Step(tuple(records))

    def _forget(
        self, group_id: GroupId, partitions: Sequence[TopicPartition]
    ) -> list[OffsetCommitRecord]:
        records = self.offsets.forget(group_id, partitions)
        for record in records:
            self.offsets.replay(record)
        return records

    def expire_offsets(self, *, wall_ms: int) -> Step:
        """Forget offsets past their retention, and empty groups without any. Call it every few minutes."""
        records: list[GroupRecord] = []
        for group_id in list(self.offsets.groups()):
            group, subscribed = self.groups.get(group_id), self._subscribed(group_id)
            if subscribed is None or not _has_told_all(group):
                continue
            is_empty = group is None or not group.members
            gone = self.offsets.expired(
                group_id,
                wall_ms=wall_ms,
                retention_ms=self.settings.offsets_retention_ms,
                empty_since_ms=self._empty_since_ms.get(group_id) if is_empty else None,
                subscribed=subscribed,
            )
            records += self._forget(group_id, list(gone))
        for group_id, group in list(self.groups.items()):
            if not group.members and not self.offsets.of(group_id):
                if isinstance(group, ClassicGroup) and group.state is not ClassicState.EMPTY:
                    continue
                records += self._forget_group(group_id)
        return Step(tuple(records))


def _has_told_all(group: ClassicGroup | ConsumerGroup | None) -> bool:
    """Whether nobody who belongs to the group has yet to come back, and to say what it reads."""
    if not isinstance(group, ClassicGroup):
        return True
    return group.state in (ClassicState.EMPTY, ClassicState.STABLE)
