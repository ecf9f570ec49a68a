"""The interface to this broker's partitions, and the outcomes that it returns.

gRPC servicers, the Kafka listener and the coordinators all use it, so that every rule holds for every protocol.
Everything runs on the broker's event loop; nothing here may be called from another thread. Expected errors are
values (`ErrorCode` in the outcome); an exception is a bug.

`topic` is a TopicName or a TopicId (16 bytes); both are looked up in a dict.

The gate (R13): a leader may send a response only while the broker's lease is valid and it still leads in the
epoch of the response. A response to acks=all needs no lease if `acks.all.without.controller.enable` is set.
A listener calls `gate_produce` or `gate_read` on each outcome when it encodes it, and sends what they return.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

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
from odradek_protocol.metadata.image import MetadataImage
from odradek_runtime.budget.loop_turns import Pace

OFFSET_LATEST = -1
OFFSET_EARLIEST = -2
OFFSET_OF_MAX_TIMESTAMP = -3

Topic = TopicName | TopicId


@dataclass(frozen=True, slots=True)
class ProduceOutcome:
    """The result of producing to one partition.

    `leader_epoch` is the epoch in which the batches were appended, for `PartitionService.gate_produce`;
    NO_LEADER_EPOCH if nothing was appended. `log_append_time_ms` is -1 for CreateTime topics. `invalid_records`
    are the indexes of the records because of which all batches were refused.
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
    """An aborted transaction, which read_committed consumers skip: its producer and first offset."""

    producer_id: ProducerId
    first_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchWant:
    """One partition of a fetch. Either `topic` or `topic_id` is set; `topic_id` takes precedence."""

    topic: TopicName | None = None
    topic_id: TopicId | None = None
    partition: PartitionIndex
    offset: Offset
    bytes_max: int
    current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    last_fetched_epoch: LeaderEpoch = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """The result of reading one partition.

    `records` are whole batches, as read-only buffers that follow each other; the first batch may begin below the
    requested offset. `aborted` is None unless the isolation level is read_committed. `leader_epoch` is the
    epoch in which it was read, for the gate. `diverging` is the (epoch, end offset) at which the reader's log
    diverges from this one (KIP-595), or None. `file_slice` replaces `records` if the caller allowed that.
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
    """The result of an offset request; `timestamp_ms` is -1 unless a record was looked up by its timestamp."""

    error: ErrorCode
    offset: Offset = NO_OFFSET
    timestamp_ms: int = -1
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class LeaderNow:
    """The leader of a partition as far as this broker knows; `broker_id` is -1 if it has none."""

    broker_id: BrokerId
    leader_epoch: LeaderEpoch


class LeadershipWatcher(Protocol):
    """A coordinator, which is notified when this broker starts or stops leading a partition of a topic."""

    def on_leader(
        self, topic: TopicName, partition: PartitionIndex, leader_epoch: LeaderEpoch
    ) -> None:
        """This broker leads the partition now."""

    def on_resigned(self, topic: TopicName, partition: PartitionIndex) -> None:
        """This broker no longer leads the partition, or the partition was removed."""


class PartitionService(Protocol):
    """All access of listeners and coordinators to the partitions."""

    def produce(
        self,
        topic: Topic,
        partition: PartitionIndex,
        records: bytes | bytearray | memoryview,
        *,
        acks: int,
        timeout_ms: int,
        on_done: Callable[[ProduceOutcome], None],
        expected_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
        is_internal: bool = False,
    ) -> None:
        """Validate, stamp and append whole batches.

        `on_done` is called exactly once, possibly before this returns. A writable buffer (bytearray, writable
        memoryview) is stamped in place and belongs to the log afterwards: the caller must not reuse it. `bytes`
        are copied once. `acks` is 0, 1 or -1. In another epoch than `expected_leader_epoch` the batches are
        refused with NOT_LEADER_OR_FOLLOWER (for coordinators). `is_internal` allows internal topics and control
        batches.
        """

    def produce_async(
        self,
        topic: Topic,
        partition: PartitionIndex,
        records: bytes | bytearray | memoryview,
        *,
        acks: int = -1,
        timeout_ms: int = 30_000,
        expected_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
        is_internal: bool = False,
    ) -> Awaitable[ProduceOutcome]:
        """Like `produce`, but awaitable; for callers outside the hot path."""

    async def fetch(
        self,
        wants: Sequence[FetchWant],
        *,
        bytes_min: int,
        bytes_max: int,
        wait_ms_max: int,
        read_committed: bool,
        client_rack: str = "",
        hard_bytes_max: bool = False,
        may_send_files: bool = False,
        pace: Pace | None = None,
    ) -> list[ReadOutcome]:
        """Read partitions in the order of `wants`, and wait for `bytes_min`, an error or `wait_ms_max`.

        At least one batch is returned even if it is larger than `bytes_max`, unless `hard_bytes_max`. The caller
        cancels this when the connection is lost. With `may_send_files` outcomes may have a `file_slice`, to be
        used only after the gate was passed. `pace` lets other requests run between thousands of `wants`.
        """

    def read_now(
        self, want: FetchWant, *, read_committed: bool, at_least_one_batch: bool = True
    ) -> ReadOutcome | Awaitable[ReadOutcome]:
        """Read one partition: return the outcome if its bytes are in memory, else an awaitable that reads them
        in the pool."""

    def list_offsets(
        self,
        topic: Topic,
        partition: PartitionIndex,
        timestamp_ms: int,
        *,
        read_committed: bool = False,
        current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    ) -> Awaitable[OffsetOutcome]:
        """Look up an offset by time, in ms since the Unix epoch.

        `timestamp_ms` can also be OFFSET_LATEST, OFFSET_EARLIEST or OFFSET_OF_MAX_TIMESTAMP.
        """

    def offset_for_leader_epoch(
        self,
        topic: Topic,
        partition: PartitionIndex,
        leader_epoch: LeaderEpoch,
        *,
        current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    ) -> OffsetOutcome:
        """Return the largest epoch at or below `leader_epoch` in the leader's log, and its end as `offset`."""

    def delete_records(
        self, topic: Topic, partition: PartitionIndex, before_offset: Offset, *, timeout_ms: int
    ) -> Awaitable[OffsetOutcome]:
        """Advance the log start at the leader (-1: to the high watermark), and wait for all live replicas.

        The outcome's `offset` is the lowest log start among them. After REQUEST_TIMED_OUT the records may still
        be deleted later.
        """

    def gate_produce(
        self, topic: Topic, partition: PartitionIndex, outcome: ProduceOutcome, *, acks: int
    ) -> ProduceOutcome:
        """Return the outcome of a produce with these `acks` if it may still be sent, else NOT_LEADER_OR_FOLLOWER."""

    def gate_read(
        self, topic: Topic, partition: PartitionIndex, outcome: ReadOutcome
    ) -> ReadOutcome:
        """Return the outcome of a read if it may still be sent, else NOT_LEADER_OR_FOLLOWER."""

    def may_answer(
        self, topic: Topic, partition: PartitionIndex, leader_epoch: LeaderEpoch
    ) -> bool:
        """Return whether a response of that epoch may be sent now; for responses of the coordinators."""

    def log_end(self, topic: Topic, partition: PartitionIndex) -> Offset:
        """Return the log end offset, committed or not; NO_OFFSET if there is no replica on this broker."""

    @property
    def image(self) -> MetadataImage:
        """The metadata image of this broker."""

    def leader_of(self, topic: Topic, partition: PartitionIndex) -> LeaderNow:
        """Return the leader, for the hint in NOT_LEADER_OR_FOLLOWER responses."""

    def watch_image(self, watcher: Callable[[MetadataImage], None]) -> Callable[[], None]:
        """Call `watcher` after changes of the image, once per turn of the loop; return a function that stops it."""

    def watch_leadership(self, topic: TopicName, watcher: LeadershipWatcher) -> None:
        """Notify `watcher` of each partition of the topic that this broker leads, now and from now on."""
