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

from odradek.partitions import TopicPartition
from odradek.producer.producer_batch import NUMBER_STEP, SEQUENCE_MODULUS, ProducerBatch

PRODUCER_EPOCH_MAX = (1 << 15) - 1
BATCH_BYTES_MIN = 1024


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
