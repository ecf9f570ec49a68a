"""What the partition service answers: values that every listener encodes in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class ProduceOutcome:
    """What became of the batches for one partition.

    `leader_epoch` is the epoch they were appended under, for `PartitionService.gate`;
    NO_LEADER_EPOCH when nothing was appended. `log_append_time_ms` is -1 for CreateTime topics.
    `invalid_records` are the indexes of the records that the others were refused for.
    """

    error: ErrorCode
    base_offset: Offset = NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: Offset = NO_OFFSET
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    message: str = ""
    invalid_records: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AbortedRange:
    """A transaction that readers of committed records skip: producer and its first offset."""

    producer_id: ProducerId
    first_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchWant:
    """One partition of a fetch. `topic_id` wins over `topic`; one of them is given."""

    topic: TopicName | None = None
    topic_id: TopicId | None = None
    partition: PartitionIndex
    offset: Offset
    bytes_max: int
    current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    last_fetched_epoch: LeaderEpoch = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """What one partition has to give from an offset on.

    `records` are whole batches, read-only buffers to be written one after the other; the first may
    begin below the offset asked for. `aborted` is None unless committed records were asked for.
    `leader_epoch` is the epoch it was read under, for the gate. `diverging` is (epoch, end offset)
    where the reader's own lineage ends (KIP-595), None if it does not diverge. `file_slice`, only
    for who asked for it, stands in place of `records`.
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


@dataclass(frozen=True, slots=True)
class OffsetOutcome:
    """An offset that was asked for; `timestamp_ms` is -1 where the question was not of time."""

    error: ErrorCode
    offset: Offset = NO_OFFSET
    timestamp_ms: int = -1
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class LeaderNow:
    """Who leads a partition as far as this broker knows; id -1 when nobody does."""

    broker_id: BrokerId
    leader_epoch: LeaderEpoch
