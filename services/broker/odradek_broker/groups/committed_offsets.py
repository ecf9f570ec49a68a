"""The offsets that groups have committed, and when they are forgotten (KIP-211)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from odradek_broker.groups.messages import CommittedOffset
from odradek_broker.groups.records import OffsetCommitRecord
from odradek_protocol.identity import GroupId, TopicName, TopicPartition


@dataclass(slots=True)
class CommittedOffsets:
    """All committed offsets of one shard; changed only by `replay`."""

    _groups: dict[GroupId, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)

    def replay(self, record: OffsetCommitRecord) -> None:
        """Apply one record; None forgets."""
        offsets = self._groups.setdefault(record.group_id, {})
        if record.committed is None:
            offsets.pop(record.partition, None)
        else:
            offsets[record.partition] = record.committed
        if not offsets:
            del self._groups[record.group_id]

    def of(self, group_id: GroupId) -> Mapping[TopicPartition, CommittedOffset]:
        """Those of one group; empty if it has none."""
        return self._groups.get(group_id, {})

    def groups(self) -> Collection[GroupId]:
        """Groups that have any."""
        return self._groups.keys()

    def forget(
        self, group_id: GroupId, partitions: Collection[TopicPartition] | None = None
    ) -> list[OffsetCommitRecord]:
        """Records that forget these partitions, or all of the group."""
        chosen = list(self.of(group_id)) if partitions is None else partitions
        return [
            OffsetCommitRecord(group_id=group_id, partition=partition, committed=None)
            for partition in chosen
            if partition in self.of(group_id)
        ]

    def expired(
        self,
        group_id: GroupId,
        *,
        wall_ms: int,
        retention_ms: int,
        empty_since_ms: int | None,
        subscribed: Collection[TopicName],
    ) -> Iterator[TopicPartition]:
        """Partitions to forget: of topics nobody in the group subscribes to, past the retention.

        `empty_since_ms` (wall clock) is when a group that had members became empty: its offsets count from
        then, not from their commits. None: from their commits.
        """
        for partition, committed in self.of(group_id).items():
            if partition.topic in subscribed:
                continue
            if committed.expire_timestamp_ms >= 0:
                if wall_ms >= committed.expire_timestamp_ms:
                    yield partition
                continue
            since_ms = max(committed.commit_timestamp_ms, empty_since_ms or 0)
            if wall_ms - since_ms >= retention_ms:
                yield partition
