"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords at a leader, behind the gate (R13)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from odradek_broker.log.storage import StorageFailed
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.partition_service import (
    OFFSET_EARLIEST,
    OFFSET_LATEST,
    OFFSET_OF_MAX_TIMESTAMP,
    OffsetOutcome,
)
from odradek_broker.replication.partition_table import PartitionTable
from odradek_protocol.identity import LeaderEpoch, Offset
from odradek_protocol.kafka.error_codes import ErrorCode

_NOT_LEADER = OffsetOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class PartitionOffsets:
    """Offset requests: the replica bounds the result, its log has it, the gate decides whether it may be sent."""

    def __init__(
        self, table: PartitionTable, may_answer: Callable[[PartitionHost, LeaderEpoch], bool]
    ) -> None:
        self._table = table
        self._may_answer = may_answer

    async def at_time(
        self,
        host: PartitionHost,
        timestamp_ms: int,
        *,
        is_committed_only: bool,
        current_leader_epoch: LeaderEpoch,
    ) -> OffsetOutcome:
        """ListOffsets: the offset of the first record at or after the timestamp, or one of the OFFSET_ values."""
        if not host.is_leader:
            return _NOT_LEADER
        log = host.log
        bound = host.replica.latest_offset(
            last_stable_offset=log.last_stable_offset,
            is_committed_only=is_committed_only,
            client_leader_epoch=current_leader_epoch,
        )
        if timestamp_ms == OFFSET_EARLIEST:
            if bound.error_code not in (ErrorCode.NONE, ErrorCode.OFFSET_NOT_AVAILABLE):
                return OffsetOutcome(bound.error_code)
            if not self._may_answer(host, host.replica.leader_epoch):
                return _NOT_LEADER
            start = log.log_start_offset
            return OffsetOutcome(ErrorCode.NONE, start, -1, log.epochs.at(start))
        if bound.error_code is not ErrorCode.NONE:
            return OffsetOutcome(bound.error_code)
        if timestamp_ms == OFFSET_LATEST:
            if not self._may_answer(host, bound.leader_epoch):
                return _NOT_LEADER
            return OffsetOutcome(ErrorCode.NONE, bound.end_offset, -1, bound.leader_epoch)
        try:
            if timestamp_ms == OFFSET_OF_MAX_TIMESTAMP:
                position = await self._table.pool.call(log.max_timestamp_offset)
            elif timestamp_ms < 0:
                return OffsetOutcome(ErrorCode.UNSUPPORTED_VERSION)
            else:
                position = await self._table.pool.call(
                    lambda: log.offset_for_timestamp(timestamp_ms)
                )
        except StorageFailed as failure:
            host.read_failed(failure)
            return OffsetOutcome(ErrorCode.KAFKA_STORAGE_ERROR)
        # The lease or the leadership may have ended during the lookup.
        if not self._may_answer(host, bound.leader_epoch):
            return _NOT_LEADER
        if position is None or position.offset >= bound.end_offset:
            return OffsetOutcome(ErrorCode.NONE)
        return OffsetOutcome(
            ErrorCode.NONE, position.offset, position.timestamp_ms, position.leader_epoch
        )

    def end_of_epoch(
        self, host: PartitionHost, leader_epoch: LeaderEpoch, *, current_leader_epoch: LeaderEpoch
    ) -> OffsetOutcome:
        """OffsetForLeaderEpoch: the largest epoch at or below `leader_epoch`, and its end offset."""
        if not host.is_leader:
            return _NOT_LEADER
        own = host.replica.leader_epoch
        if 0 <= current_leader_epoch < own:
            return OffsetOutcome(ErrorCode.FENCED_LEADER_EPOCH)
        if current_leader_epoch > own:
            return OffsetOutcome(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not self._may_answer(host, own):
            return _NOT_LEADER
        if leader_epoch > own:
            return OffsetOutcome(ErrorCode.NONE)
        epoch, end = host.log.epochs.end_of(leader_epoch, host.log.log_end_offset)
        return OffsetOutcome(ErrorCode.NONE, end, -1, epoch)

    async def delete_before(
        self, host: PartitionHost, before_offset: Offset, *, timeout_ms: int
    ) -> OffsetOutcome:
        """DeleteRecords: advance the log start (-1: to the high watermark), and wait for all live replicas."""
        if not host.is_leader or not self._may_answer(host, host.replica.leader_epoch):
            return _NOT_LEADER
        if host.log.config.cleanup_compact and not host.log.config.cleanup_delete:
            return OffsetOutcome(ErrorCode.POLICY_VIOLATION)
        done: asyncio.Future[OffsetOutcome] = asyncio.get_running_loop().create_future()
        host.delete_records(
            before_offset,
            timeout_ms=timeout_ms,
            on_done=lambda outcome: None if done.done() else done.set_result(outcome),
        )
        outcome = await done
        if outcome.error is ErrorCode.NONE and not self._may_answer(host, outcome.leader_epoch):
            return _NOT_LEADER
        return outcome
