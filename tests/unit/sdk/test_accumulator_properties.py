"""A leader refuses batches, and responses are late, lost or out of order. Each record is still written once, in order,
and no error claims that the log lost records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.errors import BrokerUnreachable, OdradekError, SequenceLost, TransactionAborted
from odradek.producer.accumulator import Accumulator, AccumulatorLimits
from odradek.producer.partition_queue import (
    PRODUCER_EPOCH_MAX,
    PartitionQueue,
    ProducerBatch,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_header import Compression
from odradek_protocol.records.batch_reader import decode_batch

E = ErrorCode
BATCHES_REMEMBERED = 5
STEPS = 120
SETTLE_STEPS = 400
UNWRITTEN = (E.NOT_ENOUGH_REPLICAS, E.NOT_LEADER_OR_FOLLOWER)
WRITTEN = (E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


@dataclass
class Known:
    """What the leader knows of a producer id. It remembers the last five batches, as Kafka does."""

    epoch: int
    next_sequence: int = 0
    remembered: deque[tuple[int, int]] = field(
        default_factory=lambda: deque(maxlen=BATCHES_REMEMBERED)
    )


@dataclass
class Leader:
    """The log of a partition, and what the leader knows of each producer id."""

    values: list[bytes] = field(default_factory=list)
    known: dict[int, Known] = field(default_factory=dict)
    bytes_max: int = 1 << 20
    has_forgotten: bool = False
    committed: list[bytes] = field(default_factory=list)

    def write(self, sent: Sent) -> int:
        """Write a batch, or recognize a duplicate; return the error code."""
        if sent.size_bytes > self.bytes_max:
            return E.MESSAGE_TOO_LARGE
        known = self.known.get(sent.producer_id)
        if known is None and self.has_forgotten and sent.sequence:
            return E.UNKNOWN_PRODUCER_ID
        if known is not None:
            if sent.epoch < known.epoch:
                return E.INVALID_PRODUCER_EPOCH
            if sent.epoch == known.epoch:
                if (sent.sequence, len(sent.values)) in known.remembered:
                    return E.NONE
                if sent.sequence != known.next_sequence:
                    return E.OUT_OF_ORDER_SEQUENCE_NUMBER
            elif sent.sequence:
                return E.OUT_OF_ORDER_SEQUENCE_NUMBER
        if known is None or sent.epoch > known.epoch:
            known = self.known[sent.producer_id] = Known(sent.epoch)
        known.next_sequence = sent.sequence + len(sent.values)
        known.remembered.append((sent.sequence, len(sent.values)))
        self.values += sent.values
        return E.NONE

    def forget(self) -> None:
        """Forget all producers, as Kafka did before 2.4 when retention had deleted their records."""
        self.known.clear()
        self.has_forgotten = True

    def mark(self, producer_id: int, epoch: int, *, is_commit: bool) -> None:
        """Write the marker that ends the transaction. It has the next epoch, as since KIP-890."""
        if is_commit:
            self.committed += self.values
        self.values = []
        self.known[producer_id] = Known(epoch + 1)


@dataclass
class Sent:
    """A request with one batch, as it was when it was sent."""

    batch: ProducerBatch
    attempt: int
    producer_id: int
    epoch: int
    sequence: int
    size_bytes: int
    values: list[bytes]


class World:
    """A producer with one partition, its leader, one connection that keeps the order of requests, and a clock."""

    def __init__(
        self,
        random: Random,
        bytes_max: int,
        timeout_ms: int,
        epoch: int = 0,
        *,
        in_transactions: bool = False,
    ) -> None:
        self.random = random
        self.accumulator = Accumulator(
            AccumulatorLimits(batch_bytes_max=400, linger_ms=0, delivery_timeout_ms=timeout_ms),
            is_transactional=in_transactions,
        )
        self.accumulator.producer_id, self.accumulator.producer_epoch = 7, epoch
        self.queue = PartitionQueue("t", 0, is_transactional=in_transactions)
        self.leader = Leader(bytes_max=bytes_max)
        self.requests: list[Sent] = []
        self.responses: list[tuple[Sent, int]] = []
        self.appended: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.errors: list[OdradekError] = []
        self.now_ms = 1_000

    def append(self) -> None:
        """Append a record, and in most cases seal its batch."""
        value = b"%d" % len(self.appended)
        batch = self.accumulator.append(self.queue, None, value, None, self.now_ms, self.now_ms)
        assert batch is not None
        self.appended.append(value)
        batch.on_done(lambda: self.note(value, batch.error))
        if self.random.random() < 0.7:
            self.queue.seal()

    def note(self, value: bytes, error: OdradekError | None) -> None:
        if error is None:
            self.acknowledged.append(value)
        else:
            self.errors.append(error)

    def send(self) -> None:
        for batch in self.accumulator.drain([self.queue], self.now_ms, is_idle=True):
            values = [
                bytes(record.value or b"")
                for record in decode_batch(batch.encode(Compression.NONE, None))
            ]
            self.requests.append(
                Sent(
                    batch, batch.attempt, batch.producer_id, batch.producer_epoch,
                    batch.base_sequence, batch.size_bytes, values,
                )
            )  # fmt: skip

    def get_id(self) -> None:
        """Get a new producer id if the epochs of the old one are used up."""
        accumulator = self.accumulator
        if self.queue.is_epoch_used_up and self.queue.producer_id == accumulator.producer_id:
            accumulator.producer_id, accumulator.producer_epoch = accumulator.producer_id + 1, 0

    def receive(self) -> None:
        """Let the leader handle its next request."""
        if not self.requests:
            return
        sent, chance = self.requests.pop(0), self.random.random()
        if chance < 0.2:
            self.responses.append((sent, self.random.choice(UNWRITTEN)))
            return
        code = self.leader.write(sent)
        if code == E.NONE and chance < 0.4:
            code = self.random.choice(WRITTEN)
        self.responses.append((sent, code))

    def respond(self) -> None:
        if self.responses:
            sent, code = self.responses.pop(self.random.randrange(len(self.responses)))
            self.run(
                self.accumulator.responded(
                    sent.batch, sent.attempt, code, "", base_offset=0, log_append_time_ms=-1,
                    now_ms=self.now_ms, draw=0.5,
                )
            )  # fmt: skip

    def disconnect(self) -> None:
        """Lose the requests that the leader has not read, and all responses."""
        lost = [*self.requests, *(sent for sent, _ in self.responses)]
        self.requests, self.responses = [], []
        for sent in lost:
            self.accumulator.lost(
                sent.batch, sent.attempt, BrokerUnreachable("127.0.0.1:1", "gone"), self.now_ms, 0.5
            )

    def change_leader(self) -> None:
        """Lose the requests that the old leader has not read. The new leader has all records of the old one."""
        self.requests = []
        self.accumulator.leader_changed(self.queue)

    def forget(self) -> None:
        """Let the leader forget the producer. A leader does so only long after the last response."""
        sent = [*self.queue.in_flight, *(batch for batch in self.queue.waiting if batch.attempt)]
        if not self.requests and not self.responses and not sent:
            self.leader.forget()

    def wait(self) -> None:
        """Let all backoffs end, and batches expire whose delivery timeout is over."""
        self.now_ms += 2_000
        self.run(self.accumulator.expire(self.now_ms))

    @staticmethod
    def run(callbacks: Iterable[Callable[[], object]]) -> None:
        for callback in callbacks:
            callback()


def run(
    seed: int,
    *,
    bytes_max: int = 1 << 20,
    timeout_ms: int = 1 << 40,
    epoch: int = 0,
    forgets: bool = False,
) -> World:
    """Run a random schedule, and then send, handle and answer requests until all batches are done."""
    random = Random(seed)
    world = World(random, bytes_max, timeout_ms, epoch)
    moves = (
        world.append, world.send, world.receive, world.respond, world.wait, world.disconnect, world.change_leader,
        world.forget, world.get_id,
    )  # fmt: skip
    for _ in range(STEPS):
        random.choices(moves, (8, 12, 12, 12, 3, 0.5, 0.5, 4 * forgets, 1))[0]()
    settle(world)
    assert world.queue.is_empty, seed
    assert not [error for error in world.errors if isinstance(error, SequenceLost)], seed
    return world


def settle(world: World) -> None:
    for _ in range(SETTLE_STEPS):
        world.wait()
        world.get_id()
        world.send()
        world.receive()
        world.respond()


@given(st.integers(0, 1 << 32), st.sampled_from([1 << 20, 150]))
@settings(max_examples=200, deadline=None)
def test_each_record_is_written_once_whatever_is_refused_split_or_answered_late(
    seed: int, bytes_max: int
) -> None:
    world = run(seed, bytes_max=bytes_max)
    assert not world.errors
    assert world.leader.values == world.appended
    assert sorted(world.acknowledged, key=int) == world.appended


@given(st.integers(0, 1 << 32), st.sampled_from([1 << 20, 150]))
@settings(max_examples=200, deadline=None)
def test_records_that_time_out_may_be_written_and_no_other_one_is_lost_or_written_twice(
    seed: int, bytes_max: int
) -> None:
    world = run(seed, bytes_max=bytes_max, timeout_ms=9_000)
    written = [int(value) for value in world.leader.values]
    assert written == sorted(set(written))
    assert set(world.acknowledged) <= set(world.leader.values)
    assert len(world.acknowledged) + len(world.errors) == len(world.appended)


@given(st.integers(0, 1 << 32), st.sampled_from([1 << 20, 150]))
@settings(max_examples=200, deadline=None)
def test_a_producer_that_is_unknown_or_has_no_epoch_left_writes_each_record_once(
    seed: int, bytes_max: int
) -> None:
    """After UNKNOWN_PRODUCER_ID the producer takes its next epoch, or a new producer id after the last epoch."""
    world = run(seed, bytes_max=bytes_max, epoch=PRODUCER_EPOCH_MAX - 1, forgets=True)
    assert not world.errors
    assert world.leader.values == world.appended
    assert sorted(world.acknowledged, key=int) == world.appended


@given(st.integers(0, 1 << 32), st.sampled_from([1 << 20, 150]))
@settings(max_examples=200, deadline=None)
def test_records_that_time_out_around_a_new_producer_id_are_not_written_twice(
    seed: int, bytes_max: int
) -> None:
    world = run(
        seed, bytes_max=bytes_max, timeout_ms=9_000, epoch=PRODUCER_EPOCH_MAX - 1, forgets=True
    )
    written = [int(value) for value in world.leader.values]
    assert written == sorted(set(written))
    assert set(world.acknowledged) <= set(world.leader.values)
    assert len(world.acknowledged) + len(world.errors) == len(world.appended)


@given(st.integers(0, 1 << 32), st.sampled_from([1 << 20, 150]), st.sampled_from([1 << 40, 9_000]))
@settings(max_examples=300, deadline=None)
def test_an_abort_leaves_no_record_to_the_next_transaction_and_a_commit_has_all(
    seed: int, bytes_max: int, timeout_ms: int
) -> None:
    """Requests and responses of an aborted transaction arrive during later transactions. After the last epoch, the
    coordinator gives the producer a new id.
    """
    random = Random(seed)
    world = World(random, bytes_max, timeout_ms, PRODUCER_EPOCH_MAX - 3, in_transactions=True)
    accumulator, queue = world.accumulator, world.queue
    ids = {"producer": 7, "epoch": PRODUCER_EPOCH_MAX - 3, "first": 0}
    queue.begin_transaction(ids["producer"], ids["epoch"])
    committed: list[bytes] = []

    def end(*, is_commit: bool) -> None:
        if is_commit:
            committed.extend(world.appended[ids["first"] :])
        world.leader.mark(ids["producer"], ids["epoch"], is_commit=is_commit)
        ids["epoch"] += 1
        if ids["epoch"] >= PRODUCER_EPOCH_MAX:
            ids["producer"], ids["epoch"] = ids["producer"] + 1, 0
        ids["first"] = len(world.appended)
        accumulator.begin_transaction(ids["producer"], ids["epoch"])
        queue.begin_transaction(ids["producer"], ids["epoch"])

    def commit() -> None:
        if queue.is_empty and accumulator.transaction_error is None:
            end(is_commit=True)

    def abort() -> None:
        world.run(accumulator.fail_all(lambda _: TransactionAborted("the program aborted it")))
        end(is_commit=False)

    moves = (
        world.append, world.send, world.receive, world.respond, world.wait, world.disconnect, world.change_leader,
        commit, abort,
    )  # fmt: skip
    for _ in range(2 * STEPS):
        random.choices(moves, (8, 12, 12, 12, 3, 0.5, 0.5, 2, 1))[0]()
    settle(world)
    assert queue.is_empty
    commit()
    assert world.leader.committed == committed
    if timeout_ms > 9_000:
        assert not [e for e in world.errors if not isinstance(e, TransactionAborted)], world.errors
