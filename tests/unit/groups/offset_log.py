"""The log of a partition of `__consumer_offsets` with transactions, and the offsets that are
committed by its entries alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from odradek_broker.coordination.group_coordinator import GroupKind
from odradek_broker.coordinator_step import (
    LoadedMarker,
    LoadedRecord,
    RequestId,
    Step,
    TransactionalRecords,
    TransactionMarker,
)
from odradek_broker.groups.formats.record_codec import encode
from odradek_broker.groups.group_shard import GroupShard
from odradek_broker.groups.messages import (
    CommitInTransaction,
    CommitOffsets,
    CommittedOffset,
    EndHanging,
    EndInTransaction,
    FetchOffsets,
    NeedsRegistration,
    Registered,
    TopicCatalog,
)
from odradek_broker.groups.records import GroupRecord, OffsetCommitRecord
from odradek_broker.groups.settings import GroupSettings
from odradek_protocol.identity import (
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.groups.conversation import DELAY_MS, FIRST, TOPIC_ID, catalog

NOBODY = (ProducerId(-1), ProducerEpoch(-1))
SECOND = TopicPartition(FIRST.topic, PartitionIndex(1))


@dataclass
class OffsetLog:
    """A group coordinator's shard, its clock and its log; an entry is (record or marker, producer
    id, epoch).
    """

    catalog: TopicCatalog = field(default_factory=lambda: catalog(t=(TOPIC_ID, 2)))
    now_ms: int = 0
    entries: list[tuple[Any, ProducerId, ProducerEpoch]] = field(default_factory=list)
    orders: list[Any] = field(default_factory=list)
    responses: dict[int, Any] = field(default_factory=dict)
    requests: int = 0

    def __post_init__(self) -> None:
        self.kind = GroupKind(
            settings=GroupSettings(initial_rebalance_delay_ms=DELAY_MS),
            catalog=lambda: self.catalog,
            now_ms=lambda: self.now_ms,
            now_wall_ms=lambda: self.now_ms,
        )
        self.shard = self.kind.create()

    def ask(self) -> RequestId:
        self.requests += 1
        return RequestId(self.requests)

    def take(self, step: Step[GroupRecord]) -> None:
        for response in step.responses:
            assert response.request_id not in self.responses, "a request got two responses"
            self.responses[response.request_id] = response.response
        self.orders += step.orders
        self.entries += [(record, *NOBODY) for record in step.records]
        for write in step.writes:
            if isinstance(write, TransactionalRecords):
                self.entries += [
                    (record, write.producer_id, write.producer_epoch) for record in write.records
                ]
            else:
                self.entries.append((write, write.producer_id, write.producer_epoch))

    def move(self) -> None:
        """Let another coordinator load the log."""
        self.shard = self.load()
        self.take(self.kind.loaded(self.shard, PartitionIndex(0), LeaderEpoch(0)))

    def load(self) -> GroupShard:
        shard = self.kind.create()
        for position, (entry, producer_id, epoch) in enumerate(self.entries):
            offset = Offset(position)
            if isinstance(entry, TransactionMarker):
                marker = LoadedMarker(
                    producer_id, epoch, entry.is_commit, entry.coordinator_epoch, offset
                )
                self.kind.replay_marker(shard, marker)
            else:
                key, value = encode(entry)
                is_transactional = producer_id >= 0
                self.kind.replay(
                    shard, LoadedRecord(key, value, offset, producer_id, epoch, is_transactional)
                )
        return shard

    def oracle(self) -> dict[tuple[str, TopicPartition], int]:
        """Return the committed offsets by the log alone: for each key, the last record that
        counts.
        """
        records: dict[tuple[str, TopicPartition], tuple[int, int | None]] = {}
        open_records: dict[ProducerId, list[tuple[int, OffsetCommitRecord]]] = {}

        def apply(position: int, record: OffsetCommitRecord) -> None:
            key = (record.group_id, record.partition)
            offset = None if record.committed is None else record.committed.offset
            if key not in records or records[key][0] < position:
                records[key] = (position, offset)

        for position, (entry, producer_id, _) in enumerate(self.entries):
            if isinstance(entry, TransactionMarker):
                for earlier, record in open_records.pop(producer_id, []):
                    if entry.is_commit:
                        apply(earlier, record)
            elif isinstance(entry, OffsetCommitRecord):
                if producer_id >= 0:
                    open_records.setdefault(producer_id, []).append((position, entry))
                else:
                    apply(position, entry)
        return {key: offset for key, (_, offset) in records.items() if offset is not None}

    def committed(self, shard: GroupShard | None = None) -> dict[tuple[str, TopicPartition], int]:
        offsets = (shard or self.shard).table.offsets
        return {
            (group_id, partition): committed.offset
            for group_id in offsets.groups()
            for partition, committed in offsets.of(group_id).items()
        }

    def commit(self, offset: int, partition: TopicPartition = FIRST, **changes: Any) -> Any:
        request_id = self.ask()
        step = self.shard.offsets.handle_commit(
            request_id,
            offsets_of(offset, partition, **changes),
            self.catalog,
            now_ms=self.now_ms,
            wall_ms=self.now_ms,
        )
        self.take(step)
        return self.responses[request_id]

    def commit_in_transaction(
        self,
        offset: int,
        partition: TopicPartition = FIRST,
        *,
        producer_id: int = 7,
        epoch: int = 0,
        registered: Registered | None = None,
        **changes: Any,
    ) -> Any:
        """Commit in a transaction, and return the first response; `write` also registers the
        partition.
        """
        request_id = self.ask()
        request = CommitInTransaction(
            commit=offsets_of(offset, partition, **changes),
            producer_id=ProducerId(producer_id),
            producer_epoch=ProducerEpoch(epoch),
        )
        step = self.shard.offsets.handle_commit_in_transaction(
            request_id,
            request,
            self.catalog,
            registered=registered,
            now_ms=self.now_ms,
            wall_ms=self.now_ms,
        )
        self.take(step)
        return self.responses[request_id]

    def write(self, offset: int, partition: TopicPartition = FIRST, **changes: Any) -> ErrorCode:
        """Commit in a transaction, and register the partition if that is needed."""
        response = self.commit_in_transaction(offset, partition, **changes)
        if isinstance(response, NeedsRegistration):
            response = self.commit_in_transaction(
                offset, partition, registered=Registered(response.guard), **changes
            )
        error: ErrorCode = response.error or response.partitions[partition]
        return error

    def end(
        self,
        *,
        is_commit: bool = True,
        producer_id: int = 7,
        epoch: int = 1,
        is_bumped: bool = True,
    ) -> ErrorCode:
        request_id = self.ask()
        marker = EndInTransaction(
            producer_id=ProducerId(producer_id),
            producer_epoch=ProducerEpoch(epoch),
            is_commit=is_commit,
            coordinator_epoch=3,
            is_bumped=is_bumped,
        )
        step = self.shard.offsets.handle_end_in_transaction(request_id, marker, now_ms=self.now_ms)
        self.take(step)
        error: ErrorCode = self.responses[request_id]
        return error

    def guard(self, producer_id: int = 7) -> int:
        return self.shard.table.offsets.pending.guard(ProducerId(producer_id))

    def end_hanging(self, guard: int | None, *, epoch: int, is_commit: bool) -> ErrorCode:
        request_id = self.ask()
        end = EndHanging(
            producer_id=ProducerId(7),
            producer_epoch=ProducerEpoch(epoch),
            is_commit=is_commit,
            guard=guard,
        )
        self.take(self.shard.offsets.handle_end_hanging(request_id, end, now_ms=self.now_ms))
        error: ErrorCode = self.responses[request_id]
        return error

    def fetch_later(
        self, partitions: list[TopicPartition] | None = None, *, stable: bool = True
    ) -> RequestId:
        request_id = self.ask()
        fetch = FetchOffsets(group_id="g", partitions=partitions, requires_stable=stable)
        step = self.shard.offsets.handle_fetch_offsets(request_id, fetch, now_ms=self.now_ms)
        self.take(step)
        return request_id

    def wait(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.take(self.shard.tick(now_ms=self.now_ms, wall_ms=self.now_ms))


def offsets_of(offset: int, partition: TopicPartition, **changes: Any) -> CommitOffsets:
    commit: dict[str, Any] = {
        "group_id": "g",
        "member_id": "",
        "instance_id": None,
        "generation_or_epoch": -1,
    }
    return CommitOffsets(**commit | changes, offsets={partition: CommittedOffset(offset=offset)})
