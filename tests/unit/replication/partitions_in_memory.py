"""A LocalPartitions for tests of coordinators: `__consumer_offsets` is a list of batches, and tests change the
metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from odradek_broker.groups.formats.record_codec import decode
from odradek_broker.groups.records import GroupRecord
from odradek_broker.replication.outcomes import (
    OFFSET_EARLIEST,
    LeaderNow,
    LeadershipWatcher,
    OffsetOutcome,
    ProduceOutcome,
    ReadOutcome,
)
from odradek_protocol.identity import (
    BrokerId,
    LeaderEpoch,
    MetadataOffset,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import FeatureLevel, Partition, RemoveTopic, Topic
from odradek_protocol.records import decode_batch, iter_headers
from odradek_protocol.records.batch_header import stamp
from odradek_protocol.topic_names import OFFSETS_TOPIC

ME = BrokerId(1)
EPOCH = LeaderEpoch(3)


@dataclass(slots=True)
class Write:
    """One call of `produce`."""

    base_offset: int
    data: bytes
    on_done: Callable[[ProduceOutcome], None]
    leader_epoch: int


class PartitionsInMemory:
    """One partition of `__consumer_offsets`, which this broker leads."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.record(FeatureLevel(name="group.version", level=1))
        self.create(OFFSETS_TOPIC, TopicId(b"_" * 16))
        self.writes: list[Write] = []
        self.log: list[Write] = []
        self.log_end_offset = 0
        self.refuses: ErrorCode = ErrorCode.NONE
        self.holds = False
        self.batch_bytes_max = 1 << 20
        self._has_written = asyncio.Event()
        self.before_read: Callable[[], None] = lambda: None
        self.watcher: LeadershipWatcher | None = None  # the latest
        self.watchers: asyncio.Queue[LeadershipWatcher] = asyncio.Queue()
        self._image_watchers: set[Callable[[MetadataImage], None]] = set()

    # --- the test's ------------------------------------------------------------------------------

    def create(self, name: str, topic_id: TopicId, partitions: int = 1) -> None:
        """Create a topic."""
        self.record(Topic(topic_id=topic_id, name=TopicName(name)))
        for index in range(partitions):
            self.record(
                Partition(
                    topic_id=topic_id,
                    partition=PartitionIndex(index),
                    replicas=(ME,),
                    isr=(ME,),
                    leader=ME,
                )
            )

    def delete(self, topic_id: TopicId) -> None:
        """Delete a topic."""
        self.record(RemoveTopic(topic_id=topic_id))

    def record(self, record: Any) -> None:
        """Commit a metadata record."""
        self.image.replay(MetadataOffset(self.image.offset + 1), 1, record)

    def tell_image(self) -> None:
        """Notify the watchers of the broker's metadata."""
        for watcher in tuple(self._image_watchers):
            watcher(self.image)

    def note(self, write: Write) -> None:
        """Record one call of `produce`."""
        self.writes.append(write)
        self._has_written.set()

    async def written(self, count: int) -> None:
        """Wait until `produce` was called this many times."""
        async with asyncio.timeout(30):
            while len(self.writes) < count:
                self._has_written.clear()
                await self._has_written.wait()

    def records(self) -> list[GroupRecord]:
        """Return all records in the log."""
        found = []
        for write in self.log:
            for position, _ in iter_headers(write.data):
                for record in decode_batch(write.data, position):
                    assert record.key is not None
                    decoded = decode(record.key, record.value)
                    assert decoded is not None
                    found.append(decoded)
        return found

    # --- LocalPartitions -------------------------------------------------------------------------

    def watch_leadership(self, topic: str, watcher: LeadershipWatcher) -> None:
        self.watcher = watcher
        self.watchers.put_nowait(watcher)

    def watch_image(self, watcher: Callable[[MetadataImage], None]) -> Callable[[], None]:
        self._image_watchers.add(watcher)
        return lambda: self._image_watchers.discard(watcher)

    def leader_of(self, topic: str, partition: PartitionIndex) -> LeaderNow:
        return LeaderNow(ME, EPOCH)

    def find(self, topic: str, partition: PartitionIndex) -> PartitionInMemory:
        return PartitionInMemory(self)


class PartitionInMemory:
    """A partition of `__consumer_offsets`; all of them share the log of PartitionsInMemory."""

    def __init__(self, partitions: PartitionsInMemory) -> None:
        self.partitions = partitions

    def may_respond(self, leader_epoch: LeaderEpoch) -> bool:
        return True

    @property
    def can_write(self) -> bool:
        return self.partitions.refuses is ErrorCode.NONE

    @property
    def log_end(self) -> Offset:
        return Offset(self.partitions.log_end_offset)

    def produce(
        self,
        records: bytes,
        *,
        on_done: Callable[[ProduceOutcome], None],
        expected_leader_epoch: LeaderEpoch,
        **_: Any,
    ) -> None:
        partitions = self.partitions
        write = Write(partitions.log_end_offset, b"", on_done, expected_leader_epoch)
        partitions.note(write)
        sizes = [header.size_bytes for _, header in iter_headers(records)]
        if partitions.refuses is not ErrorCode.NONE:
            on_done(ProduceOutcome(partitions.refuses))
            return
        if max(sizes) > partitions.batch_bytes_max:
            on_done(ProduceOutcome(ErrorCode.MESSAGE_TOO_LARGE))
            return
        buffer = bytearray(records)
        for position, header in iter_headers(bytes(buffer)):
            stamp(buffer, position, partitions.log_end_offset, expected_leader_epoch)
            partitions.log_end_offset += header.record_count
        write.data = bytes(buffer)
        partitions.log.append(write)
        if not partitions.holds:
            on_done(ProduceOutcome(ErrorCode.NONE, Offset(write.base_offset)))

    async def offset_at(self, timestamp_ms: int) -> OffsetOutcome:
        at = 0 if timestamp_ms == OFFSET_EARLIEST else self.partitions.log_end_offset
        return OffsetOutcome(ErrorCode.NONE, Offset(at))

    def read(self, offset: Offset, **_: Any) -> ReadOutcome:
        partitions = self.partitions
        partitions.before_read()
        write = next(write for write in partitions.log if write.base_offset >= offset)
        count = sum(header.record_count for _, header in iter_headers(write.data))
        return ReadOutcome(
            ErrorCode.NONE,
            records=[write.data],
            size_bytes=len(write.data),
            next_offset=Offset(write.base_offset + count),
            high_watermark=Offset(partitions.log_end_offset),
            leader_epoch=EPOCH,
        )
