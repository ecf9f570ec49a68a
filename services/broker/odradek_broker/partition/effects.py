"""Effects: the actions that a replica decides on. Its host (replication/partition_host.py) carries them out in order,
before the next event.

- For the log: Append, AppendMarkers, Sync, TruncateTo, ResetLog, AssignEpoch, AdvanceLogStart.
- Messages of a leader to its followers: SendAttached, SendDiverged, SendSnapshotless, SendRefused.
- Messages of a follower to its leader: SendAttach, SendDetach, SendAck.
- A request to the controller: ProposeIsr. A request to a transaction coordinator: RegisterTransaction.
- For clients, coordinators and observers: RespondToProduce, RespondToDelete, AnswerMarkers, HighWatermarkMoved,
  RoleChanged, PartitionFailed, OrphanEnded, TransactionTorn.

When an Append, AppendMarkers, Sync, TruncateTo or ResetLog has completed, the host reports it with an event of
events.py: an append before it passes any other event, the others once the disk has finished. An append or a Sync is
always the last effect of its list, so the host may report it at once.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from odradek_broker.partition.events import FollowerSession, Marker, RegistrationMode
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    ProducerEpoch,
    ProducerId,
)
from odradek_protocol.kafka.error_codes import ErrorCode


class Role(Enum):
    """The role of a replica, by the metadata image of its broker."""

    # The image has no leader, or this broker hosts no replica of the partition any more.
    IDLE = "idle"
    LEADER = "leader"
    FOLLOWER = "follower"
    # The storage failed, or an internal error occurred: the replica stays offline until the broker restarts.
    FAILED = "failed"


class Append(Struct, frozen=True, kw_only=True, gc=False):
    """Append batches to the log. The host reports Appended, AppendRefused or StorageFailed before any other event.

    With a `request_id` these are the batches of that produce request, stamped with `base_offset` and
    `leader_epoch`, followed by those of the requests `further_ids`. With None they are the batches of the last
    DataReceived, unchanged.

    If a follower's `base_offset` is below its log end, the log is empty and has to start at
    `base_offset` instead, because the leader's log start lies within the first of these batches.
    """

    base_offset: Offset
    leader_epoch: LeaderEpoch
    request_id: int | None
    further_ids: tuple[int, ...] = ()


class AppendMarkers(Struct, frozen=True, kw_only=True, gc=False):
    """Append a control batch for each transaction marker. The host reports MarkersAppended before any other event."""

    base_offset: Offset
    leader_epoch: LeaderEpoch
    markers: tuple[Marker, ...]


class Sync(Struct, frozen=True, kw_only=True, gc=False):
    """Sync the log up to its end, for durability=fsync, flush.messages or flush.ms. The host reports Synced when that
    is done.
    """


class TruncateTo(Struct, frozen=True, kw_only=True, gc=False):
    """Truncate the log, its leader epochs and producer state to `end_offset`, synced (rule R4).

    The host reports Truncated when that is done. If `end_offset` is the log end, this only removes leader epochs
    that have no records.
    """

    end_offset: Offset


class ResetLog(Struct, frozen=True, kw_only=True, gc=False):
    """Delete the whole log and start it at `start_offset`. The host reports LogReset when that is done."""

    start_offset: Offset


class AssignEpoch(Struct, frozen=True, kw_only=True, gc=False):
    """Add (leader_epoch, log end) to the log's leader epochs: this replica leads from there (rule R1)."""

    leader_epoch: LeaderEpoch


class AdvanceLogStart(Struct, frozen=True, kw_only=True, gc=False):
    """Move the log start offset, after a DeleteRecords request or because the leader's log start moved. The host
    reports no event for this effect.
    """

    log_start: Offset


class SendAttached(Struct, frozen=True, kw_only=True, gc=False):
    """Accept a follower's Attach, because its log is a prefix of the leader's. From now on the host sends what
    `data_due(session)` returns.
    """

    session: FollowerSession
    attach_seq: int
    leader_epoch: LeaderEpoch
    high_watermark: Offset
    log_start: Offset


class SendDiverged(Struct, frozen=True, kw_only=True, gc=False):
    """Respond to a follower's Attach: its log diverges from the leader's, so it must truncate its log (rules R3,
    R4).
    """

    session: FollowerSession
    attach_seq: int
    leader_epoch: LeaderEpoch
    for_log_end: Offset
    for_last_epoch: LeaderEpoch
    epoch: LeaderEpoch
    end_offset: Offset


class SendSnapshotless(Struct, frozen=True, kw_only=True, gc=False):
    """Respond to a follower's Attach: it must delete its log and start at `log_start`."""

    session: FollowerSession
    attach_seq: int
    leader_epoch: LeaderEpoch
    log_start: Offset


class SendRefused(Struct, frozen=True, kw_only=True, gc=False):
    """Refuse the follower's Attach with this `attach_seq`. If `attach_seq` is 0, stop sending to a follower whose
    Attach was accepted.
    """

    session: FollowerSession
    attach_seq: int
    error_code: ErrorCode
    leader_epoch: LeaderEpoch


class SendAttach(Struct, frozen=True, kw_only=True, gc=False):
    """Ask the leader to send data from this follower's log end. One message contains at most 64 attaches."""

    session_id: int
    attach_seq: int
    leader_epoch: LeaderEpoch
    log_end: Offset
    last_epoch: LeaderEpoch
    log_start: Offset


class SendDetach(Struct, frozen=True, kw_only=True, gc=False):
    """Ask the leader to send no more data in this session."""

    session_id: int


class SendAck(Struct, frozen=True, kw_only=True, gc=False):
    """Acknowledge to the leader everything below `ack_to` (rule R6). Acknowledgements are cumulative, so only the
    last one of a turn of the event loop is sent. `is_synced`: the topic has durability=fsync, and `ack_to` is the
    end of what is synced to the disk.
    """

    session_id: int
    leader_epoch: LeaderEpoch
    ack_to: Offset
    is_synced: bool
    log_start: Offset


class ProposeIsr(Struct, frozen=True, kw_only=True, gc=False):
    """Propose an ISR change to the controller (AlterPartition). The host batches proposals, and reports
    IsrChangeResponded.
    """

    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    is_recovering: bool


class RegisterTransaction(Struct, frozen=True, kw_only=True, gc=False):
    """Ask the coordinator of the transactional id whether this partition belongs to the producer's open transaction.

    In mode ADD the coordinator adds the partition to the transaction. The host reports TransactionVerified with the
    same guard, or nothing if no response came by `deadline_ms`.
    """

    guard: int
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    mode: RegistrationMode
    deadline_ms: int


class AnswerMarkers(Struct, frozen=True, kw_only=True, gc=False):
    """Tell the transaction coordinator the outcome of each marker that the event MarkersRequested had. The host does so
    only if `may_respond` is true, as for RespondToProduce.
    """

    request_id: int
    error_codes: tuple[ErrorCode, ...]
    leader_epoch: LeaderEpoch


class OrphanEnded(Struct, frozen=True, kw_only=True, gc=False):
    """Report that the marker of a transaction was lost: the leader appends one itself, before a later transaction."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    first_offset: Offset
    is_commit: bool


class TransactionTorn(Struct, frozen=True, kw_only=True, gc=False):
    """Report that a transaction has two outcomes: a marker ended it in this partition, and its coordinator decided the
    other way.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch  # the epoch of the transaction's batches
    first_offset: Offset
    marker_offset: Offset
    is_commit: bool  # whether the coordinator decided to commit


class RespondToProduce(Struct, frozen=True, kw_only=True, gc=False):
    """Report the outcome of a ProduceRequested; `base_offset` is NO_OFFSET if there is an error.

    The host checks `may_respond(leader_epoch, ..)` when it writes the response to the socket (rule R13).
    """

    request_id: int
    error_code: ErrorCode
    base_offset: Offset
    leader_epoch: LeaderEpoch


class RespondToDelete(Struct, frozen=True, kw_only=True, gc=False):
    """Report the outcome of a DeleteRecordsRequested. As for RespondToProduce, the host first checks `may_respond`.

    `low_watermark` is the lowest log start offset of the replicas; NO_OFFSET if there is an error.
    """

    request_id: int
    error_code: ErrorCode
    low_watermark: Offset
    leader_epoch: LeaderEpoch


class HighWatermarkMoved(Struct, frozen=True, kw_only=True, gc=False):
    """Report the new high watermark to the log and to readers; followers receive it with the next Data,
    or without data within 50 ms (rule R9)."""

    high_watermark: Offset


class RoleChanged(Struct, frozen=True, kw_only=True, gc=False):
    """Report the new role, before any effect that follows from it. A FOLLOWER attaches once it gets a SessionReady for
    `leader`.
    """

    role: Role
    leader: BrokerId
    leader_epoch: LeaderEpoch


class PartitionFailed(Struct, frozen=True, kw_only=True, gc=False):
    """Take the log directory offline after a storage failure, and report that in the heartbeat (rule R11).

    After an internal error only this partition goes offline: each heartbeat from now on asks for another leader of
    it.
    """

    reason: str
    is_bug: bool


Effect: TypeAlias = (
    Append
    | AppendMarkers
    | Sync
    | TruncateTo
    | ResetLog
    | AssignEpoch
    | AdvanceLogStart
    | SendAttached
    | SendDiverged
    | SendSnapshotless
    | SendRefused
    | SendAttach
    | SendDetach
    | SendAck
    | ProposeIsr
    | RegisterTransaction
    | RespondToProduce
    | RespondToDelete
    | AnswerMarkers
    | OrphanEnded
    | TransactionTorn
    | HighWatermarkMoved
    | RoleChanged
    | PartitionFailed
)


class ReadBound(Struct, frozen=True, gc=False):
    """The part of the log that a consumer may read at one replica, [start_offset, end_offset), or an `error_code`.

    Before the response is sent, `may_respond(leader_epoch)` must be true. A fetch at `end_offset` waits for records, or
    gets none.
    """

    error_code: ErrorCode
    start_offset: Offset
    end_offset: Offset
    leader_epoch: LeaderEpoch


class DataDue(Struct, frozen=True, gc=False):
    """The Data message that a follower must be sent next: batches from `from_offset` up to `log_end`, as many as fit.

    If the two are equal, only the high watermark or the log start has moved; such a message may wait up to 50 ms so
    that it can be sent together with batches. Every Data message has `high_watermark` and `log_start`. They may move
    while the batches are read from the disk, so `data_due` is called again when the message is built.
    """

    from_offset: Offset
    log_end: Offset
    high_watermark: Offset
    log_start: Offset
    leader_epoch: LeaderEpoch
