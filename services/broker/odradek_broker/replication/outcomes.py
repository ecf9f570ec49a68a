"""The results of requests to this broker's partitions, and the types by which a request names a topic.

Expected errors are values (`ErrorCode` in the outcome); an exception is an internal error.

`Topic` is a TopicName or a TopicId (16 bytes). `PartitionTable` has one dict for names and one for ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from odradek_broker.log.storage import FileSlice
from odradek_protocol.identity import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerId,
    TopicId,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode

OFFSET_LATEST = -1
OFFSET_EARLIEST = -2
OFFSET_OF_MAX_TIMESTAMP = -3

Topic = TopicName | TopicId


class ProduceOutcome(Struct, frozen=True, gc=False):
    """The result of producing to one partition.

    `leader_epoch` is the epoch in which the batches were appended, for `Partition.gate_produce`; NO_LEADER_EPOCH if
    nothing was appended. `log_append_time_ms` is -1 for topics with CreateTime. If some records are invalid, all
    batches are refused, and `invalid_records` are the indexes of the invalid records.
    """

    error: ErrorCode
    base_offset: Offset = NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: Offset = NO_OFFSET
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    message: str = ""
    invalid_records: tuple[int, ...] = ()


class AbortedRange(Struct, frozen=True, gc=False):
    """An aborted transaction: its producer and its first offset. Consumers with read_committed skip its records."""

    producer_id: ProducerId
    first_offset: Offset


class ReadOutcome(Struct, frozen=True, gc=False):
    """The result of reading one partition.

    `records` are whole batches, as read-only buffers in order; the first batch may begin below the requested offset.
    `aborted` is None unless the isolation level is read_committed. `leader_epoch` is the epoch in which the partition
    was read, for `Partition.gate_read`. `diverging` is the (epoch, end offset) at which the reader's log diverges from
    this one (KIP-595), or None. `file_slice` has the batches instead of `records` if the caller allowed that.
    """

    error: ErrorCode
    records: Sequence[bytes | memoryview] = ()
    size_bytes: int = 0
    next_offset: Offset = NO_OFFSET
    high_watermark: Offset = NO_OFFSET
    last_stable_offset: Offset = NO_OFFSET
    log_start_offset: Offset = NO_OFFSET
    aborted: Sequence[AbortedRange] | None = None
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    preferred_read_replica: BrokerId = NO_BROKER
    diverging: tuple[LeaderEpoch, Offset] | None = None
    file_slice: FileSlice | None = None


class OffsetOutcome(Struct, frozen=True, gc=False):
    """The result of an offset request. `timestamp_ms` is -1 unless a record was looked up by its timestamp."""

    error: ErrorCode
    offset: Offset = NO_OFFSET
    timestamp_ms: int = -1
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH


class LeaderNow(Struct, frozen=True, gc=False):
    """The leader of a partition as this broker knows it. `broker_id` is -1 if the partition has no leader."""

    broker_id: BrokerId
    leader_epoch: LeaderEpoch


class LeadershipWatcher(Protocol):
    """A coordinator, which is notified when this broker becomes the leader of a partition of a topic, or stops leading
    it.
    """

    def on_leader(
        self, topic: TopicName, partition: PartitionIndex, leader_epoch: LeaderEpoch
    ) -> None:
        """Start to coordinate, because this broker is now the leader of the partition."""

    def on_resigned(self, topic: TopicName, partition: PartitionIndex) -> None:
        """Stop coordinating, because this broker no longer leads the partition, or the partition was removed."""
