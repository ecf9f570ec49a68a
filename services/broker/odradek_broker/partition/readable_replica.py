"""One replica as readers, streams and answers on their way see it: its role, its offsets, what may be read.

The deciding half is `Replica`, which alone changes anything here.
"""

from __future__ import annotations

from odradek_broker.partition.effects import Role
from odradek_broker.partition.events import FollowerSession, PartitionChanged
from odradek_broker.partition.follower import Follower, Phase
from odradek_broker.partition.leading.data_due import DataDue
from odradek_broker.partition.leading.leader import Leader
from odradek_broker.partition.log_positions import LogAtOpen, LogPositions
from odradek_broker.partition.read_bound import ReadBound, refusal_of_offset
from odradek_protocol.identity import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
)
from odradek_protocol.kafka.error_codes import ErrorCode


class ReadableReplica:
    """What may be asked of one replica."""

    __slots__ = ("_broker_id", "_following", "_is_removed", "_leading", "_log", "_view", "role")

    def __init__(self, broker_id: BrokerId, log: LogAtOpen) -> None:
        self.role = Role.IDLE
        self._broker_id = broker_id
        self._log = LogPositions.at_open(log)
        self._view: PartitionChanged | None = None
        self._leading: Leader | None = None
        self._following: Follower | None = None
        self._is_removed = False

    @property
    def leader(self) -> BrokerId:
        return self._view.leader if self._view is not None else NO_BROKER

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self._view.leader_epoch if self._view is not None else NO_LEADER_EPOCH

    @property
    def partition_epoch(self) -> PartitionEpoch:
        return self._view.partition_epoch if self._view is not None else PartitionEpoch(-1)

    @property
    def high_watermark(self) -> Offset:
        return self._log.high_watermark

    @property
    def log_start(self) -> Offset:
        return self._log.log_start

    @property
    def log_end(self) -> Offset:
        return self._log.log_end

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Of the last record; for Attach and ReportLogEnds."""
        return self._log.last_epoch

    @property
    def is_under_min_isr(self) -> bool:
        """We lead, and the committed ISR is smaller than min.insync.replicas."""
        return self._leading is not None and self._leading.isr.is_under_min

    @property
    def is_streaming(self) -> bool:
        """We follow, and the leader pushes."""
        return self._following is not None and self._following.phase is Phase.STREAMING

    def epoch_end(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest known epoch <= `epoch` and its exclusive end (OffsetForLeaderEpoch);
        (NO_LEADER_EPOCH, NO_OFFSET) when there is none."""
        found = self._log.epochs.end_of(epoch, self._log.log_end)
        return found if found is not None else (NO_LEADER_EPOCH, NO_OFFSET)

    def data_due(self, session: FollowerSession) -> DataDue | None:
        """What to push in this session; None: nothing, or it is not attached there."""
        return self._leading.data_due(session) if self._leading is not None else None

    def may_answer(
        self,
        leader_epoch: LeaderEpoch,
        *,
        lease_until_ms: int,
        now_ms: int,
        is_replicated: bool = False,
    ) -> bool:
        """The gate that each answer passes when it is written to the socket (R13): still the same
        role in the same epoch, and the lease holds. It bounds staleness; safety needs no clock.

        `is_replicated`: the answer says only what the whole maximal ISR has confirmed in this epoch,
        and may leave when the lease has run out, though not when it was ended (0). Whoever leads
        next is of that ISR and has it. Alone in the ISR nobody has confirmed anything: a broker that
        was replaced by another life of its id could answer for ever.
        """
        if self.role not in (Role.LEADER, Role.FOLLOWER) or leader_epoch != self.leader_epoch:
            return False
        if now_ms < lease_until_ms:
            return True
        is_confirmed = self._leading is not None and len(self._leading.isr.maximal) > 1
        return is_replicated and lease_until_ms > 0 and is_confirmed

    def read_bound(
        self,
        *,
        last_stable_offset: Offset,
        is_committed_only: bool,
        client_leader_epoch: int = -1,
        fetch_offset: Offset = NO_OFFSET,
    ) -> ReadBound:
        """How far a consumer may read here, leader (R14) or follower (R15).

        `last_stable_offset` is the log's own. With a `fetch_offset` the bound judges it too:
        OFFSET_OUT_OF_RANGE outside the log, OFFSET_NOT_AVAILABLE above a follower's watermark.
        """
        log = self._log
        end = log.high_watermark
        if is_committed_only:
            end = min(last_stable_offset, end)
        code = self._refusal_of_reader(client_leader_epoch)
        if code is ErrorCode.NONE and fetch_offset != NO_OFFSET:
            code = refusal_of_offset(log, fetch_offset, is_leader=self.role is Role.LEADER)
        return ReadBound(code, log.log_start, end, self.leader_epoch)

    def latest_offset(
        self, *, last_stable_offset: Offset, is_committed_only: bool, client_leader_epoch: int = -1
    ) -> ReadBound:
        """ListOffsets(latest): `end_offset` is the answer; OFFSET_NOT_AVAILABLE while the high
        watermark lies below the start of our epoch, as the last leader may have shown more."""
        bound = self.read_bound(
            last_stable_offset=last_stable_offset,
            is_committed_only=is_committed_only,
            client_leader_epoch=client_leader_epoch,
        )
        leading = self._leading
        if bound.error_code is not ErrorCode.NONE:
            return bound
        if leading is None:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif self._log.high_watermark < leading.epoch_start:
            code = ErrorCode.OFFSET_NOT_AVAILABLE
        else:
            return bound
        return ReadBound(code, bound.start_offset, bound.end_offset, bound.leader_epoch)

    def _refusal_of_reader(self, client_leader_epoch: int) -> ErrorCode:
        if self._is_removed:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if self.role is Role.FAILED:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if client_leader_epoch != NO_LEADER_EPOCH and client_leader_epoch != self.leader_epoch:
            if client_leader_epoch < self.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if self.role is Role.LEADER:
            return ErrorCode.NONE
        in_isr = self._view is not None and self._broker_id in self._view.isr
        return ErrorCode.NONE if in_isr and self.is_streaming else ErrorCode.NOT_LEADER_OR_FOLLOWER
