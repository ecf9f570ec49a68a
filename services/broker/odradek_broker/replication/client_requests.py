"""Client requests that wait until one replica has finished them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final, NamedTuple

from msgspec import Struct

from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.partition.events import RegistrationMode
from odradek_broker.replication.batch_checks import CheckedBatches
from odradek_broker.replication.counters import Counters
from odradek_broker.replication.outcomes import OffsetOutcome, ProduceOutcome
from odradek_protocol.identity import LeaderEpoch, Offset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_header import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER,
    LENGTH_PREFIX_BYTES,
    MAX_TIMESTAMP_AT,
    TIMESTAMP_TYPE_MASK,
    stamp,
)
from odradek_protocol.records.hashes import crc32c
from odradek_runtime.logs import event_log

OnProduced = Callable[[ProduceOutcome], None]
OnDeleted = Callable[[OffsetOutcome], None]
_EMPTY: Final = bytearray()
_log = event_log(__name__)


class ProduceTransaction(NamedTuple):
    """The transactional id of a produce request, and the question that the partition leader asks its coordinator
    (KIP-890).
    """

    transactional_id: str
    mode: RegistrationMode

    def event(
        self, produce: ev.ProduceRequested
    ) -> ev.ProduceRequested | ev.TransactionalProduceRequested:
        """Return the replica's event for this produce request, which may also be one without a transaction."""
        if produce.producer is None or not produce.producer.is_transactional:
            return produce
        return ev.TransactionalProduceRequested(
            produce=produce, transactional_id=self.transactional_id, mode=self.mode
        )


class Produce(Struct, gc=False):
    """A produce request with checked batches, in a buffer that may be stamped in place.

    `log_append_time_ms` is -1 unless the topic uses LogAppendTime.
    """

    buffer: bytearray | memoryview
    batches: CheckedBatches
    on_done: OnProduced
    began_s: float
    log_append_time_ms: int

    def stamped(self, effect: fx.Append) -> bytearray | memoryview:
        """Stamp offsets, epoch and time into the batches, and hand the buffer over to the log."""
        stamp_batches(
            self.buffer,
            self.batches,
            base_offset=effect.base_offset,
            leader_epoch=effect.leader_epoch,
            log_append_time_ms=self.log_append_time_ms,
        )
        buffer, self.buffer = self.buffer, _EMPTY
        return buffer


class ClientRequests:
    """The waiting client requests of one replica, by request id. Each gets exactly one response."""

    __slots__ = ("_counters", "_deletes", "_next_id", "_produces")

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._produces: dict[int, Produce] = {}
        self._deletes: dict[int, OnDeleted] = {}
        self._next_id = 1

    def add_produce(
        self,
        records: bytes | bytearray | memoryview,
        batches: CheckedBatches,
        on_done: OnProduced,
        *,
        log_append_time_ms: int,
    ) -> int:
        """Register a produce, and return its request id. `respond_to_produce` ends it."""
        buffer: bytearray | memoryview
        if isinstance(records, bytearray) or (
            isinstance(records, memoryview) and not records.readonly
        ):
            buffer = records
        else:
            # The only copy: the caller still owns a read-only buffer, so it must not be stamped.
            buffer = bytearray(records)
        request_id = self._number()
        self._produces[request_id] = Produce(
            buffer, batches, on_done, perf_counter(), log_append_time_ms
        )
        return request_id

    def add_delete(self, on_done: OnDeleted) -> int:
        """Register a DeleteRecords, and return its request id. `respond_to_delete` ends it."""
        request_id = self._number()
        self._deletes[request_id] = on_done
        return request_id

    def produce(self, request_id: int) -> Produce:
        """Return a produce that waits to be appended."""
        return self._produces[request_id]

    def respond_to_produce(
        self, effect: fx.RespondToProduce, *, log_start_offset: Offset, message: str
    ) -> None:
        """Hand the outcome to the caller of a produce.

        An exception of that caller is only logged: it must not take this partition offline.
        """
        produce = self._produces.pop(effect.request_id, None)
        if produce is None:
            return
        has_succeeded = effect.error_code is ErrorCode.NONE
        self._counters.produce_errors += not has_succeeded
        self._counters.produce_latencies.observe(perf_counter() - produce.began_s)
        outcome = ProduceOutcome(
            effect.error_code,
            effect.base_offset,
            produce.log_append_time_ms if has_succeeded else -1,
            log_start_offset,
            effect.leader_epoch,
            message,
        )
        try:
            produce.on_done(outcome)
        except Exception as error:
            _log.error("Failed to pass on the outcome of a produce request", exc=error)

    def respond_to_delete(self, effect: fx.RespondToDelete) -> None:
        """Hand the outcome to the caller of a DeleteRecords."""
        self._deletes.pop(effect.request_id)(
            OffsetOutcome(effect.error_code, effect.low_watermark, leader_epoch=effect.leader_epoch)
        )

    def _number(self) -> int:
        number = self._next_id
        self._next_id += 1
        return number


def stamp_batches(
    buffer: bytearray | memoryview,
    batches: CheckedBatches,
    *,
    base_offset: int,
    leader_epoch: LeaderEpoch,
    log_append_time_ms: int,
) -> None:
    """Write offsets and leader epoch into the headers, and the time if it is not -1 (LogAppendTime topics)."""
    for position, count in batches.positions:
        stamp(buffer, position, base_offset, leader_epoch)
        if log_append_time_ms >= 0:
            _stamp_time(buffer, position, log_append_time_ms)
        base_offset += count


def _stamp_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Set the LogAppendTime (KIP-32), which is in the header alone, and renew the CRC that covers it."""
    _, batch_length, *_ = HEADER.unpack_from(buffer, position)
    low_byte = position + ATTRIBUTES_AT + 1
    buffer[low_byte] = buffer[low_byte] | TIMESTAMP_TYPE_MASK
    at = position + MAX_TIMESTAMP_AT
    buffer[at : at + 8] = now_ms.to_bytes(8, "big", signed=True)
    end = position + LENGTH_PREFIX_BYTES + batch_length
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : end])
    buffer[position + CRC_AT : position + CRC_AT + 4] = crc.to_bytes(4, "big")
