"""Effects: the actions that a replica decides on. Its host (replication/partition_host.py) carries them out in order,
before the next event.

- For the log: Append, AppendMarkers, Sync, TruncateTo, ResetLog, AssignEpoch, AdvanceLogStart.
- Messages of a leader to its followers: SendAttached, SendDiverged, SendSnapshotless, SendRefused.
- Messages of a follower to its leader: SendAttach, SendDetach, SendAck.
- A request to the controller: ProposeIsr. A request to a transaction coordinator: RegisterTransaction.
- For clients, coordinators and observers: RespondToProduce, RespondToDelete, AnswerMarkers, HighWatermarkMoved,
  RoleChanged, PartitionFailed, OrphanEnded, TransactionTorn.

When an Append, AppendMarkers, Sync, TruncateTo or ResetLog has completed, the host reports this with an event of
events.py. It reports an append before it passes any other event, and a Sync, TruncateTo or ResetLog when the disk has
finished. An append or a Sync is always the last effect of its list, so the host may report its completion at once.
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
    """The role that the metadata image gives this replica, or FAILED."""

    # The image has no leader of the partition, or this broker hosts no replica of the partition any more.
    IDLE = "idle"
    LEADER = "leader"
    FOLLOWER = "follower"
    # The storage failed, or an internal error occurred: the replica stays offline until the broker restarts.
    FAILED = "failed"


class Append(Struct, frozen=True, kw_only=True, gc=False):
    """Append batches to the log. The host reports Appended, AppendRefused or StorageFailed before any other event.

    If `request_id` is set, the host appends the batches of that produce request and then those of the requests
    `further_ids`, with offsets from `base_offset` on and with `leader_epoch`. If `request_id` is None, the replica is a
    follower, and the host appends the batches of the last DataReceived unchanged.

    The `base_offset` of a follower may be below its log end. The log is then empty, and must start at `base_offset`
    instead, because the leader's log start lies inside the first of these batches.
    """

    base_offset: Offset
    leader_epoch: LeaderEpoch
    request_id: int | None
    further_ids: tuple[int, ...] = ()


class AppendMarkers(Struct, frozen=True, kw_only=True, gc=False):
    """Append a control batch for each transaction marker. The host reports MarkersAppended, AppendRefused or
    StorageFailed before any other event.
    """

    base_offset: Offset
    leader_epoch: LeaderEpoch
    markers: tuple[Marker, ...]


class Sync(Struct, frozen=True, kw_only=True, gc=False):
    """Sync the log up to its end, because of durability=fsync, flush.messages or flush.ms. The host reports Synced when
    the sync is finished.
    """


class TruncateTo(Struct, frozen=True, kw_only=True, gc=False):
    """Truncate the log to `end_offset`, with its leader epochs and producer states, and sync it (rule R4).

    The host reports Truncated when the truncation is finished. If `end_offset` is the log end, the truncation removes
    no records, only leader epochs that have no records.
    """

    end_offset: Offset


class ResetLog(Struct, frozen=True, kw_only=True, gc=False):
    """Delete the whole log and start an empty one at `start_offset`. The host reports LogReset when this is done."""

    start_offset: Offset


class AssignEpoch(Struct, frozen=True, kw_only=True, gc=False):
    """Add (`leader_epoch`, log end) to the log's leader epochs, because this replica becomes the leader (rule R1)."""

    leader_epoch: LeaderEpoch


class AdvanceLogStart(Struct, frozen=True, kw_only=True, gc=False):
    """Move the log start offset, after a DeleteRecords request or because the leader's log start moved. The host
    reports no event for this effect.
    """

    log_start: Offset


class SendAttached(Struct, frozen=True, kw_only=True, gc=False):
    """Accept a follower's Attach, because the follower's log is a prefix of the leader's log. From now on the host
    sends the messages that `data_due(session)` returns.
    """

    session: FollowerSession
    attach_seq: int
    leader_epoch: LeaderEpoch
    high_watermark: Offset
    log_start: Offset


class SendDiverged(Struct, frozen=True, kw_only=True, gc=False):
    """Respond to a follower's Attach that the follower's log diverges from the leader's log, so the follower must
    truncate its log (rules R3, R4). The fields are those of DivergedReceived.
    """

    session: FollowerSession
    attach_seq: int
    leader_epoch: LeaderEpoch
    for_log_end: Offset
    for_last_epoch: LeaderEpoch
    epoch: LeaderEpoch
    end_offset: Offset


class SendSnapshotless(Struct, frozen=True, kw_only=True, gc=False):
    """Respond to a follower's Attach that the follower must delete its log and start an empty one at `log_start`."""

    session: FollowerSession
    attach_seq: int
    leader_epoch: LeaderEpoch
    log_start: Offset


class SendRefused(Struct, frozen=True, kw_only=True, gc=False):
    """Refuse the follower's Attach with this `attach_seq`. If `attach_seq` is 0, tell a follower whose Attach was
    accepted earlier that the leader sends it no more data.
    """

    session: FollowerSession
    attach_seq: int
    error_code: ErrorCode
    leader_epoch: LeaderEpoch


class SendAttach(Struct, frozen=True, kw_only=True, gc=False):
    """Ask the leader to send data from this follower's log end on. The host may put several of these effects, of
    different partitions, into one message.
    """

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
    """Acknowledge to the leader everything below `ack_to` (rule R6). Acknowledgements are cumulative, so the host sends
    only the last one of an iteration of the event loop.

    If `is_synced`, the topic has durability=fsync, and everything below `ack_to` is synced to the disk.
    """

    session_id: int
    leader_epoch: LeaderEpoch
    ack_to: Offset
    is_synced: bool
    log_start: Offset


class ProposeIsr(Struct, frozen=True, kw_only=True, gc=False):
    """Propose a change of the ISR to the controller (AlterPartition). The host sends the proposals of several
    partitions in one request, and reports IsrChangeResponded for each.
    """

    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    is_recovering: bool


class RegisterTransaction(Struct, frozen=True, kw_only=True, gc=False):
    """Ask the coordinator of the transactional id whether this partition belongs to the producer's open transaction.

    In mode ADD the coordinator adds the partition to the transaction. The host reports TransactionVerified with the
    same `guard`, also if no coordinator could be asked. After `deadline_ms` the replica ignores this event.
    """

    guard: int
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    mode: RegistrationMode
    deadline_ms: int


class AnswerMarkers(Struct, frozen=True, kw_only=True, gc=False):
    """Send the transaction coordinator the outcome of each marker of the event MarkersRequested with this `request_id`.
    The host sends the response only if `may_respond` is true.
    """

    request_id: int
    error_codes: tuple[ErrorCode, ...]
    leader_epoch: LeaderEpoch


class OrphanEnded(Struct, frozen=True, kw_only=True, gc=False):
    """Report that the leader ended a transaction whose marker was lost. The same producer begins its next transaction,
    so the leader appends a marker for the earlier one first.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    first_offset: Offset
    is_commit: bool


class TransactionTorn(Struct, frozen=True, kw_only=True, gc=False):
    """Report that a transaction has two outcomes: the marker in this partition has one, and the transaction's
    coordinator has decided the other.
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
    """Report the outcome of a DeleteRecordsRequested. The host checks `may_respond` before it sends the response.

    `low_watermark` is the lowest log start offset of the replicas; NO_OFFSET if there is an error.
    """

    request_id: int
    error_code: ErrorCode
    low_watermark: Offset
    leader_epoch: LeaderEpoch


class HighWatermarkMoved(Struct, frozen=True, kw_only=True, gc=False):
    """Report the new high watermark to the log and to readers. Followers receive it with the next Data message; if
    there are no records to send, a Data message without records follows within 50 ms (rule R9).
    """

    high_watermark: Offset


class RoleChanged(Struct, frozen=True, kw_only=True, gc=False):
    """Report the new role of this replica, before any effect of the new role. A follower attaches as soon as the host
    reports a SessionReady for `leader`.
    """

    role: Role
    leader: BrokerId
    leader_epoch: LeaderEpoch


class PartitionFailed(Struct, frozen=True, kw_only=True, gc=False):
    """Report that this replica failed with `reason` and stays offline (rule R11).

    After a storage failure the host takes the whole log directory offline and reports the directory in the heartbeat.
    After BugFound (`is_bug`) only this replica goes offline, and each heartbeat from now on asks the controller to
    treat the replica as fenced.
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
    """The range of offsets that a consumer may read at one replica, [start_offset, end_offset), or an `error_code`.

    The host may send the response only if `may_respond(leader_epoch)` is true. A fetch at `end_offset` waits for
    records until its own time limit.
    """

    error_code: ErrorCode
    start_offset: Offset
    end_offset: Offset
    leader_epoch: LeaderEpoch


class DataDue(Struct, frozen=True, gc=False):
    """The Data message that a follower must be sent next: batches from `from_offset` up to `log_end`, as many as fit.

    If `from_offset` equals `log_end`, only the high watermark or the log start has moved; such a message may wait up to
    50 ms so that it can be sent together with batches. Every Data message has `high_watermark` and `log_start`. Both
    may move while the batches are read from the disk, so the host calls `data_due` again when it builds the message.
    """

    from_offset: Offset
    log_end: Offset
    high_watermark: Offset
    log_start: Offset
    leader_epoch: LeaderEpoch
