"""Events: everything that can happen to a replica. Its host (replication/partition_host.py) passes each event to
`Replica.step`.

- From the metadata image: PartitionChanged, BrokerChanged, PartitionRemoved.
- From clients: ProduceRequested, ProducesRequested, TransactionalProduceRequested, DeleteRecordsRequested.
- From transaction coordinators: TransactionVerified, MarkersRequested, HangingTransactionResolved.
- From the log: Appended, MarkersAppended, AppendRefused, Synced, Truncated, LogReset, LogStartAdvanced, StorageFailed.
- From the host itself, after an internal error: BugFound.
- At a leader, from its followers' streams: AttachReceived, DetachReceived, AckReceived, FollowerSessionClosed,
  DataSent.
- At a follower, from the stream to its leader: SessionReady, LeaderSessionClosed, AttachedReceived, DivergedReceived,
  SnapshotlessReceived, DataReceived, RefusedReceived.
- From the controller: IsrChangeResponded. From the clock: Tick, LeaderStalled.

Times are ms of CLOCK_BOOTTIME, which the host reads: CLOCK_MONOTONIC stops while the machine is suspended, so a lease
measured with that clock would not expire meanwhile. Range ends are exclusive. README.md beside this file lists the
rules (R1 ..).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from odradek_broker.partition.log_positions import OFFSET_MAX
from odradek_protocol.identity import (
    NO_LEADER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
)
from odradek_protocol.kafka.error_codes import ErrorCode


class BrokerView(Struct, frozen=True, kw_only=True, gc=False):
    """A broker that hosts a replica, as the image shows it."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    is_fenced: bool
    in_shutdown: bool


class PartitionChanged(Struct, frozen=True, kw_only=True, gc=False):
    """The state of this partition in the metadata image changed. Events come in the order of the metadata feed.

    The host sends the first such event when the image contains this broker's current registration; an older image
    describes an earlier process of the broker. The host sends another event whenever any field differs:
    `min_insync_replicas` may change while `partition_epoch` stays the same. `brokers` has those of the `replicas` that
    are registered.
    """

    leader: BrokerId  # NO_BROKER: the partition has no leader
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    min_insync_replicas: int
    is_recovering: bool
    brokers: tuple[BrokerView, ...]
    is_fsync: bool = False  # durability=fsync: only synced records count as stored
    # flush.messages: a sync starts when this many records are unsynced.
    flush_messages: int = OFFSET_MAX
    flush_ms: int = OFFSET_MAX  # flush.ms: the longest time that a record may stay unsynced


class BrokerChanged(Struct, frozen=True, kw_only=True, gc=False):
    """A broker that has a replica of this partition registered again, was fenced or unfenced, or began to shut
    down.
    """

    broker: BrokerView


class PartitionRemoved(Struct, frozen=True, kw_only=True, gc=False):
    """The topic was deleted, or the image no longer assigns the replica to this broker. The replica responds to all
    requests with UNKNOWN_TOPIC_ID from now on.
    """


class ProducerBatch(Struct, frozen=True, gc=False):
    """The idempotent producer of a batch, and the first and the last sequence number of the batch, both inclusive.
    After 2^31 - 1 the sequence numbers begin again at 0.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    last_sequence: int
    is_transactional: bool = False


class ProduceRequested(Struct, frozen=True, kw_only=True, gc=False):
    """A client or a coordinator asks the leader to append complete batches, whose size and CRC have been checked.

    If `producer` is set, there is exactly one batch. `acks` is 0, 1 or -1 (all). A coordinator sets
    `expected_leader_epoch` to the leader epoch in which it loaded its state; in any other epoch the append is refused.
    """

    request_id: int  # chosen by the host; repeated in RespondToProduce
    record_count: int  # number of offsets that the batches occupy
    acks: int
    deadline_ms: int
    producer: ProducerBatch | None = None
    # The leader epoch that the request requires; NO_LEADER_EPOCH: any.
    expected_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH


class ProducesRequested(Struct, frozen=True, kw_only=True, gc=False):
    """Several produce requests whose batches are appended together, in this order.

    None of the requests is transactional, and no two have the same producer: whether a batch is a duplicate can be
    decided only after the producer's earlier batches were appended.
    """

    requests: tuple[ProduceRequested, ...]


class RegistrationMode(Enum):
    """What a partition leader asks of a transaction coordinator before it appends the first batch of a transaction
    (KIP-890).
    """

    # Add this partition to the transaction. Clients with transaction.version 2 leave this to the leader.
    ADD = "add"
    # Confirm that the client has added this partition to the transaction.
    VERIFY = "verify"


class TransactionalProduceRequested(Struct, frozen=True, kw_only=True, gc=False):
    """A client asks the leader to append one batch, that of `produce.producer`, in a transaction."""

    produce: ProduceRequested
    transactional_id: str
    mode: RegistrationMode


class TransactionOutcome(NamedTuple):
    """A coordinator's decision to commit or to abort a transaction, and the producer id and epoch of the
    transaction.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch  # the epoch of the transaction's batches
    is_commit: bool


class TransactionVerified(Struct, frozen=True, kw_only=True, gc=False):
    """The coordinator's response to the RegisterTransaction with the same `guard`.

    `error_code` is NONE if the partition belongs to the producer's open transaction. The coordinator is the leader of
    `coordinator_partition` of `__transaction_state` in the leader epoch `coordinator_epoch`; both fields are -1 if no
    coordinator responded. `last_outcome` is the outcome of the last finished transaction of this transactional id; None
    if the coordinator knows none.
    """

    guard: int
    error_code: ErrorCode
    coordinator_partition: PartitionIndex
    coordinator_epoch: LeaderEpoch
    last_outcome: TransactionOutcome | None = None


class Marker(NamedTuple):
    """A marker that a transaction coordinator asks the leader to append. `is_bumped`: the marker's producer epoch is
    higher than that of the transaction's batches (transaction.version 2).
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool
    coordinator_partition: PartitionIndex
    coordinator_epoch: LeaderEpoch
    is_bumped: bool


class MarkersRequested(Struct, frozen=True, kw_only=True, gc=False):
    """A transaction coordinator asks the leader to append markers, all in one append."""

    request_id: int  # chosen by the host; repeated in AnswerMarkers
    markers: tuple[Marker, ...]
    deadline_ms: int


class HangingTransactionResolved(Struct, frozen=True, kw_only=True, gc=False):
    """All coordinators were asked about a transaction that is open in this partition, and none of them will end it.

    `entry` is the producer's state in the log, read before the coordinators were asked. The leader ends the transaction
    only if the state is still the same, and if no batch of this producer waits for a coordinator.
    """

    request_id: int  # chosen by the host; repeated in AnswerMarkers
    producer_id: ProducerId
    entry: object
    is_commit: bool
    deadline_ms: int


class DeleteRecordsRequested(Struct, frozen=True, kw_only=True, gc=False):
    """A client asks to delete all records below `before_offset`. If `before_offset` is -1, the client asks to delete
    all records below the high watermark.
    """

    request_id: int  # chosen by the host; repeated in RespondToDelete
    before_offset: Offset
    deadline_ms: int


class Appended(Struct, frozen=True, kw_only=True, gc=False):
    """The batches of the last Append effect are in the log. No other event comes between that effect and this event."""

    end_offset: Offset


class MarkersAppended(Struct, frozen=True, kw_only=True, gc=False):
    """The markers of the last AppendMarkers effect are in the log. No other event comes between that effect and this
    event.
    """

    end_offset: Offset


class Synced(Struct, frozen=True, kw_only=True, gc=False):
    """A Sync effect finished: everything below `durable_end` is synced. `durable_end` may be lower than in the previous
    Synced, if the log was truncated since.
    """

    durable_end: Offset


class Truncated(Struct, frozen=True, kw_only=True, gc=False):
    """A TruncateTo effect finished: the log is truncated, and the log and its leader epochs are synced."""


class LogReset(Struct, frozen=True, kw_only=True, gc=False):
    """A ResetLog effect finished: the log is empty and starts at the offset of that effect."""


class LogStartAdvanced(Struct, frozen=True, kw_only=True, gc=False):
    """Retention raised the log start offset, but not above the high watermark."""

    log_start: Offset


class StorageFailed(Struct, frozen=True, kw_only=True, gc=False):
    """A write, sync or truncation of this replica's log failed, or the data directory is offline (rule R11)."""

    reason: str


class BugFound(Struct, frozen=True, kw_only=True, gc=False):
    """The host's code or `Replica.step` raised an AssertionError or another unexpected exception while it worked for
    this replica, or the replica's log is damaged on disk and another replica is in sync.
    """

    reason: str


class AppendRefused(Struct, frozen=True, kw_only=True, gc=False):
    """The log refused an append, for example because the disk is full. No batch of the last Append or AppendMarkers
    effect was written, and the log has not changed.
    """


class FollowerSession(Struct, frozen=True, kw_only=True, gc=False):
    """One replication stream of a follower, as the follower's Hello message describes it.

    A follower has two streams, called lanes: one for partitions that are in sync, and one for partitions that catch up
    (`is_catch_up`). In a lane a session with a greater `session_id` replaces the earlier one. The leader's broker then
    ends the older stream; late messages of the older stream may still become events, and are ignored.
    """

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    session_id: int
    is_catch_up: bool = False


class AttachReceived(Struct, frozen=True, kw_only=True, gc=False):
    """A follower reports the end of its log and asks for the data after it (rule R3).

    A broker process numbers all its Attach messages with `attach_seq`, across both lanes. An Attach is ignored if one
    with a greater number arrived earlier.
    """

    session: FollowerSession
    attach_seq: int
    leader_epoch: LeaderEpoch
    log_end: Offset
    last_epoch: LeaderEpoch
    log_start: Offset


class DetachReceived(Struct, frozen=True, kw_only=True, gc=False):
    """A follower asks the leader to send no more data of this partition in this session."""

    session: FollowerSession


class AckReceived(Struct, frozen=True, kw_only=True, gc=False):
    """A follower acknowledges everything below `ack_to` as appended, or, if `is_synced`, as synced to its disk (rule
    R7).

    `log_start` is the follower's log start offset.
    """

    session: FollowerSession
    leader_epoch: LeaderEpoch
    ack_to: Offset
    is_synced: bool
    log_start: Offset


class FollowerSessionClosed(Struct, frozen=True, kw_only=True, gc=False):
    """A follower's stream ended, or a newer stream of the same lane replaced it."""

    session: FollowerSession


class DataSent(Struct, frozen=True, kw_only=True, gc=False):
    """The host has sent a Data message, built from the result of `data_due`, to a follower."""

    session: FollowerSession
    end_offset: Offset  # the end of the batches; without batches, the base offset of the message
    high_watermark: Offset


class SessionReady(Struct, frozen=True, kw_only=True, gc=False):
    """A stream to `leader` is open. The follower attaches on this stream from now on, even if it is attached on the
    other of its two streams to the leader (see `FollowerSession`).
    """

    session_id: int
    leader: BrokerId


class LeaderSessionClosed(Struct, frozen=True, kw_only=True, gc=False):
    """The stream to the leader ended."""

    session_id: int


class AttachedReceived(Struct, frozen=True, kw_only=True, gc=False):
    """The leader accepted this follower's Attach, and sends data from this follower's log end on."""

    session_id: int
    attach_seq: int
    leader_epoch: LeaderEpoch
    high_watermark: Offset
    log_start: Offset


class DivergedReceived(Struct, frozen=True, kw_only=True, gc=False):
    """The leader's response to an Attach: this follower's log diverges from the leader's log.

    `epoch` is the greatest epoch in the leader's log that is not above `for_last_epoch`, and `end_offset` is the end of
    that epoch in the leader's log. `for_log_end` and `for_last_epoch` repeat the values of the Attach.
    """

    session_id: int
    attach_seq: int
    leader_epoch: LeaderEpoch
    for_log_end: Offset
    for_last_epoch: LeaderEpoch
    epoch: LeaderEpoch
    end_offset: Offset


class SnapshotlessReceived(Struct, frozen=True, kw_only=True, gc=False):
    """The leader no longer has the records that follow this follower's log end, or the two logs share no leader epoch.
    So the follower must delete its log and start an empty one at `log_start`.
    """

    session_id: int
    attach_seq: int
    leader_epoch: LeaderEpoch
    log_start: Offset


class DataReceived(Struct, frozen=True, kw_only=True, gc=False):
    """The leader sent batches, whose headers and CRCs have been checked (rule R5).

    `epochs` has a pair (leader epoch, base offset) for the first batch and for each later batch whose epoch differs
    from that of the batch before; it is empty when there are no batches. The first batch may start below `base_offset`
    and end above it, because the leader's log start may lie inside a batch.
    """

    session_id: int
    leader_epoch: LeaderEpoch
    base_offset: Offset
    end_offset: Offset
    high_watermark: Offset
    log_start: Offset
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]
    is_intact: bool  # whether every CRC matches


class RefusedReceived(Struct, frozen=True, kw_only=True, gc=False):
    """The leader refused this follower's Attach with this `attach_seq`. If `attach_seq` is 0, the leader has stopped
    sending data of this partition.
    """

    session_id: int
    attach_seq: int
    error_code: ErrorCode
    leader_epoch: LeaderEpoch


class IsrChangeResponded(Struct, frozen=True, kw_only=True, gc=False):
    """The controller's response to the ISR proposal that names this leader epoch and partition epoch. `error_code` is
    REQUEST_TIMED_OUT if there was no response, because the response was lost or another node became the controller.
    """

    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    error_code: ErrorCode


class Tick(Struct, frozen=True, kw_only=True, gc=False):
    """About 100 ms have passed. The replica checks deadlines and lag, and repeats messages that got no response."""


class LeaderStalled(Struct, frozen=True, kw_only=True, gc=False):
    """The event loop of this broker did not run for `stall_ms` (more than 500). The leader does not count that time as
    lag of its followers (rule R10).
    """

    stall_ms: int


Event: TypeAlias = (
    PartitionChanged
    | BrokerChanged
    | PartitionRemoved
    | ProduceRequested
    | ProducesRequested
    | TransactionalProduceRequested
    | TransactionVerified
    | MarkersRequested
    | HangingTransactionResolved
    | DeleteRecordsRequested
    | Appended
    | MarkersAppended
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
    | IsrChangeResponded
    | Tick
    | LeaderStalled
)
