"""The batches of one partition, in order, with the sequence numbers by which a broker recognizes duplicates.

A batch is first `open` (accepts records), then `waiting` (sealed), then `in_flight` (sent). From there it is done or
goes back to `waiting`. The open batch is the newest. Batches in flight are older than waiting batches, except while
`is_settling` is set. These rules preserve the order:

- A broker remembers the last five batches of a producer, and recognizes a duplicate of each of them. So at most
  `in_flight_max` (5) batches are sent before the oldest of them is done, even if responses arrive out of order.
- Until the leader has acknowledged a batch with the present producer id and epoch, one batch is sent at a time. A
  leader accepts any sequence number from a producer that it does not know. So it could refuse the first batch, and
  write a later one. It would then take a retry of the first batch for a duplicate, and acknowledge the retry without
  writing it. The same holds after `IDLE_MS_MAX` without a batch, because a leader forgets producers that are idle
  (`producer.id.expiration.ms`).
- After a retriable failure, no further batch is sent until every batch in flight is done or back in `waiting`
  (`is_settling`). Then the batches are sent again in the order of their sequence numbers, one at a time
  (`is_retrying`). The failed batch and the four batches after it may have been written. If the leader refused the
  failed batch again and wrote a new batch, the failed batch would no longer be one of the five that the leader
  recognizes.
- A batch gets its sequence numbers when it is first sent, and keeps them for retries. So its records are written once,
  whether or not an earlier attempt reached the broker.

A batch that is too large for the topic (MESSAGE_TOO_LARGE) is replaced by two halves, which take its position and its
sequence numbers. A half that is still too large is split again, down to single records.

A batch that fails for good leaves a gap in the sequence, so the broker refuses later batches
(OUT_OF_ORDER_SEQUENCE_NUMBER). Three cases are distinguished. If the broker refuses the **oldest** batch in flight, and
there is a gap, neither this batch nor any later one was written. They are renumbered from 0 with the next producer
epoch and sent again, without a risk of duplicates (each epoch has its own sequence in each partition). If the broker
refuses a later batch, an earlier one has not arrived yet, and the batch is retried. If the broker refuses the oldest
batch although there is no gap, the log has lost acknowledged records, and the batch fails with SequenceLost.

In a transaction, batches are never renumbered, because the transaction coordinator assigns the epochs. If the broker
refuses the oldest batch in flight, the batch fails. A batch that fails for good fails the transaction, and the next
transaction has a new producer epoch and starts at sequence 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from odradek.errors import OdradekError
from odradek.partitions import TopicPartition
from odradek_protocol.records.batch_header import Compression
from odradek_protocol.records.batch_reader import decode_batch
from odradek_protocol.records.builder import BatchBuilder

PRODUCER_EPOCH_MAX = (1 << 15) - 1
BATCH_BYTES_MIN = 1024
SEQUENCE_MODULUS = 1 << 31
IDLE_MS_MAX = 60_000
"""After this time without an acknowledged batch, the leader may have forgotten the producer. The default of Kafka's
producer.id.expiration.ms is one day. Too low a value here costs only one round trip with a single batch.
"""
NUMBER_STEP = 1 << 32
"""The difference between the numbers of two consecutive batches. It leaves numbers for the halves of split batches."""


class ProducerBatch:
    """Records of one partition that are acknowledged or fail together."""

    __slots__ = (
        "_builder",
        "_callbacks",
        "_encoded",
        "_number_width",
        "_whole",
        "append",
        "attempt",
        "base_offset",
        "base_sequence",
        "created_ms",
        "error",
        "halves",
        "is_done",
        "last_error",
        "log_append_time_ms",
        "number",
        "producer_epoch",
        "producer_id",
        "queue",
        "record_count",
        "send_index",
        "size_bytes",
    )

    def __init__(
        self, queue: PartitionQueue, number: int, created_ms: int, batch_bytes_max: int
    ) -> None:
        self._builder = BatchBuilder(batch_bytes_max)
        self._callbacks: list[Callable[[], object]] = []
        self._encoded: bytes | None = None
        self.append = self._builder.append
        """(key, value, headers, timestamp_ms) -> size of the batch in bytes; 0: the record does not fit."""
        self.queue = queue
        self.halves: tuple[ProducerBatch, ProducerBatch] | None = None
        """The two batches that this batch was split into; None if it was not split. The batch is done when both halves
        are done.
        """
        self._whole: ProducerBatch | None = None
        self._number_width = NUMBER_STEP
        self.number = number
        """The position of the batch in its queue. Later batches have larger numbers."""
        self.created_ms = created_ms
        self.record_count = 0
        self.size_bytes = 0
        self.attempt = 0
        """How often the batch was sent. Responses to earlier attempts are ignored."""
        self.send_index = -1
        """How many batches were sent to the partition before the last attempt; -1 if the batch was never sent."""
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.is_done = False
        self.error: OdradekError | None = None
        self.last_error: OdradekError | None = None
        """The failure of the last attempt, for the message of a timeout; None if no attempt failed."""
        self.base_offset = -1
        self.log_append_time_ms = -1

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the batch is done. The batch must not be done yet."""
        assert not self.is_done
        self._callbacks.append(callback)

    def number_as(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Set the producer id, producer epoch and base sequence number of the batch. -1 for all three removes them."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self._encoded = None

    def encode(self, compression: Compression, level: int | None) -> bytes:
        """Return the encoded batch. The result is cached for retries."""
        if self._encoded is None:
            self._encoded = self._builder.build(
                compression=compression,
                compression_level=level,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
                transactional=self.queue.is_transactional,
            )
        return self._encoded

    def leaf(self, index: int) -> tuple[ProducerBatch, int]:
        """Return the batch that has record `index` after splits (this batch, or a half of it), and the record's index
        in that batch.
        """
        batch = self
        while batch.halves is not None:
            first, second = batch.halves
            if index < first.record_count:
                batch = first
            else:
                batch, index = second, index - first.record_count
        return batch, index

    def split(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Split the batch into two halves with half of the records each, and return them. The halves keep the sequence
        numbers.

        The batch must have at least two records, and must not have been written.
        """
        assert self.record_count > 1
        records = decode_batch(self._builder.build())
        middle = len(records) // 2
        width = self._number_width // 2
        halves = []
        for start, end, number in (
            (0, middle, self.number),
            (middle, len(records), self.number + width),
        ):
            half = ProducerBatch(self.queue, number, self.created_ms, self.size_bytes)
            half._whole, half._number_width = self, width
            for record in records[start:end]:
                half.size_bytes = half.append(
                    record.key, record.value, record.headers, record.timestamp_ms
                )
            half.record_count = end - start
            if self.base_sequence >= 0:
                half.number_as(
                    self.producer_id,
                    self.producer_epoch,
                    (self.base_sequence + start) % SEQUENCE_MODULUS,
                )
            halves.append(half)
        self.halves = (halves[0], halves[1])
        return self.halves

    def finish(self, error: OdradekError | None) -> list[Callable[[], object]]:
        """Mark the batch as done and free its memory. Return the callbacks, which the sender must run."""
        assert not self.is_done
        self.is_done = True
        self.error = error
        self._encoded = None
        del self._builder, self.append
        callbacks, self._callbacks = self._callbacks, []
        whole, self._whole = self._whole, None
        if (
            whole is not None
            and whole.halves is not None
            and all(half.is_done for half in whole.halves)
        ):
            callbacks += whole.finish(error)
        return callbacks


class PartitionQueue:
    """The batches of one partition that are not done. Sans-IO; the accumulator owns all queues."""

    __slots__ = (
        "_next_number",
        "_sent_count",
        "acknowledged_ms",
        "batch_bytes_max",
        "failures",
        "gap_number",
        "in_flight",
        "is_remembered",
        "is_settling",
        "is_transactional",
        "must_renumber",
        "name",
        "next_sequence",
        "not_before_ms",
        "open_batch",
        "partition",
        "producer_epoch",
        "producer_id",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, partition: int, *, is_transactional: bool = False) -> None:
        self.topic = topic
        self.is_transactional = is_transactional
        self.partition = partition
        self.name = TopicPartition(topic, partition)
        self.open_batch: ProducerBatch | None = None
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.is_settling = False
        self.not_before_ms = 0
        self.failures = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self.next_sequence = 0
        self.is_remembered = False
        """Whether a batch was acknowledged with this producer id and epoch. If so, the leader notices gaps in the
        sequence.
        """
        self.acknowledged_ms = 0
        """When the last batch was acknowledged."""
        self.gap_number = -1
        """The number of the last batch that failed after it was sent; -1 if no batch failed since the last success."""
        self.must_renumber = False
        self.batch_bytes_max = 1 << 31
        """The largest batch that the topic accepts, derived from batches that were refused as too large."""
        self._next_number = 0
        self._sent_count = 0

    def begin_transaction(self, producer_id: int, producer_epoch: int) -> None:
        """Number the batches of the next transaction from 0, with this producer id and epoch."""
        assert self.is_empty, f"{self.name} has batches of an earlier transaction"
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.next_sequence = 0
        self.is_remembered = self.is_settling = self.must_renumber = False
        self.gap_number = -1
        self.failures = self.not_before_ms = 0

    @property
    def is_empty(self) -> bool:
        """Whether no batch is open, waiting or in flight."""
        return self.open_batch is None and not self.waiting and not self.in_flight

    def open(self, now_ms: int, batch_bytes_max: int) -> ProducerBatch:
        """Create a new batch. The caller makes it the open batch after a record was appended."""
        self._next_number += NUMBER_STEP
        bytes_max = min(batch_bytes_max, self.batch_bytes_max)
        return ProducerBatch(self, self._next_number, now_ms, bytes_max)

    def seal(self) -> None:
        """Close the open batch for further records, so that it can be sent."""
        if self.open_batch is not None:
            self.waiting.append(self.open_batch)
            self.open_batch = None

    def is_oldest(self, batch: ProducerBatch) -> bool:
        """Return whether no older batch is in flight or waiting."""
        return not any(older.number < batch.number for older in (*self.in_flight, *self.waiting))

    @property
    def is_retrying(self) -> bool:
        """Whether the oldest batch that is not done was sent before, so that batches are sent one at a time."""
        oldest = self.in_flight[0].attempt > 1 if self.in_flight else False
        return oldest or bool(self.waiting and self.waiting[0].attempt)

    @property
    def sent_since_oldest(self) -> int:
        """The number of batches sent since the oldest batch in flight, which counts, too. Some may already be done."""
        return self._sent_count - self.in_flight[0].send_index if self.in_flight else 0

    def send_next(self) -> None:
        """Move the oldest waiting batch to the batches in flight."""
        batch = self.waiting.popleft()
        batch.attempt += 1
        batch.send_index = self._sent_count
        self._sent_count += 1
        self.in_flight.append(batch)

    def requeue(self, batch: ProducerBatch) -> None:
        """Move a batch from in flight back to waiting, at its position in the order."""
        self.in_flight.remove(batch)
        self._insert(batch)
        self.is_settling = bool(self.in_flight)

    def split(self, batch: ProducerBatch) -> tuple[ProducerBatch, ProducerBatch]:
        """Replace a batch in flight that is too large for the topic by two waiting halves. New batches will be smaller,
        too.
        """
        self.in_flight.remove(batch)
        self.batch_bytes_max = max(
            min(self.batch_bytes_max, batch.size_bytes // 2), BATCH_BYTES_MIN
        )
        halves = batch.split()
        for half in halves:
            self._insert(half)
        self.is_settling = bool(self.in_flight)
        return halves

    def _insert(self, batch: ProducerBatch) -> None:
        place = 0
        while place < len(self.waiting) and self.waiting[place].number < batch.number:
            place += 1
        self.waiting.insert(place, batch)

    def drop(self, batch: ProducerBatch) -> None:
        """Remove a batch that was acknowledged or has failed for good."""
        if batch is self.open_batch:
            self.open_batch = None
        elif batch in self.in_flight:
            self.in_flight.remove(batch)
            if not self.in_flight:
                self.is_settling = False
        else:
            self.waiting.remove(batch)

    def forget_if_idle(self, now_ms: int) -> None:
        """Assume that the leader does not know the producer any more, if nothing was written for a long time."""
        if not self.in_flight and now_ms - self.acknowledged_ms > IDLE_MS_MAX:
            self.is_remembered = False

    def may_number(self, producer_id: int) -> bool:
        """Return whether the next batch can get its sequence numbers now. If not, batches in flight must be done
        first, or a producer id is missing.

        The queue changes to a new producer id only when no batch has sequence numbers of the old producer id, because
        such a batch may have been written.
        """
        if self.must_renumber:
            return not self.in_flight and not (
                self.is_epoch_used_up and producer_id == self.producer_id
            )
        if producer_id == self.producer_id or (self.waiting and self.waiting[0].base_sequence >= 0):
            return self.producer_id >= 0
        return not self.in_flight and producer_id >= 0

    @property
    def is_epoch_used_up(self) -> bool:
        """Whether the producer id has no further epoch, so that renumbering needs a new producer id."""
        return self.must_renumber and self.producer_epoch >= PRODUCER_EPOCH_MAX

    def number_next(self, batch: ProducerBatch, producer_id: int, producer_epoch: int) -> None:
        """Give a batch that is about to be sent its sequence numbers, unless it already has them."""
        if self.must_renumber:
            assert not self.in_flight, self.name
            for waiting in self.waiting:
                waiting.number_as(-1, -1, -1)
            self.must_renumber = self.is_remembered = False
            self.gap_number = -1
            if self.producer_epoch < PRODUCER_EPOCH_MAX:
                self.producer_epoch += 1
            self.next_sequence = 0
        if batch.base_sequence >= 0:
            return
        if producer_id != self.producer_id:
            assert not self.in_flight, self.name
            self.producer_id, self.producer_epoch = producer_id, producer_epoch
            self.next_sequence = 0
            self.is_remembered = False
        batch.number_as(self.producer_id, self.producer_epoch, self.next_sequence)
        self.next_sequence = (self.next_sequence + batch.record_count) % SEQUENCE_MODULUS
