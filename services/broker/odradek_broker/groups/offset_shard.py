"""The request handlers for all offsets of one partition of `__consumer_offsets`: commits, transactions, reads, and
deletions.

A commit replaces the committed offset of a group in a partition. An offset that is committed in a transaction is
pending until the transaction's marker (pending_offsets.py). A stable read waits for the marker, so that a consumer does
not start at an offset that an open transaction of the previous consumer is about to change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from odradek_broker.coordinator_step import (
    NOTHING,
    RequestId,
    Response,
    Step,
    TransactionalRecords,
    TransactionMarker,
    judges,
    respond,
)
from odradek_broker.groups.classic_group import ClassicGroup
from odradek_broker.groups.classic_members import ClassicState
from odradek_broker.groups.consumer_group import ConsumerGroup
from odradek_broker.groups.formats.consumer_protocol import PROTOCOL_TYPE
from odradek_broker.groups.group_table import GroupTable
from odradek_broker.groups.messages import (
    CommitInTransaction,
    CommitOffsets,
    CommittedOffset,
    EndHanging,
    EndInTransaction,
    FetchedOffsets,
    FetchOffsets,
    NeedsRegistration,
    OffsetsAnswer,
    OrphanEnded,
    Registered,
    TopicCatalog,
)
from odradek_broker.groups.records import GroupRecord, OffsetCommitRecord, has_room_for
from odradek_broker.groups.settings import GroupSettings
from odradek_broker.held_requests import HeldRequest, HeldRequests
from odradek_protocol.identity import (
    NO_TOPIC_ID,
    GroupId,
    ProducerEpoch,
    ProducerId,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode

_HELD_MAX: Final = 10_000
NO_COORDINATOR_EPOCH: Final = -1
"""The coordinator epoch in a marker that no transaction coordinator has sent."""


class _StableFetch(NamedTuple):
    fetch: FetchOffsets
    deadline_ms: int


@dataclass(kw_only=True)
class OffsetShard:
    """The request handlers for the offsets of one shard. `table` is the state of the shard."""

    settings: GroupSettings
    table: GroupTable
    stable_fetches: HeldRequests[GroupId, _StableFetch] = field(init=False)

    def __post_init__(self) -> None:
        self.stable_fetches = HeldRequests(of_key_max=self.settings.max_size, total_max=_HELD_MAX)

    def handle_commit(
        self,
        request_id: RequestId,
        commit: CommitOffsets,
        catalog: TopicCatalog,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> Step[GroupRecord]:
        """Handle OffsetCommit. The offsets of all partitions that exist are written in one batch."""
        error = self._check_commit(commit, now_ms)
        if error is not ErrorCode.NONE:
            return respond(request_id, OffsetsAnswer(error=error))
        records, results = self._offset_records(commit, catalog, wall_ms)
        for record in records:
            self.table.offsets.replay(record)
        response = OffsetsAnswer(partitions=results)
        return Step(tuple(records), (Response(request_id, response),))

    @judges
    def _offset_records(
        self, commit: CommitOffsets, catalog: TopicCatalog, wall_ms: int
    ) -> tuple[list[OffsetCommitRecord], dict[TopicPartition, ErrorCode]]:
        """Return the records to write for a commit, and an error code for each of its partitions."""
        results: dict[TopicPartition, ErrorCode] = {}
        records: list[OffsetCommitRecord] = []
        for partition, committed in commit.offsets.items():
            topic_id = catalog.id_of(partition)
            if topic_id is None:
                results[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            if committed.topic_id not in (NO_TOPIC_ID, topic_id):
                results[partition] = ErrorCode.UNKNOWN_TOPIC_ID
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
            records.append(record)
        return records, results

    def handle_commit_in_transaction(
        self,
        request_id: RequestId,
        request: CommitInTransaction,
        catalog: TopicCatalog,
        *,
        registered: Registered | None,
        now_ms: int,
        wall_ms: int,
    ) -> Step[GroupRecord]:
        """Handle TxnOffsetCommit. The offsets are written, and are pending until the marker of the transaction.

        The response is NeedsRegistration if this partition of `__consumer_offsets` has not been added to the
        transaction yet.
        """
        commit, producer_id, epoch = request.commit, request.producer_id, request.producer_epoch
        error = self._check_commit_in_transaction(request, now_ms)
        if error is not ErrorCode.NONE:
            return respond(request_id, OffsetsAnswer(error=error))
        pending = self.table.offsets.pending
        transaction = pending.transaction_of(producer_id)
        step: Step[GroupRecord] = NOTHING
        if transaction is None or transaction.epoch != epoch:
            if registered is None or not pending.is_registered(producer_id, registered.guard):
                return respond(request_id, NeedsRegistration(pending.guard(producer_id)))
            if transaction is not None:
                step += self._end_orphan(producer_id, epoch, transaction.epoch, registered)
        records, results = self._offset_records(commit, catalog, wall_ms)
        for record in records:
            self.table.offsets.replay_pending(record, producer_id, epoch)
        if records:
            write: TransactionalRecords[GroupRecord] = TransactionalRecords(
                producer_id, epoch, tuple(records)
            )
            step += Step(writes=(write,))
        return step + respond(request_id, OffsetsAnswer(partitions=results))

    def _end_orphan(
        self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        orphan_epoch: ProducerEpoch,
        registered: Registered,
    ) -> Step[GroupRecord]:
        """End a transaction whose marker was lost, before records of the producer's next transaction are written."""
        is_commit = registered.last_outcome == (orphan_epoch, True)
        self.table.offsets.end_transaction(producer_id, is_commit=is_commit)
        return Step(
            orders=(OrphanEnded(producer_id, orphan_epoch, is_commit),),
            writes=(TransactionMarker(producer_id, epoch, is_commit, NO_COORDINATOR_EPOCH),),
        )

    @judges
    def _check_commit_in_transaction(self, request: CommitInTransaction, now_ms: int) -> ErrorCode:
        """Return an error for a consumer that is no longer a member of the current generation, because its partitions
        may already be assigned to another member (KIP-447). Requests of old clients, which have no generation, are
        accepted.
        """
        commit = request.commit
        if not commit.group_id or not has_room_for(commit.group_id):
            return ErrorCode.INVALID_GROUP_ID
        transaction = self.table.offsets.pending.transaction_of(request.producer_id)
        if transaction is not None and transaction.epoch > request.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        group = self.table.groups.get(commit.group_id)
        names_member = bool(commit.member_id) or commit.instance_id is not None
        if group is None:
            is_alone = commit.generation_or_epoch < 0
            return ErrorCode.NONE if is_alone else ErrorCode.UNKNOWN_MEMBER_ID
        if isinstance(group, ClassicGroup):
            if commit.generation_or_epoch < 0 and not names_member:
                return ErrorCode.NONE
            error = group.check_commit(
                commit.member_id, commit.instance_id, commit.generation_or_epoch, now_ms=now_ms
            )
            # The offsets belong to the old generation, which is valid until the next generation has an assignment.
            return ErrorCode.NONE if error is ErrorCode.REBALANCE_IN_PROGRESS else error
        return group.check_epoch(commit.member_id, commit.generation_or_epoch, commit.instance_id)

    def handle_end_in_transaction(
        self, request_id: RequestId, end: EndInTransaction, *, now_ms: int
    ) -> Step[GroupRecord]:
        """Write the marker of a transaction, which commits or discards its pending offsets.

        The response is an ErrorCode. INVALID_PRODUCER_EPOCH: the open transaction is later than that of the marker.
        """
        if self._refuse_end(end):
            return respond(request_id, ErrorCode.INVALID_PRODUCER_EPOCH)
        marker = TransactionMarker(
            end.producer_id, end.producer_epoch, end.is_commit, end.coordinator_epoch
        )
        return self._end(request_id, marker, now_ms=now_ms)

    def handle_end_hanging(
        self, request_id: RequestId, end: EndHanging, *, now_ms: int
    ) -> Step[GroupRecord]:
        """End a hanging transaction by a marker of this broker.

        The response is an ErrorCode. INVALID_TXN_STATE: the producer has written offsets or ended a transaction in this
        partition since the caller read the guard.
        """
        if not self.table.offsets.pending.is_registered(end.producer_id, end.guard):
            return respond(request_id, ErrorCode.INVALID_TXN_STATE)
        marker = TransactionMarker(
            end.producer_id, end.producer_epoch, end.is_commit, NO_COORDINATOR_EPOCH
        )
        return self._end(request_id, marker, now_ms=now_ms)

    def _end(
        self, request_id: RequestId, marker: TransactionMarker, *, now_ms: int
    ) -> Step[GroupRecord]:
        """Write and apply a transaction marker, and respond to the stable fetches that waited for the marker."""
        groups = self.table.offsets.end_transaction(marker.producer_id, is_commit=marker.is_commit)
        step: Step[GroupRecord] = Step(writes=(marker,)) + respond(request_id, ErrorCode.NONE)
        for group_id in groups:
            for held in self.stable_fetches.take(group_id):
                step += self._fetch_stable(held, now_ms=now_ms)
        return step

    @judges
    def _refuse_end(self, end: EndInTransaction) -> bool:
        """Return whether a marker must be refused, because it belongs to an earlier transaction than the open
        transaction.

        If no transaction is open, the marker is a repetition, which does no harm.
        """
        transaction = self.table.offsets.pending.transaction_of(end.producer_id)
        if transaction is None:
            return False
        epoch_min = transaction.epoch + 1 if end.is_bumped else transaction.epoch
        return end.producer_epoch < epoch_min

    @judges
    def _check_commit(self, commit: CommitOffsets, now_ms: int) -> ErrorCode:
        group = self.table.groups.get(commit.group_id)
        if not has_room_for(commit.group_id):
            return ErrorCode.INVALID_GROUP_ID
        if group is None:
            # A consumer with manual assignment (`assign`) joins no group. As in Kafka, its group id may even be empty.
            is_alone = commit.generation_or_epoch < 0
            return ErrorCode.NONE if is_alone else ErrorCode.UNKNOWN_MEMBER_ID
        if isinstance(group, ClassicGroup):
            return group.check_commit(
                commit.member_id, commit.instance_id, commit.generation_or_epoch, now_ms=now_ms
            )
        return group.check_epoch(commit.member_id, commit.generation_or_epoch, commit.instance_id)

    def handle_fetch_offsets(
        self, request_id: RequestId, fetch: FetchOffsets, *, now_ms: int
    ) -> Step[GroupRecord]:
        """Handle OffsetFetch for one group. A fetch with `requires_stable` waits until no open transaction may change
        its offsets, up to `stable_fetch_wait_max_ms`.
        """
        fetched = self._fetched(fetch)
        if not fetched.unstable:
            return respond(request_id, fetched)
        deadline_ms = now_ms + self.settings.stable_fetch_wait_max_ms
        held = HeldRequest(request_id, _StableFetch(fetch, deadline_ms))
        if self.stable_fetches.hold(fetch.group_id, held, deadline_ms=deadline_ms):
            return NOTHING
        return respond(request_id, fetched)

    @judges
    def _fetched(self, fetch: FetchOffsets) -> FetchedOffsets:
        group, pending = self.table.groups.get(fetch.group_id), self.table.offsets.pending
        if isinstance(group, ConsumerGroup) and fetch.member_id is not None:
            error = group.check_epoch(fetch.member_id, fetch.member_epoch)
            if error is not ErrorCode.NONE:
                return FetchedOffsets(error=error)
        committed = self.table.offsets.of(fetch.group_id)
        partitions = list(committed) if fetch.partitions is None else list(fetch.partitions)
        unstable: set[TopicPartition] = set()
        if fetch.requires_stable:
            if fetch.partitions is None:
                pending_only = set(pending.partitions_of(fetch.group_id)).difference(committed)
                partitions += sorted(pending_only, key=str)
            unstable = {p for p in partitions if pending.has_any(fetch.group_id, p)}
        offsets = {partition: committed.get(partition) for partition in partitions}
        return FetchedOffsets(error=ErrorCode.NONE, offsets=offsets, unstable=frozenset(unstable))

    def _fetch_stable(self, held: HeldRequest[_StableFetch], *, now_ms: int) -> Step[GroupRecord]:
        """Respond to a stable fetch if its offsets are stable or its deadline has passed; otherwise let it keep
        waiting.
        """
        fetch, deadline_ms = held.request.fetch, held.request.deadline_ms
        fetched = self._fetched(fetch)
        if fetched.unstable and now_ms < deadline_ms:
            is_held = self.stable_fetches.hold(fetch.group_id, held, deadline_ms=deadline_ms)
            assert is_held, f"no room for a fetch of {fetch.group_id} that had waited already"
            return NOTHING
        return respond(held.request_id, fetched)

    def handle_delete_offsets(
        self,
        request_id: RequestId,
        group_id: GroupId,
        partitions: Sequence[TopicPartition],
    ) -> Step[GroupRecord]:
        """Handle OffsetDelete (KIP-496). Offsets of topics to which a member may be subscribed are not deleted."""
        pending = self.table.offsets.pending
        if not self.table.exists(group_id):
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
            # Pending offsets are not deleted either, because their transaction would then commit without them.
            if subscribed is None or p.topic in subscribed or pending.has_any(group_id, p)
            else ErrorCode.NONE
            for p in partitions
        }
        records = self._forget(
            group_id, [p for p, error in results.items() if error is ErrorCode.NONE]
        )
        response = OffsetsAnswer(partitions=results)
        return Step(tuple(records), (Response(request_id, response),))

    def forget_deleted_topics(
        self, catalog: TopicCatalog, deleted: Collection[TopicName] | None = None
    ) -> Step[GroupRecord]:
        """Delete the offsets of partitions that no longer exist, even if there is a new topic with the same name.

        `catalog` must be at least as new as the catalogs with which the commits were checked. `deleted` are the topics
        that were deleted since the last call, or None if they are unknown. If none of these topics has offsets, nothing
        is scanned, because a shard may have hundreds of thousands of offsets and topics may be deleted in quick
        succession.
        """
        records: list[GroupRecord] = []
        offsets = self.table.offsets
        if deleted is not None and not offsets.has_any_of(deleted):
            return NOTHING
        for group_id in {*offsets.groups(), *offsets.pending.groups()}:
            missing = [
                partition
                for partition, committed in self._offsets_of(group_id)
                if (topic_id := catalog.id_of(partition)) is None
                or committed.topic_id not in (NO_TOPIC_ID, topic_id)
            ]
            records += self._forget(group_id, list(dict.fromkeys(missing)))
        return Step(tuple(records))

    def _offsets_of(self, group_id: GroupId) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        """Yield all committed and pending offsets of a group. A partition may occur several times."""
        offsets = self.table.offsets
        yield from offsets.of(group_id).items()
        for partition in offsets.pending.partitions_of(group_id):
            for committed in offsets.pending.of(group_id, partition):
                yield partition, committed

    def _forget(
        self, group_id: GroupId, partitions: Sequence[TopicPartition]
    ) -> list[OffsetCommitRecord]:
        records = self.table.offsets.forget(group_id, partitions)
        for record in records:
            self.table.offsets.replay(record)
        return records

    def expire_offsets(self, *, wall_ms: int) -> Step[GroupRecord]:
        """Delete committed offsets that have expired, and groups without members and offsets. The group coordinator
        calls this once in every `offsets.retention.check.interval.ms`.
        """
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
            offsets = self.table.offsets
            if (
                group.is_empty
                and not offsets.of(group_id)
                and not offsets.pending.has_any(group_id)
            ):
                if isinstance(group, ClassicGroup) and group.state is not ClassicState.EMPTY:
                    continue
                records += self.table.forget_group(group_id)
        return Step(tuple(records))

    def tick(self, *, now_ms: int) -> Step[GroupRecord]:
        """Respond to stable fetches whose deadline has passed."""
        step: Step[GroupRecord] = NOTHING
        for held in self.stable_fetches.take_expired(now_ms):
            step += self._fetch_stable(held, now_ms=now_ms)
        return step


def _has_told_all(group: ClassicGroup | ConsumerGroup | None) -> bool:
    """Return whether the subscriptions of all members are known, because the group does not rebalance."""
    if not isinstance(group, ClassicGroup):
        return True
    return group.state in (ClassicState.EMPTY, ClassicState.STABLE)
