"""Reads of one partition for consumers: the core bounds what is visible (R14, R15), the log has the bytes."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from odradek_broker.log.log_reads import OffsetOutOfRange, ReadPlan, ReadResult
from odradek_broker.log.storage import StorageFailed
from odradek_broker.partition.replica import ReadBound
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.partition_service import AbortedRange, ReadOutcome
from odradek_broker.replication.partition_table import PartitionTable
from odradek_protocol.identity import NO_LEADER_EPOCH, LeaderEpoch, Offset, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode

# The replica can be read; at most the offset is wrong.
_READABLE: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE}
)


def read_partition(
    table: PartitionTable,
    host: PartitionHost,
    offset: Offset,
    *,
    bytes_max: int,
    is_committed_only: bool,
    current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    last_fetched_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    at_least_one_batch: bool = True,
    may_send_files: bool = False,
) -> ReadOutcome | Awaitable[ReadOutcome]:
    """Return the outcome if the bytes are in memory; else an awaitable that reads them in the pool.

    With `may_send_files` a leader's bytes may stay in the page cache, as a `file_slice`. A follower's bytes may
    not: its log can be truncated before they are sent, and the gate would not notice.
    """
    log = host.log
    last_stable_offset = log.last_stable_offset
    bound = host.replica.read_bound(
        last_stable_offset=last_stable_offset,
        is_committed_only=is_committed_only,
        client_leader_epoch=current_leader_epoch,
        fetch_offset=offset,
    )
    if last_fetched_epoch >= 0 and bound.error_code in _READABLE:
        diverging = _divergence(host, offset, last_fetched_epoch)
        if diverging is not None:
            return _empty(host, bound, offset, last_stable_offset, diverging)
    if bound.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
        return _out_of_range(host, bound)
    if bound.error_code is not ErrorCode.NONE:
        return ReadOutcome(bound.error_code, leader_epoch=bound.leader_epoch)
    if offset >= bound.end_offset:
        return _empty(host, bound, offset, last_stable_offset)
    try:
        plan = log.plan_read(offset, bytes_max=bytes_max, end_offset=bound.end_offset)
        if not plan.is_hot:
            return _read_cold(table, host, plan, bound, offset, is_committed_only)
        result = plan.run(as_file_slice=may_send_files and host.is_leader)
    except OffsetOutOfRange:
        return ReadOutcome(ErrorCode.OFFSET_OUT_OF_RANGE, leader_epoch=bound.leader_epoch)
    except StorageFailed as failure:
        host.read_failed(failure)
        return ReadOutcome(ErrorCode.KAFKA_STORAGE_ERROR)
    if not at_least_one_batch and result.size_bytes > bytes_max:
        return _empty(host, bound, offset, last_stable_offset)
    return _outcome(table, host, result, bound, offset, is_committed_only)


async def _read_cold(
    table: PartitionTable,
    host: PartitionHost,
    plan: ReadPlan,
    bound: ReadBound,
    offset: Offset,
    is_committed_only: bool,
) -> ReadOutcome:
    table.counters.fetch_reads_cold += 1
    try:
        result = await table.pool.call(plan.run)
    except StorageFailed as failure:
        host.read_failed(failure)
        return ReadOutcome(ErrorCode.KAFKA_STORAGE_ERROR)
    if is_committed_only and offset < host.log.log_start_offset:
        # Retention may have deleted the markers of aborted transactions together with these records.
        return _out_of_range(host, bound)
    return _outcome(table, host, result, bound, offset, is_committed_only)


def _outcome(
    table: PartitionTable,
    host: PartitionHost,
    result: ReadResult,
    bound: ReadBound,
    offset: Offset,
    is_committed_only: bool,
) -> ReadOutcome:
    table.counters.fetch_reads += 1
    table.counters.fetch_bytes += result.size_bytes
    aborted = None
    if is_committed_only:
        aborted = [
            AbortedRange(ProducerId(transaction.producer_id), Offset(transaction.first_offset))
            for transaction in host.log.aborted_transactions(result.start_offset, result.end_offset)
        ]
    return ReadOutcome(
        ErrorCode.NONE,
        result.slices,
        result.size_bytes,
        max(result.end_offset, offset),
        host.replica.high_watermark,
        host.log.last_stable_offset,
        host.log.log_start_offset,
        aborted,
        bound.leader_epoch,
        file_slice=result.file_slice,
    )


def _out_of_range(host: PartitionHost, bound: ReadBound) -> ReadOutcome:
    return ReadOutcome(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        high_watermark=host.replica.high_watermark,
        last_stable_offset=host.log.last_stable_offset,
        log_start_offset=host.log.log_start_offset,
        leader_epoch=bound.leader_epoch,
    )


def _empty(
    host: PartitionHost,
    bound: ReadBound,
    offset: Offset,
    last_stable_offset: Offset,
    diverging: tuple[LeaderEpoch, Offset] | None = None,
) -> ReadOutcome:
    return ReadOutcome(
        ErrorCode.NONE,
        (),
        0,
        offset,
        host.replica.high_watermark,
        last_stable_offset,
        host.log.log_start_offset,
        leader_epoch=bound.leader_epoch,
        diverging=diverging,
    )


def _divergence(
    host: PartitionHost, offset: Offset, last_fetched_epoch: LeaderEpoch
) -> tuple[LeaderEpoch, Offset] | None:
    """Return (epoch, end offset) where the reader's log diverges from this one (KIP-595); None if it does not."""
    # An epoch that no leader had yet diverges at the end of the latest known one.
    epoch, end = host.log.epochs.end_of(
        min(last_fetched_epoch, host.log.epochs.latest), host.log.log_end_offset
    )
    if epoch < 0 or end < 0:
        return None
    return (epoch, end) if epoch < last_fetched_epoch or end < offset else None
