"""The batches of one partition, in order, and the numbers that make a repeat recognizable.

A batch goes from `filling` to `waiting` (sealed) to `in_flight` (sent) and is done, or goes back to
`waiting`. Order holds at all times: every batch in flight is older than every one waiting, and those
are older than the one filling. What keeps it so:

- At most `in_flight_max` (5) are sent and undecided: the broker remembers the last five of a
  producer, so a repeat of any of them is recognized.
- Until the leader has acknowledged one batch under the present producer id and epoch, one is sent at a time: a
  leader takes any number from a producer that it does not remember, so a later batch could be written though the
  first was refused, and the repeat of the first would count as written, too.
- After a failure that may be retried nothing new is sent until every batch in flight is decided or
  given up on (`is_settling`). Then all go again, lowest sequence first.
- Sequence numbers are given when a batch is first sent and kept over retries: whether an earlier
  attempt arrived or not, the records are written once.

A batch that the topic finds too large (MESSAGE_TOO_LARGE) goes on as two halves, which share its place and
its sequence numbers, down to single records.

A batch that fails for good leaves a hole in the sequence, and the broker refuses what follows
(OUT_OF_ORDER_SEQUENCE_NUMBER). When that is said of the **oldest** undecided batch, neither it nor any later
one was written: they are numbered anew, from 0 under the next producer epoch (epochs of one
producer id are independent per partition), and sent again without a risk of doubling. Said of a later
batch it only means that an earlier one is missing still. Said of the oldest without a known hole, the
log has lost records that it acknowledged: that batch fails with SequenceLost.
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
"""Between the numbers of two batches: room for the halves of halves."""


class ProducerBatch:
    """Records of one partition that live or fail together. Owned by its queue until it is done."""

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
        """(key, value, headers, timestamp_ms) -> size of the batch in bytes; 0: does not fit."""
        self.queue = queue
        self.halves: tuple[ProducerBatch, ProducerBatch] | None = None
        """What it was split into: they carry its records, it is done when both are."""
        self._whole: ProducerBatch | None = None
        self._number_width = NUMBER_STEP
        self.number = number
        """Rises within the queue, in the order of the records."""
        self.created_ms = created_ms
        self.record_count = 0
        self.size_bytes = 0
        self.attempt = 0
        """How often it was sent. An answer to an earlier attempt is no answer to this one."""
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.is_done = False
        self.error: OdradekError | None = None
        self.last_error: OdradekError | None = None
        """Why the last attempt failed, for the message when time runs out."""
        self.base_offset = -1
        self.log_append_time_ms = -1

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call it when the batch is done; it must not be yet."""
        assert not self.is_done
        self._callbacks.append(callback)

    def number_as(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Number its records, or number them anew; all -1 takes the numbers away."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self._encoded = None

    def encode(self, compression: Compression, level: int | None) -> bytes:
        """The batch's bytes; made once, kept for retries."""
        if self._encoded is None:
            self._encoded = self._builder.build(
                compression=compression,
                compression_level=level,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
            )
        return self._encoded

    def leaf(self, index: int) -> tuple[ProducerBatch, int]:
        """The batch that carries this one's record `index` now, and the record's index in it."""
        batch = self
        while batch.halves is not None:
            first, second = batch.halves
            if index < first.record_count:
                batch = first
            else:
                batch, index = second, index - first.record_count
        return batch, index

    def split(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Two batches of half the records each, with their share of the numbers of this one.

        It needs two records or more, and must not have been written: the halves take over its
        sequence numbers.
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
        """Mark it done and free its bytes; returns the callbacks, for the shell to run."""
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
    """The way of one partition's records. Sans-IO; owned by the accumulator."""

    __slots__ = (
        "_next_number",
        "batch_bytes_max",
        "failures",
        "filling",
        "hole_number",
        "in_flight",
        "is_remembered",
        "is_settling",
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

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
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
        """A batch was acknowledged under this producer id and epoch: the leader notices gaps."""
        self.hole_number = -1
        """Number of the last batch that failed after it was sent; -1: no hole since the last success."""
        self.must_renumber = False
        self.batch_bytes_max = 1 << 31
        """What the topic takes, as learned from its refusals."""
        self._next_number = 0

    @property
    def is_empty(self) -> bool:
        """Nothing filling, waiting or in flight."""
        return self.filling is None and not self.waiting and not self.in_flight

    def open(self, now_ms: int, batch_bytes_max: int) -> ProducerBatch:
        """A new batch, not yet the filling one."""
        self._next_number += NUMBER_STEP
        bytes_max = min(batch_bytes_max, self.batch_bytes_max)
        return ProducerBatch(self, self._next_number, now_ms, bytes_max)

    def seal(self) -> None:
        """Close the filling batch; it waits to be sent."""
        if self.filling is not None:
            self.waiting.append(self.filling)
            self.filling = None

    def is_oldest(self, batch: ProducerBatch) -> bool:
        """Whether no older batch is undecided."""
        return not any(other.number < batch.number for other in (*self.in_flight, *self.waiting))

    def take_back(self, batch: ProducerBatch) -> None:
        """A batch in flight waits again, at its place in the order."""
        self.in_flight.remove(batch)
        self._insert(batch)
        self.is_settling = bool(self.in_flight)

    def split(self, batch: ProducerBatch) -> tuple[ProducerBatch, ProducerBatch]:
        """A batch in flight that the topic found too large waits again, as two; later ones are smaller."""
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
        """A batch that is done leaves, from wherever it is."""
        if batch is self.filling:
            self.filling = None
        elif batch in self.in_flight:
            self.in_flight.remove(batch)
            if not self.in_flight:
                self.is_settling = False
        else:
            self.waiting.remove(batch)

    def may_number(self, producer_id: int) -> bool:
        """Whether the next batch can be sent with a number now; False: what is in flight comes first.

        A queue takes over a new producer id only when no batch of it has a number of the old one:
        that one may have been written.
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
        """Whether renumbering needs a new producer id."""
        return self.must_renumber and self.producer_epoch >= PRODUCER_EPOCH_MAX

    def number_next(self, batch: ProducerBatch, producer_id: int, producer_epoch: int) -> None:
        """Give a batch that is about to be sent its numbers, unless it has them."""
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
