"""Everything that a replica asks of its shell, to be done in order before the next event.

The shell responds to storage effects (Append, Sync, TruncateTo, ResetLog) with an event of events.py: to
Append at once, in the same turn, to the others when the disk is done. Append and Sync are the last of
their list, so a shell may respond to them immediately.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from odradek_broker.partition.events import FollowerSession
from odradek_protocol.identity import BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionEpoch
from odradek_protocol.kafka.error_codes import ErrorCode


class Role(Enum):
    """What a replica is, in its broker's view of the metadata."""

    IDLE = "idle"  # no leader known, or no replica here any more
    LEADER = "leader"
    FOLLOWER = "follower"
    FAILED = "failed"  # its storage failed, or a bug did; for the rest of this process's life


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Append batches: those of request `request_id`, stamped with the two other fields, or, when it is
    None, those of the DataReceived that was just passed in, as they are. The shell responds at once:
    Appended, AppendRefused or StorageFailed.

    When a follower's `base_offset` is below its log end, its log is empty and has to begin there instead,
    because the leader's log begins within the first of these batches.
    """

    base_offset: Offset
    leader_epoch: LeaderEpoch
    request_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Make the log durable up to its end (only with durability=fsync). Response: Synced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateTo:
    """Truncate the log, its epochs and producer state to `end_offset`, synced (R4). Response: Truncated.
    With `end_offset` = log end, only drop the epochs that have no records."""

    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLog:
    """Drop the whole log and begin at `start_offset`. Response: LogReset."""

    start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignEpoch:
    """Enter (leader_epoch, log end) in the log's leader epochs: this replica leads from here (R1)."""

    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart:
    """Raise the log start offset, for a client's DeleteRecords or after the leader's. No response."""

    log_start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAttached:
    """The lineages agree; from now on `data_due(session)` returns what to send."""

    session: FollowerSession
    attach_seq: int
    leader_epoch: LeaderEpoch
    high_watermark: Offset
    log_start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDiverged:
    """The follower must truncate (R3, R4)."""

    session: FollowerSession
    attach_seq: int
    leader_epoch: LeaderEpoch
    for_log_end: Offset
    for_last_epoch: LeaderEpoch
    epoch: LeaderEpoch
    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSnapshotless:
    """The follower must drop its log and begin at `log_start`."""

    session: FollowerSession
    attach_seq: int
    leader_epoch: LeaderEpoch
    log_start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRefused:
    """The follower is not attached (`attach_seq` names its Attach), or no longer attached (0)."""

    session: FollowerSession
    attach_seq: int
    error_code: ErrorCode
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAttach:
    """Ask the leader for data from our log end on; the shell gathers at most 64 of these into a message."""

    session_id: int
    attach_seq: int
    leader_epoch: LeaderEpoch
    log_end: Offset
    last_epoch: LeaderEpoch
    log_start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDetach:
    """Ask the leader to stop sending in this session."""

    session_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAck:
    """Acknowledge everything below `ack_to`. Of several in one turn of the loop the shell sends the last
    one only (R6). `is_synced`: by our image the topic has durability=fsync, and all of it is synced."""

    session_id: int
    leader_epoch: LeaderEpoch
    ack_to: Offset
    is_synced: bool
    log_start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """AlterPartition for this partition; the shell batches them. Response: IsrChangeAnswered."""

    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    is_recovering: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerProduce:
    """The outcome of a ProduceRequested; passes the gate `may_answer(leader_epoch, ..)` when it is
    written to the socket (R13). `base_offset` is NO_OFFSET with an error."""

    request_id: int
    error_code: ErrorCode
    base_offset: Offset
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDelete:
    """The outcome of a DeleteRecordsRequested; passes the gate as AnswerProduce does. All logs begin at
    `low_watermark` or later by now; it is NO_OFFSET with an error."""

    request_id: int
    error_code: ErrorCode
    low_watermark: Offset
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class HighWatermarkMoved:
    """Tell the log and wake readers; followers get it with the next Data, or alone within 50 ms (R9)."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChanged:
    """The role changed; this comes before all other effects of the new role. A FOLLOWER needs a
    SessionReady for `leader`."""

    role: Role
    leader: BrokerId
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFailed:
    """Take the directory offline, and say so in the heartbeat (R11). After a bug, only ask in each
    heartbeat from now on that another replica leads this partition."""

    reason: str
    is_bug: bool


Effect: TypeAlias = (
    Append
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
    | AnswerProduce
    | AnswerDelete
    | HighWatermarkMoved
    | RoleChanged
    | PartitionFailed
)


@dataclass(frozen=True, slots=True)
class DataDue:
    """What a follower has not been sent: batches from `from_offset` up to `log_end`, as many as fit.

    When the two are equal, only the high watermark or the log start changed, which may wait 50 ms for
    data to go with. `high_watermark` and `log_start` go with every Data message: ask again when the
    message is built, because they may have moved since its bytes were requested from the disk.
    """

    from_offset: Offset
    log_end: Offset
    high_watermark: Offset
    log_start: Offset
    leader_epoch: LeaderEpoch
