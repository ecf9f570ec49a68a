"""Everything that can happen to a replica. The shell makes one of these and passes it to `Replica.step`.

Times are ms of one clock, CLOCK_BOOTTIME, that the shell reads (a lease on CLOCK_MONOTONIC would
outlive a suspended machine). Offsets: range ends are exclusive. Rule numbers (R1 ..) are those of
the replication protocol, listed in README.md beside this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from odradek_protocol.identity import (
    NO_LEADER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    ProducerEpoch,
    ProducerId,
)
from odradek_protocol.kafka.error_codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """One broker that hosts a replica, as the image shows it."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    is_fenced: bool
    in_shutdown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChanged:
    """The image's state of this partition, in feed order.

    The first one is sent when the image has reached this broker's own registration; before that it
    shows an earlier one. Send it whenever a field differs: `min_insync_replicas` may change while
    `partition_epoch` does not. `brokers` are the brokers of `replicas` that the image knows.
    """

    leader: BrokerId  # NO_BROKER: none
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    min_insync_replicas: int
    is_recovering: bool
    brokers: tuple[BrokerView, ...]
    is_fsync: bool = False  # the topic's durability=fsync: positions are synced ends


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChanged:
    """A broker of `replicas` registered again, was fenced or unfenced, or began to shut down."""

    broker: BrokerView


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRemoved:
    """The topic was deleted from the image. The replica responds UNKNOWN_TOPIC_ID from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerBatch:
    """The producer of a batch and its sequences, which are inclusive and wrap after 2^31 - 1."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    last_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequested:
    """A client wants whole batches appended, whose size and CRC the shell has checked.

    With `producer` set there is exactly one batch. `acks` is 0, 1 or -1 (all). A coordinator sets
    `expected_leader_epoch` to the epoch that it loaded its state in; it writes in no other.
    """

    request_id: int  # chosen by the shell; comes back in AnswerProduce
    record_count: int  # offsets that the batches take
    acks: int
    deadline_ms: int
    producer: ProducerBatch | None = None
    expected_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH  # NO_LEADER_EPOCH: any


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequested:
    """A client wants all records below `before_offset` deleted; -1: all below the high watermark."""

    request_id: int  # chosen by the shell; comes back in AnswerDelete
    before_offset: Offset
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """write(2) of the last Append returned. No other event may come between the two."""

    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """A Sync finished; `durable_end` is the log's own after it (a truncation may have lowered it)."""

    durable_end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """The TruncateTo is done, and synced together with the leader epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReset:
    """The ResetLog is done: the log is empty and begins at the offset asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartAdvanced:
    """Retention moved the log start offset (never past the high watermark)."""

    log_start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFailed:
    """A write, sync, truncation or CRC check of our own bytes failed (R11)."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BugFound:
    """An assertion failed in this replica's work, or an unexpected exception was raised."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRefused:
    """The disk is full: nothing of the Append was written, and the log is as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerSession:
    """One stream of one follower, as its Hello names it.

    A follower has one stream for followers in sync and one to catch up (`is_catch_up`). Of two streams of
    the same kind the one with the greater `session_id` wins, and the shell ends the other one; its late
    messages may still come here and are ignored.
    """

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    session_id: int
    is_catch_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachReceived:
    """A follower says where its log ends and wants the data after that (R3).

    Of one process of the follower the greater `attach_seq` is later, also in its other stream. An Attach
    that arrives after a later one is void.
    """

    session: FollowerSession
    attach_seq: int
    leader_epoch: LeaderEpoch
    log_end: Offset
    last_epoch: LeaderEpoch
    log_start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachReceived:
    """A follower no longer wants data of this partition in this session."""

    session: FollowerSession


@dataclass(frozen=True, slots=True, kw_only=True)
class AckReceived:
    """A follower has everything below `ack_to`: appended, or, if `is_synced`, on its disk (R7). Its log
    begins at `log_start`."""

    session: FollowerSession
    leader_epoch: LeaderEpoch
    ack_to: Offset
    is_synced: bool
    log_start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerSessionClosed:
    """A follower's stream ended, or a newer one replaced it."""

    session: FollowerSession


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSent:
    """The shell passed a Data message to the stream, with the content that `data_due` returned."""

    session: FollowerSession
    end_offset: Offset  # the Data's base offset when it carried the high watermark alone
    high_watermark: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReady:
    """A stream to `leader` is open: attach in it from now on, also instead of another open stream."""

    session_id: int
    leader: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSessionClosed:
    """The stream to the leader ended."""

    session_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedReceived:
    """The leader begins to send data from our log end on."""

    session_id: int
    attach_seq: int
    leader_epoch: LeaderEpoch
    high_watermark: Offset
    log_start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedReceived:
    """Our lineage differs from the leader's, whose largest epoch <= `for_last_epoch` ends at `end_offset`."""

    session_id: int
    attach_seq: int
    leader_epoch: LeaderEpoch
    for_log_end: Offset
    for_last_epoch: LeaderEpoch
    epoch: LeaderEpoch
    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotlessReceived:
    """The leader no longer has the data after our log end: drop the log and begin at `log_start`."""

    session_id: int
    attach_seq: int
    leader_epoch: LeaderEpoch
    log_start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReceived:
    """Batches of the leader, whose headers and CRCs the shell has checked (R5).

    `epochs`: (leader epoch, base offset) of the first batch and of each later batch where the epoch
    changes; empty when there are no batches. The first batch may begin below `base_offset`, if it
    ends above: the leader's log may begin within a batch.
    """

    session_id: int
    leader_epoch: LeaderEpoch
    base_offset: Offset
    end_offset: Offset
    high_watermark: Offset
    log_start: Offset
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]
    is_intact: bool  # every CRC is right


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedReceived:
    """The leader refuses an Attach; with `attach_seq` 0 it ends an attachment."""

    session_id: int
    attach_seq: int
    error_code: ErrorCode
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChangeAnswered:
    """The controller's response to the ProposeIsr of this leader epoch and partition epoch;
    REQUEST_TIMED_OUT when none came (it was lost, or the controller moved)."""

    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed, about 100 ms: deadlines, lag and repeated proposals are judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderStalled:
    """This broker's loop stood still for `stall_ms` (over 500), which counts as no follower's lag (R10)."""

    stall_ms: int


Event: TypeAlias = (
    PartitionChanged
    | BrokerChanged
    | PartitionRemoved
    | ProduceRequested
    | DeleteRecordsRequested
    | Appended
    | Synced
    | Truncated
    | LogReset
    | LogStartAdvanced
    | StorageFailed
    | BugFound
    | AppendRefused
    | AttachReceived
    | DetachReceived
    | AckReceived
    | FollowerSessionClosed
    | DataSent
    | SessionReady
    | LeaderSessionClosed
    | AttachedReceived
    | DivergedReceived
    | SnapshotlessReceived
    | DataReceived
    | RefusedReceived
    | IsrChangeAnswered
    | Tick
    | LeaderStalled
)
