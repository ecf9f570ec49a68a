"""The batches of one partition, in order, with the sequence numbers by which a broker recognizes repeats.

A batch goes from `filling` to `waiting` (sealed) to `in_flight` (sent), and then is done or goes back to `waiting`.
The order always holds: batches in flight are older than waiting ones, and those are older than the filling one. The
rules that preserve it:

- At most `in_flight_max` (5) batches are in flight: the broker remembers the last five of a producer, so it
  recognizes a repeat of any of them.
- Until the leader has acknowledged one batch under the present producer id and epoch, one is sent at a time. A
  leader accepts any sequence number from a producer that it does not remember, so a later batch could be written
  after the first was refused, and the repeat of the first would count as written, too.
- After a retriable failure, nothing new is sent until every batch in flight is done or waits again (`is_settling`).
  Then all are sent again, lowest sequence first.
- A batch gets its sequence numbers when it is first sent and keeps them over retries, so its records are written
  once, whether or not an earlier attempt arrived.

A batch that is too large for the topic (MESSAGE_TOO_LARGE) is replaced by two halves, which share its place and its
sequence numbers; they can be halved again, down to single records.

A batch that fails for good leaves a hole in the sequence, and the broker refuses its successors
(OUT_OF_ORDER_SEQUENCE_NUMBER). If it refuses the **oldest** batch in flight, neither that one nor any later one was
written: they are renumbered from 0 under the next producer epoch (epochs of one producer id are independent per
partition), and sent again without a risk of duplicates. If it refuses a later batch, an earlier one has not arrived
yet. If it refuses the oldest although there is no hole, the log has lost acknowledged records: that batch fails with
SequenceLost.

In a transaction nothing is renumbered: epochs belong to the transaction's coordinator. A batch that fails for good
fails the transaction, and the next one begins under a new identity with sequence 0.
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
NUMBER_STEP = 1 << 32
"""Distance between the numbers of two batches, which leaves room for repeated halving."""


class ProducerBatch:
    """Records of one partition that are acknowledged or fail together. Its queue owns it until it is done."""

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
        """The halves that this batch was split into, or None. They have its records; it is done when both are done."""
        self._whole: ProducerBatch | None = None
        self._number_width = NUMBER_STEP
        self.number = number
        """Grows within the queue, in the order of the records."""
        self.created_ms = created_ms
        self.record_count = 0
        self.size_bytes = 0
        self.attempt = 0
        """How often the batch was sent. A response to an earlier attempt does not count for this one."""
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.is_done = False
        self.error: OdradekError | None = None
        self.last_error: OdradekError | None = None
        """The failure of the last attempt, for the message of a timeout."""
        self.base_offset = -1
        self.log_append_time_ms = -1

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the batch is done. The batch must not be done yet."""
        assert not self.is_done
        self._callbacks.append(callback)

    def number_as(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Set the producer id, producer epoch and base sequence number of the batch. -1 for all three clears them."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self._encoded = None

    def encode(self, compression: Compression, level: int | None) -> bytes:
        """Return the encoded batch, which is encoded once and kept for retries."""
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
        """Return the batch that now has record `index`, and its index there: this batch, or a half after splits."""
        batch = self
        while batch.halves is not None:
            first, second = batch.halves
            if index < first.record_count:
                batch = first
            else:
                batch, index = second, index - first.record_count
        return batch, index

    def split(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Split into two batches of half the records each, which share its sequence numbers.

        The batch has two records or more and was not written.
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
        """Mark the batch as done and free its bytes. Returns the callbacks, which the sender runs."""
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
    """The batches of one partition that are not done. Sans-IO; owned by the accumulator."""

    __slots__ = (
        "_next_number",
        "batch_bytes_max",
        "failures",
        "filling",
        "hole_number",
        "in_flight",
        "is_remembered",
        "is_settling",
        "is_transactional",
        "must_renumber",
        "name",
        "next_sequence",
        "not_before_ms",
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
        self.filling: ProducerBatch | None = None
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.is_settling = False
        self.not_before_ms = 0
        self.failures = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self.next_sequence = 0
        self.is_remembered = False
        """Whether a batch was acknowledged under this producer id and epoch, so that the leader notices gaps."""
        self.hole_number = -1
        """Number of the last batch that failed after it was sent; -1 if none did since the last success."""
        self.must_renumber = False
        self.batch_bytes_max = 1 << 31
        """The size that the topic accepts, as learned from its refusals."""
        self._next_number = 0

    def begin_transaction(self, producer_id: int, producer_epoch: int) -> None:
        """Give the batches of the next transaction sequence numbers from 0, under this producer id and epoch."""
        assert self.is_empty, f"{self.name} has batches of an earlier transaction"
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.next_sequence = 0
        self.is_remembered = self.is_settling = self.must_renumber = False
        self.hole_number = -1
        self.failures = self.not_before_ms = 0

    @property
    def is_empty(self) -> bool:
        """Whether no batch is filling, waiting or in flight."""
        return self.filling is None and not self.waiting and not self.in_flight

    def open(self, now_ms: int, batch_bytes_max: int) -> ProducerBatch:
        """Create a new batch, which is not the filling one yet."""
        self._next_number += NUMBER_STEP
        bytes_max = min(batch_bytes_max, self.batch_bytes_max)
        return ProducerBatch(self, self._next_number, now_ms, bytes_max)

    def seal(self) -> None:
        """Add no more records to the batch that is being filled, so that it can be sent."""
        if self.filling is not None:
            self.waiting.append(self.filling)
            self.filling = None

    def is_oldest(self, batch: ProducerBatch) -> bool:
        """Return whether no older batch is in flight or waiting."""
        return not any(other.number < batch.number for other in (*self.in_flight, *self.waiting))

    def take_back(self, batch: ProducerBatch) -> None:
        """Move a batch from in flight back to waiting, at its place in the order."""
        self.in_flight.remove(batch)
        self._insert(batch)
        self.is_settling = bool(self.in_flight)

    def split(self, batch: ProducerBatch) -> tuple[ProducerBatch, ProducerBatch]:
        """Replace a batch in flight that is too large for the topic by two waiting halves. New batches are smaller."""
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
        """Remove a batch that was acknowledged or has finally failed."""
        if batch is self.filling:
            self.filling = None
        elif batch in self.in_flight:
            self.in_flight.remove(batch)
            if not self.in_flight:
                self.is_settling = False
        else:
            self.waiting.remove(batch)

    def may_number(self, producer_id: int) -> bool:
        """Return whether the next batch can get its sequence numbers now; if not, batches in flight must be done first.

        A queue switches to a new producer id only when none of its batches has numbers of the old one,
        because such a batch may have been written.
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
            self.hole_number = -1
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
