"""Client requests that wait until one replica has finished them."""

from __future__ import annotations

from collections.abc import Callable, Sized
from itertools import islice
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol

from odradek_broker.compiled import Mutable
from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.partition.events import RegistrationMode
from odradek_broker.replication.batch_checks import CheckedBatches
from odradek_broker.replication.counters import Counters
from odradek_broker.replication.outcomes import OffsetOutcome, ProduceOutcome
from odradek_protocol.identity import LeaderEpoch, Offset, ProducerId
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
QUEUED_MAX: Final = 64
"""The maximum number of produces that share one append."""
QUEUED_BYTES_MAX: Final = 16 << 10
"""A larger produce does not wait to share an append, because copying its batches would cost more than sharing saves."""
AT_ONCE_MAX: Final = 128
FLUSHED_MAX: Final = 32
"""The maximum number of queues that are flushed in one iteration of the event loop. A flush takes 0.1 to 0.2 ms."""
_EMPTY: Final = bytearray()
_NONE: Final = ErrorCode.NONE
_log = event_log(__name__)


class ProduceTransaction(NamedTuple):
    """The transactional id of a produce request. `mode` says whether the partition leader asks the coordinator to add
    the partition to the transaction, or only to verify that it was added (KIP-890).
    """

    transactional_id: str
    mode: RegistrationMode

    def includes(self, producer: ev.ProducerBatch | None) -> bool:
        """Return whether a produce of this producer is transactional."""
        return producer is not None and producer.is_transactional

    def event(
        self, produce: ev.ProduceRequested
    ) -> ev.ProduceRequested | ev.TransactionalProduceRequested:
        """Return the replica's event for a produce request that may be transactional."""
        if not self.includes(produce.producer):
            return produce
        return ev.TransactionalProduceRequested(
            produce=produce, transactional_id=self.transactional_id, mode=self.mode
        )


class Produce(Mutable):
    """A produce request with checked batches. `buffer` is writable; after `stamped` it belongs to the log.

    `log_append_time_ms` is -1 unless the topic uses LogAppendTime.
    """

    buffer: bytearray | memoryview
    batches: CheckedBatches
    on_done: OnProduced
    began_s: float
    log_append_time_ms: int

    @classmethod
    def of(
        cls,
        records: bytes | bytearray | memoryview,
        batches: CheckedBatches,
        on_done: OnProduced,
        log_append_time_ms: int,
    ) -> Produce:
        """Return the request for `records`, which are copied if they are read-only."""
        buffer: bytearray | memoryview
        if isinstance(records, bytearray) or (type(records) is memoryview and not records.readonly):
            buffer = records
        else:
            # The only copy of the batches: a read-only buffer still belongs to the caller, and must not be changed.
            buffer = bytearray(records)
        return cls(buffer, batches, on_done, perf_counter(), log_append_time_ms)

    def stamped(self, base_offset: int, leader_epoch: LeaderEpoch) -> bytearray | memoryview:
        """Write offsets, leader epoch and time into the batches, and return the buffer, which belongs to the log from
        now on.
        """
        buffer, self.buffer = self.buffer, _EMPTY
        if len(self.batches.positions) == 1 and self.log_append_time_ms < 0:
            stamp(buffer, 0, base_offset, leader_epoch)
            return buffer
        stamp_batches(
            buffer,
            self.batches,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            log_append_time_ms=self.log_append_time_ms,
        )
        return buffer


class ProduceTurns:
    """Lets small produces to one partition that arrive in one iteration of the event loop share an append.

    If no other produce for the same partition arrives, waiting for the end of the iteration is only a delay. So after
    an iteration in which no two produces were for the same partition, the next `at_once_max` produces of the broker are
    appended when they arrive.
    """

    __slots__ = ("_call_soon", "_count", "_queues", "at_once", "at_once_max")

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], at_once_max: int = AT_ONCE_MAX
    ) -> None:
        self._call_soon = call_soon
        self.at_once_max = at_once_max
        self._queues: dict[ProduceQueue, None] = {}
        self._count = 0
        self.at_once = at_once_max
        """The number of produces that are still appended without waiting for the end of an iteration."""

    def added_to(self, queue: ProduceQueue) -> None:
        """Count a produce that was added to `queue`, which is flushed at the end of this iteration. If more than
        `FLUSHED_MAX` queues wait, some are flushed in later iterations.
        """
        if not self._queues:
            self._call_soon(self._end)
        self._queues[queue] = None
        self._count += 1

    def _end(self) -> None:
        """Flush the queues that have waited longest. The others are flushed in the next iterations, so that one request
        for thousands of partitions does not hold the event loop.
        """
        queues = self._queues
        if self._count == len(queues):
            self.at_once = self.at_once_max
        flushed = list(islice(queues, FLUSHED_MAX))
        for queue in flushed:
            del queues[queue]
        self._count = sum(len(queue.requests) for queue in queues)
        if queues:
            self._call_soon(self._end)
        for queue in flushed:
            queue.flush()


class Stepping(Protocol):
    """The host of a replica, as ProduceQueue uses it."""

    def step(self, event: ev.Event) -> None:
        """Let the replica handle an event."""


class ProduceQueue:
    """The produces to one replica that wait for the end of the iteration, in the order in which they arrived."""

    __slots__ = ("_replica", "_turns", "requests")

    def __init__(self, turns: ProduceTurns, replica: Stepping) -> None:
        self._turns = turns
        self._replica = replica
        self.requests: list[ev.ProduceRequested] = []

    def is_for(self, acks: int, records: Sized, expected_leader_epoch: LeaderEpoch) -> bool:
        """Return whether a produce that is not transactional should wait for others.

        A request with acks=0 does not wait, because its caller must learn of an error at once. A coordinator's request,
        which has an expected leader epoch, does not wait either, because coordinators write only once per iteration.
        """
        if acks == 0 or len(records) > QUEUED_BYTES_MAX or expected_leader_epoch >= 0:
            return False
        turns = self._turns
        if turns.at_once:
            turns.at_once -= 1
            return False
        return True

    def add(self, request: ev.ProduceRequested) -> None:
        """Add a request. If a request of the same producer is already in the queue, all queued requests are appended
        first.
        """
        producer = request.producer
        if len(self.requests) == QUEUED_MAX or (
            producer is not None and producer.producer_id in self._producer_ids()
        ):
            self.flush()
        self.requests.append(request)
        self._turns.added_to(self)

    def _producer_ids(self) -> list[ProducerId]:
        return [r.producer.producer_id for r in self.requests if r.producer is not None]

    def take(self) -> ev.ProducesRequested:
        """Remove all requests, and return them as one event."""
        requests, self.requests = self.requests, []
        return ev.ProducesRequested(requests=tuple(requests))

    def flush(self) -> None:
        """Pass the requests to the replica, which appends their batches in one append."""
        if self.requests:
            taken = self.take()
            self._replica.step(taken.requests[0] if len(taken.requests) == 1 else taken)


class ClientRequests:
    """The client requests of one replica that wait for a result, by request id. Each gets exactly one response."""

    __slots__ = ("_counters", "_deletes", "_next_id", "_produces")

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._produces: dict[int, Produce] = {}
        self._deletes: dict[int, OnDeleted] = {}
        self._next_id = 1

    def add_produce(self, produce: Produce) -> int:
        """Add a produce request, and return its request id. `respond_to_produce` removes it."""
        request_id = self._next_id
        self._next_id += 1
        self._produces[request_id] = produce
        return request_id

    def add_delete(self, on_done: OnDeleted) -> int:
        """Add a DeleteRecords request, and return its request id. `respond_to_delete` removes it."""
        request_id = self._next_id
        self._next_id += 1
        self._deletes[request_id] = on_done
        return request_id

    def batches_of(self, effect: fx.Append) -> tuple[bytes | bytearray | memoryview, int, int]:
        """Return the stamped batches of the requests that an Append effect names, and the numbers of records and
        batches.
        """
        # The type checker does not know that an Append effect of clients always has the id of a produce request.
        first_id: Any = effect.request_id
        produce = self._produces[first_id]
        data: bytes | bytearray | memoryview = produce.stamped(
            effect.base_offset, effect.leader_epoch
        )
        records, batches = produce.batches.record_count, len(produce.batches.positions)
        if effect.further_ids:
            parts = [data]
            for request_id in effect.further_ids:
                produce = self._produces[request_id]
                parts.append(produce.stamped(effect.base_offset + records, effect.leader_epoch))
                records += produce.batches.record_count
                batches += len(produce.batches.positions)
            data = b"".join(parts)
        return data, records, batches

    def respond_to_produce(
        self, effect: fx.RespondToProduce, log_start_offset: Offset, message: str
    ) -> None:
        """Pass the outcome to the caller of a produce request."""
        produce = self._produces.pop(effect.request_id, None)
        if produce is None:
            return
        error = effect.error_code
        time_ms = produce.log_append_time_ms if error is _NONE else -1
        self.respond(
            produce,
            ProduceOutcome(
                error, effect.base_offset, time_ms, log_start_offset, effect.leader_epoch, message
            ),
        )

    def respond(self, produce: Produce, outcome: ProduceOutcome) -> None:
        """Pass the outcome to the caller of a produce request.

        An exception of the caller's `on_done` is only logged, so that it does not take this partition offline.
        """
        self._counters.produce_errors += outcome.error is not _NONE
        self._counters.produce_latencies.observe(perf_counter() - produce.began_s)
        try:
            produce.on_done(outcome)
        except Exception as error:
            _log.error("Failed to pass on the outcome of a produce request", exc=error)

    def respond_to_delete(self, effect: fx.RespondToDelete) -> None:
        """Pass the outcome to the caller of a DeleteRecords request."""
        self._deletes.pop(effect.request_id)(
            OffsetOutcome(effect.error_code, effect.low_watermark, leader_epoch=effect.leader_epoch)
        )


def stamp_batches(
    buffer: bytearray | memoryview,
    batches: CheckedBatches,
    *,
    base_offset: int,
    leader_epoch: LeaderEpoch,
    log_append_time_ms: int,
) -> None:
    """Write the offsets and the leader epoch into the batch headers. Write `log_append_time_ms` as well, unless it is
    -1 (the topic uses CreateTime).
    """
    for position, count in batches.positions:
        stamp(buffer, position, base_offset, leader_epoch)
        if log_append_time_ms >= 0:
            _stamp_time(buffer, position, log_append_time_ms)
        base_offset += count


def _stamp_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Write the LogAppendTime (KIP-32) into the header of a batch, and the new CRC, because the CRC covers the time."""
    _, batch_length, *_ = HEADER.unpack_from(buffer, position)
    low_byte = position + ATTRIBUTES_AT + 1
    buffer[low_byte] = buffer[low_byte] | TIMESTAMP_TYPE_MASK
    at = position + MAX_TIMESTAMP_AT
    buffer[at : at + 8] = now_ms.to_bytes(8, "big", signed=True)
    end = position + LENGTH_PREFIX_BYTES + batch_length
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : end])
    buffer[position + CRC_AT : position + CRC_AT + 4] = crc.to_bytes(4, "big")
