"""The batches of one producer: decides when each is sent, retried, acknowledged or failed.

If a broker has no outstanding request of this producer, the buffered records are sent to the broker at once, so a
single record never waits. While requests are outstanding, records are buffered until their batch is full or `linger_ms`
old, or until the last response arrives. So batches grow with the load, and `linger_ms` applies only under load.
After a flush, or when the buffer is full, all batches are sent without waiting.

The buffer is bounded: `append` returns None while `buffered_bytes` has reached its limit, and a batch that is done
frees its bytes. Every batch ends: it is acknowledged, fails, or expires `delivery_timeout_ms` after its first record.

This module does no I/O. The sender calls `append` for each record, `drain` for each broker whenever a batch may have
become ready, and `responded`, `lost` and `leader_changed` when that has happened. `expire` fails batches that are too
old, and `wake_ms` returns when to call `expire` and `drain` again. `partition_queue` maintains the order of batches and
their sequence numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from odradek.cluster.backoff import Backoff
from odradek.errors import (
    BrokersUnavailable,
    BrokerUnreachable,
    DeliveryTimedOut,
    OdradekError,
    RecordTooLarge,
    RequestTimedOut,
    SequenceLost,
    error_of,
)
from odradek.partitions import TopicPartition
from odradek.producer.partition_queue import PartitionQueue, ProducerBatch
from odradek_protocol.kafka.error_codes import ErrorCode

Headers = list[tuple[str, bytes | None]] | tuple[tuple[str, bytes | None], ...]
Callbacks = list[Callable[[], object]]
_NO_RESPONSE: Final = (BrokersUnavailable, BrokerUnreachable, RequestTimedOut)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatorLimits:
    """The limits of an accumulator. A producer sets all of them from its `ProducerOptions`."""

    batch_bytes_max: int = 256 * 1024
    request_bytes_max: int = 1024 * 1024
    buffer_bytes_max: int = 64 * 1024 * 1024
    linger_ms: int = 5
    in_flight_max: int = 5
    delivery_timeout_ms: int = 120_000


class Accumulator:
    """The queues of all partitions that one producer writes to."""

    def __init__(
        self,
        limits: AccumulatorLimits,
        *,
        is_idempotent: bool = True,
        is_transactional: bool = False,
        backoff: Backoff | None = None,
    ) -> None:
        self.limits = limits
        self.is_idempotent = is_idempotent
        self.is_transactional = is_transactional
        self.transaction_error: OdradekError | None = None
        """The first failure of a batch of the open transaction. If this is set, the transaction can only be aborted."""
        self.producer_id = -1
        self.producer_epoch = -1
        self.buffered_bytes = 0
        self.pending_count = 0
        self.done_batches = 0
        """The number of batches that were acknowledged or failed since the start."""
        self.unreported: list[ProducerBatch] = []
        """Failed batches whose futures nobody awaits. The sender logs them and empties the list."""
        self.has_opened = False
        """Whether a batch was created since the producer last reset this flag."""
        self.has_full = False
        """Whether a batch was sealed because it was full, since the producer last reset this flag."""
        self._backoff = backoff or Backoff(first_ms=20, most_ms=1_000)
        self._pending: dict[TopicPartition, PartitionQueue] = {}
        self._release_before_ms = -1
        self._buffer_bytes_max = limits.buffer_bytes_max

    def append(
        self,
        queue: PartitionQueue,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
        now_ms: int,
    ) -> ProducerBatch | None:
        """Append a record to a batch, and return the batch. None means that the buffer is full, and the record was not
        appended.

        Raises:
            RecordTooLarge: the record does not fit into a request.
            TypeError: key, value or headers are not bytes.
        """
        if self.buffered_bytes >= self._buffer_bytes_max:
            return None
        batch = queue.open_batch
        if batch is not None:
            size_bytes = batch.append(key, value, headers, timestamp_ms)
            if size_bytes:
                self.buffered_bytes += size_bytes - batch.size_bytes
                batch.size_bytes = size_bytes
                batch.record_count += 1
                return batch
            queue.seal()
            self.has_full = True
        batch = queue.open(now_ms, self.limits.batch_bytes_max)
        size_bytes = batch.append(key, value, headers, timestamp_ms)
        if size_bytes > self.limits.request_bytes_max:
            raise RecordTooLarge(
                f"a record for {queue.name} has {size_bytes} bytes, but request_bytes_max is"
                f" {self.limits.request_bytes_max}"
            )
        self.buffered_bytes += size_bytes
        batch.size_bytes = size_bytes
        batch.record_count = 1
        queue.open_batch = batch
        self.pending_count += 1
        self._pending[queue.name] = queue
        self.has_opened = True
        return batch

    def extend(
        self,
        batch: ProducerBatch,
        values: Sequence[bytes | None],
        start: int,
        timestamp_ms: int,
        *,
        bytes_max: int,
    ) -> int:
        """Append values without key and headers to a batch that still accepts records, beginning with `values[start]`.
        Return how many were appended.

        The method stops when the batch has `bytes_max` bytes, the buffer is full, or the next value does not fit or is
        not bytes. The caller then passes that value to `append`.
        """
        before = size_bytes = batch.size_bytes
        end_bytes = min(bytes_max, before + self._buffer_bytes_max - self.buffered_bytes)
        append, count = batch.append, 0
        with suppress(TypeError):
            for value in islice(values, start, None):
                if size_bytes >= end_bytes:
                    break
                extended_bytes = append(None, value, None, timestamp_ms)
                if not extended_bytes:
                    break
                size_bytes = extended_bytes
                count += 1
        self.buffered_bytes += size_bytes - before
        batch.size_bytes = size_bytes
        batch.record_count += count
        return count

    def begin_transaction(self, producer_id: int, producer_epoch: int) -> None:
        """Use this producer id and epoch for the next records. All batches of the last transaction must be done."""
        assert not self.pending_count, f"{self.pending_count} batches of an earlier transaction"
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.transaction_error = None

    def release_all(self, now_ms: int) -> bool:
        """Make all buffered records ready to be sent, without further lingering. Return False if there are none."""
        self._release_before_ms = now_ms
        return self.pending_count > 0

    def pending_batches(self) -> list[ProducerBatch]:
        """Return all batches that are neither acknowledged nor failed."""
        return [
            batch
            for queue in self._pending.values()
            for batch in (*queue.in_flight, *queue.waiting, *_one(queue.open_batch))
        ]

    @property
    def pending(self) -> Iterable[PartitionQueue]:
        """The queues that have batches which are not done."""
        return self._pending.values()

    def drain(
        self, queues: Iterable[PartitionQueue], now_ms: int, *, is_idle: bool
    ) -> list[ProducerBatch]:
        """Return the batches for one request to the broker that leads these partitions, and mark them as in flight.

        At most one batch per partition is returned. Their total size is at most `request_bytes_max`, unless it is a
        single batch. `is_idle` means that the broker has no outstanding request of this producer.
        """
        chosen: list[ProducerBatch] = []
        remaining_bytes = self.limits.request_bytes_max
        for queue in queues:
            if not self._may_send(queue, now_ms):
                continue
            batch = self._ready(queue, now_ms, is_idle)
            if batch is None or (chosen and batch.size_bytes > remaining_bytes):
                continue
            if batch is queue.open_batch:
                queue.seal()
            if self.is_idempotent:
                queue.number_next(batch, self.producer_id, self.producer_epoch)
            queue.send_next()
            chosen.append(batch)
            remaining_bytes -= batch.size_bytes
            if remaining_bytes <= 0:
                break
        return chosen

    def rotate(self, queues: Iterable[PartitionQueue]) -> None:
        """Move these queues to the end of the order, so that every queue gets its turn when requests are full."""
        for queue in queues:
            if self._pending.pop(queue.name, None) is not None:
                self._pending[queue.name] = queue

    def wake_ms(self, now_ms: int) -> int | None:
        """Return the next time after `now_ms` at which a batch becomes ready or expires; None if there is no such
        time.
        """
        times: list[int] = []
        for queue in self._pending.values():
            times.append(queue.not_before_ms)
            for batch in (*queue.in_flight[:1], *_first(queue.waiting), *_one(queue.open_batch)):
                times.append(batch.created_ms + self.limits.delivery_timeout_ms)
            if queue.open_batch is not None:
                times.append(queue.open_batch.created_ms + self.limits.linger_ms)
        return min((time_ms for time_ms in times if time_ms > now_ms), default=None)

    def responded(
        self,
        batch: ProducerBatch,
        attempt: int,
        code: int,
        message: str,
        *,
        base_offset: int,
        log_append_time_ms: int,
        now_ms: int,
        draw: float,
    ) -> Callbacks:
        """Apply the result of one attempt to send a batch. Return the batch's callbacks if it is done now; the caller
        runs them. `draw` is a random number in [0, 1) for the backoff.
        """
        if batch.is_done or batch.attempt != attempt or batch not in batch.queue.in_flight:
            return []
        queue = batch.queue
        if code == ErrorCode.NONE:
            queue.acknowledged_ms = now_ms
            return self._acknowledged(batch, base_offset, log_append_time_ms)
        if code == ErrorCode.MESSAGE_TOO_LARGE and batch.record_count > 1:
            first, second = queue.split(batch)
            self.buffered_bytes += first.size_bytes + second.size_bytes - batch.size_bytes
            self.pending_count += 1
            return []
        error = error_of(code, str(queue.name), message)
        if (
            code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
            and self.is_idempotent
            # In a transaction, the oldest batch fails, because batches are not renumbered.
            and not (self.is_transactional and queue.is_oldest(batch))
        ):
            return self._out_of_order(batch, code, error, now_ms, draw)
        if error.code is not None and error.code.retriable:
            self._retry(batch, error, now_ms, draw)
            return []
        return self._failed(batch, error)

    def lost(
        self, batch: ProducerBatch, attempt: int, error: OdradekError, now_ms: int, draw: float
    ) -> None:
        """Retry a batch whose connection broke before the response. It is unknown whether the broker wrote the
        batch.
        """
        if not batch.is_done and batch.attempt == attempt and batch in batch.queue.in_flight:
            self._retry(batch, error, now_ms, draw)

    def leader_changed(self, queue: PartitionQueue) -> None:
        """Send the batches in flight to the new leader, without waiting for responses of the old leader.

        Responses of the old leader are ignored from now on. If the old leader wrote a batch, the new leader recognizes
        the duplicate by its sequence numbers. Without idempotence, the producer waits for the responses instead.
        """
        queue.not_before_ms = 0
        if self.is_idempotent:
            for batch in reversed(list(queue.in_flight)):
                queue.requeue(batch)
            queue.is_settling = False

    def fail(self, batch: ProducerBatch, error: OdradekError) -> Callbacks:
        """Fail one batch that is not done. The caller runs the returned callbacks."""
        return self._failed(batch, error)

    def note_cause(self, error: OdradekError) -> None:
        """Record why nothing can be sent at the moment, for the messages of timeout errors."""
        for queue in self._pending.values():
            for batch in (*queue.waiting, *_one(queue.open_batch)):
                batch.last_error = error

    def note_outage(self, error: OdradekError | None) -> None:
        """Record that no broker responds (`error`), or that a broker responds again (None). The error that a broker
        sent about a batch remains, because it says more about the batch.
        """
        for batch in self.pending_batches():
            if batch.last_error is None or isinstance(batch.last_error, _NO_RESPONSE):
                batch.last_error = error

    def fail_all(self, error_for: Callable[[ProducerBatch], OdradekError]) -> Callbacks:
        """Fail all batches that are not done, with the error that `error_for` returns. The caller runs the returned
        callbacks.
        """
        callbacks: Callbacks = []
        for queue in list(self._pending.values()):
            for batch in (*queue.in_flight, *queue.waiting, *_one(queue.open_batch)):
                callbacks += self._failed(batch, error_for(batch))
        return callbacks

    def fail_queue(self, queue: PartitionQueue, error: OdradekError) -> Callbacks:
        """Fail all batches of a partition that was deleted. The caller runs the returned callbacks."""
        callbacks: Callbacks = []
        for batch in (*queue.in_flight, *queue.waiting, *_one(queue.open_batch)):
            callbacks += self._failed(batch, error)
        return callbacks

    def expire(self, now_ms: int) -> Callbacks:
        """Fail the batches whose delivery timeout has passed. The caller runs the returned callbacks."""
        callbacks: Callbacks = []
        created_before_ms = now_ms - self.limits.delivery_timeout_ms
        for queue in list(self._pending.values()):
            # Each list begins with its oldest batch. A batch that waits for its retry may be older than all in flight.
            for batches in (tuple(queue.in_flight), (*queue.waiting, *_one(queue.open_batch))):
                for batch in batches:
                    if batch.created_ms > created_before_ms:
                        break
                    callbacks += self._failed(batch, self._timed_out(batch, now_ms))
        return callbacks

    def _may_send(self, queue: PartitionQueue, now_ms: int) -> bool:
        if queue.is_settling or queue.not_before_ms > now_ms:
            return False
        if not self.is_idempotent:
            return len(queue.in_flight) < self.limits.in_flight_max
        if not queue.may_number(self.producer_id):
            return False
        queue.forget_if_idle(now_ms)
        if not queue.is_remembered or queue.is_retrying:
            return not queue.in_flight
        return queue.sent_since_oldest < self.limits.in_flight_max

    def _ready(self, queue: PartitionQueue, now_ms: int, is_idle: bool) -> ProducerBatch | None:
        if queue.waiting:
            return queue.waiting[0]
        batch = queue.open_batch
        if batch is None:
            return None
        is_ready = (
            is_idle
            or now_ms >= batch.created_ms + self.limits.linger_ms
            or batch.created_ms <= self._release_before_ms
            or self.buffered_bytes >= self._buffer_bytes_max
        )
        return batch if is_ready else None

    def _acknowledged(
        self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int
    ) -> Callbacks:
        queue = batch.queue
        batch.base_offset = base_offset
        batch.log_append_time_ms = log_append_time_ms
        queue.failures = 0
        queue.is_remembered = True
        if batch.number > queue.gap_number:
            queue.gap_number = -1
        return self._done(batch, None)

    def _out_of_order(
        self, batch: ProducerBatch, code: int, error: OdradekError, now_ms: int, draw: float
    ) -> Callbacks:
        queue = batch.queue
        if not queue.is_oldest(batch):
            self._retry(batch, error, now_ms, draw)
            return []
        is_explained = queue.must_renumber or queue.gap_number >= 0
        queue.must_renumber = True
        if is_explained or code == ErrorCode.UNKNOWN_PRODUCER_ID:
            self._retry(batch, error, now_ms, draw)
            return []
        lost = SequenceLost(
            f"{queue.name}: the leader has lost earlier records that it had acknowledged",
            code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        )
        callbacks = self._done(batch, lost)
        queue.is_settling = bool(queue.in_flight)
        return callbacks

    def _retry(self, batch: ProducerBatch, error: OdradekError, now_ms: int, draw: float) -> None:
        queue = batch.queue
        batch.last_error = error
        queue.requeue(batch)
        queue.failures += 1
        queue.not_before_ms = max(
            queue.not_before_ms, now_ms + self._backoff.after(min(queue.failures, 8), draw)
        )

    def _failed(self, batch: ProducerBatch, error: OdradekError) -> Callbacks:
        if batch.base_sequence >= 0:
            batch.queue.gap_number = max(batch.queue.gap_number, batch.number)
        return self._done(batch, error)

    def _done(self, batch: ProducerBatch, error: OdradekError | None) -> Callbacks:
        queue = batch.queue
        queue.drop(batch)
        self.buffered_bytes -= batch.size_bytes
        self.pending_count -= 1
        self.done_batches += 1
        if queue.is_empty:
            self._pending.pop(queue.name, None)
        callbacks = batch.finish(error)
        if error is not None and self.is_transactional:
            self.transaction_error = self.transaction_error or error
        if error is not None and not callbacks:
            self.unreported.append(batch)
        return callbacks

    def _timed_out(self, batch: ProducerBatch, now_ms: int) -> OdradekError:
        waited_s = (now_ms - batch.created_ms) / 1000
        because = f"; last error: {batch.last_error}"
        if batch.last_error is None:
            because = "; the partition had no leader, or its leader did not respond"
        hint = None
        if not batch.attempt:
            hint = "the records were never sent, so sending them again cannot write them twice"
        return DeliveryTimedOut(
            f"{batch.record_count} records for {batch.queue.name} were not acknowledged within"
            f" {waited_s:.1f} s{because}",
            hint=hint,
        )


def _first(batches: Iterable[ProducerBatch]) -> Iterable[ProducerBatch]:
    return islice(batches, 1)


def _one(batch: ProducerBatch | None) -> tuple[ProducerBatch, ...]:
    return () if batch is None else (batch,)
