"""All that a replica asks of its shell, to be done in order before the next event.

Storage effects (Append, Sync, TruncateTo, ResetLog) are answered by an event of events.py; Append
at once, in the same turn, the others whenever the disk is done. Append and Sync stand last in their
list, so a shell may answer them there and then.
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


# --- for the log ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Write the batches: of request `request_id`, stamped with the two fields, or, when it is None,
    of the DataReceived just handed in, as they are. Answer at once: Appended, AppendRefused or StorageFailed.

    A follower's `base_offset` below its log end: the log is empty and is to begin there instead,
    because the leader's log begins within the first of these batches."""

    base_offset: Offset
    leader_epoch: LeaderEpoch
    request_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Make the log durable up to its end (only with durability=fsync). Answer: Synced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateTo:
    """Cut the log, its epochs and producer state at `end_offset`, synced (R4). Answer: Truncated.
    With `end_offset` = log end: only forget the epochs that have no records."""

    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLog:
    """Drop the whole log and begin at `start_offset`. Answer: LogReset."""

    start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignEpoch:
    """Enter (leader_epoch, log end) in the log's epoch cache: this replica leads from here (R1)."""

    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart:
    """The log start offset moves here: a client's DeleteRecords, or the leader's word. No answer."""

    log_start: Offset


# --- from the leader to followers ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAttached:
    """Lineages agree; from now on `data_due(session)` tells what to push."""

    session: FollowerSession
    attach_seq: int
    leader_epoch: LeaderEpoch
    high_watermark: Offset
    log_start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDiverged:
    """The follower must cut (R3, R4)."""

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
    """Not attached (`attach_seq` names the Attach), or no longer (0)."""

    session: FollowerSession
    attach_seq: int
    error_code: ErrorCode
    leader_epoch: LeaderEpoch


# --- from a follower to its leader ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAttach:
    """Ask the leader to push from our end; the shell gathers at most 64 into one message."""

    session_id: int
    attach_seq: int
    leader_epoch: LeaderEpoch
    log_end: Offset
    last_epoch: LeaderEpoch
    log_start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDetach:
    """Push no longer in this session."""

    session_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAck:
    """Cumulative: of several in one turn of the loop the shell sends the last one only (R6).
    `is_synced`: by our image the topic has durability=fsync, and we tell what is on the disk."""

    session_id: int
    leader_epoch: LeaderEpoch
    ack_to: Offset
    is_synced: bool
    log_start: Offset


# --- to the controller ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """AlterPartition for this partition; the shell batches them. Answer: IsrChangeAnswered."""

    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    is_recovering: bool


# --- to clients, and to whoever watches ----------------------------------------------------------


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
    """The outcome of a DeleteRecordsRequested; passes the gate like a produce's. `low_watermark`:
    where all logs begin by now, at least; NO_OFFSET with an error."""

    request_id: int
    error_code: ErrorCode
    low_watermark: Offset
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class HighWatermarkMoved:
    """Tell the log, wake readers; followers hear with the next Data, or alone within 50 ms (R9)."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChanged:
    """Told before all else that the new role does. A FOLLOWER wants a SessionReady to `leader`."""

    role: Role
    leader: BrokerId
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFailed:
    """Take the directory offline, and say so in the heartbeat (R11). After a bug: say of this
    partition alone that another replica is to lead, in each heartbeat from now on."""

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
    """Send batches from `from_offset` up to `log_end` (as many as fit), or none of them when the
    two are equal: then only the high watermark or the log start is news, which may wait 50 ms for
    company. `high_watermark` and `log_start` go with every Data: read them, by asking again, when
    the message is built, not when its bytes were ordered from the disk."""

    from_offset: Offset
    log_end: Offset
    high_watermark: Offset
    log_start: Offset
    leader_epoch: LeaderEpoch
