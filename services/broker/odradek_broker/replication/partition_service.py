"""What a listener may ask of this broker's partitions. gRPC servicers, the Kafka listener and the
coordinators all come through here, so that a rule holds on every wire.

Everything runs on the broker's event loop; nothing here may be called from another thread. Errors
of the world are values (`ErrorCode` in the outcome); exceptions are bugs.

Naming a partition: `topic` is a TopicName or a TopicId (16 bytes); both are looked up in a dict.

The gate (R13): a leader's answer may leave only while the broker's lease holds and
it still leads in the epoch of the answer; an answer to acks=all needs no lease where
`acks.all.without.controller.enable` says so. A listener calls `gate_produce` / `gate_read` on each
outcome at the moment it encodes it, and writes what they return.
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


class LeadershipWatcher(Protocol):
    """Told when this broker begins or ceases to lead a partition of a topic (coordinators)."""

    def on_leader(
        self, topic: TopicName, partition: PartitionIndex, leader_epoch: LeaderEpoch
    ) -> None:
        """It leads now; the whole log may be read with `read_committed_log`."""

    def on_resigned(self, topic: TopicName, partition: PartitionIndex) -> None:
        """It leads no longer (or the partition is gone)."""


class PartitionService(Protocol):
    """The one door to the partitions."""

    # --- writing ---------------------------------------------------------------------------------

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
        """Validate, stamp and append whole batches; `on_done` is called once, perhaps at once.

        A writable buffer (bytearray, writable memoryview) is stamped in place and belongs to the
        log afterwards: hand it over, never reuse it. `bytes` are copied once. acks: 0, 1 or -1.
        `expected_leader_epoch` refuses with NOT_LEADER_OR_FOLLOWER when leadership changed hands
        (coordinators). `is_internal` allows internal topics and control batches.
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
        """The same as an awaitable, for callers that are not hot."""

    # --- reading ---------------------------------------------------------------------------------

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
        """Read in the order of `wants`, at least one batch in all even if larger than `bytes_max`;
        waits for `bytes_min`, an error, or `wait_ms_max`. Cancel it when the connection is lost.
        With `may_send_files` outcomes may have a `file_slice`: use it once the gate was passed.
        Thousands of `wants` are read at the `pace` of their request."""

    def read_now(
        self, want: FetchWant, *, read_committed: bool, at_least_one_batch: bool = True
    ) -> ReadOutcome | Awaitable[ReadOutcome]:
        """Read one partition: the outcome if its bytes are in memory, else an awaitable that reads
        them in the pool."""

    def list_offsets(
        self,
        topic: Topic,
        partition: PartitionIndex,
        timestamp_ms: int,
        *,
        read_committed: bool = False,
        current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    ) -> Awaitable[OffsetOutcome]:
        """OFFSET_LATEST, OFFSET_EARLIEST, OFFSET_OF_MAX_TIMESTAMP or ms since the epoch."""

    def offset_for_leader_epoch(
        self,
        topic: Topic,
        partition: PartitionIndex,
        leader_epoch: LeaderEpoch,
        *,
        current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    ) -> OffsetOutcome:
        """Largest epoch at or below `leader_epoch` and its end (`offset`), at the leader."""

    def delete_records(
        self, topic: Topic, partition: PartitionIndex, before_offset: Offset, *, timeout_ms: int
    ) -> Awaitable[OffsetOutcome]:
        """Advance the log start at the leader (-1: to the high watermark), and wait until all live
        replicas have: `offset` is the lowest of them. REQUEST_TIMED_OUT: it may yet come to pass."""

    # --- the gate --------------------------------------------------------------------------------

    def gate_produce(
        self, topic: Topic, partition: PartitionIndex, outcome: ProduceOutcome, *, acks: int
    ) -> ProduceOutcome:
        """The outcome of a produce with these `acks`, or NOT_LEADER_OR_FOLLOWER in its place when
        it may not leave any more."""

    def gate_read(
        self, topic: Topic, partition: PartitionIndex, outcome: ReadOutcome
    ) -> ReadOutcome:
        """Likewise for what was read."""

    def may_answer(
        self, topic: Topic, partition: PartitionIndex, leader_epoch: LeaderEpoch
    ) -> bool:
        """Whether an answer of that epoch may leave now, for answers of another shape
        (coordinators)."""

    def log_end(self, topic: Topic, partition: PartitionIndex) -> Offset:
        """Where the next record goes, committed or not; NO_OFFSET if there is no replica here."""

    # --- metadata --------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The cluster as this broker knows it now."""

    def leader_of(self, topic: Topic, partition: PartitionIndex) -> LeaderNow:
        """For the hint in NOT_LEADER_OR_FOLLOWER answers."""

    def watch_image(self, watcher: Callable[[MetadataImage], None]) -> Callable[[], None]:
        """Call `watcher` after changes, coalesced per loop turn; returns the way off."""

    # --- coordinators ----------------------------------------------------------------------------

    def watch_leadership(self, topic: TopicName, watcher: LeadershipWatcher) -> None:
        """Tell of this broker's leaderships in one topic, those it has now included."""
