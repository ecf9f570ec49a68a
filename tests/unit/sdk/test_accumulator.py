"""The producer's accumulator: when batches are sent, in which order, and with which sequence numbers."""

from __future__ import annotations

import pytest

from odradek.errors import (
    BrokerUnreachable,
    DeliveryTimedOut,
    NotEnoughReplicas,
    RecordTooLarge,
    SequenceLost,
)
from odradek.producer.accumulator import Accumulator, AccumulatorLimits
from odradek.producer.delivery import DeliveryFuture
from odradek.producer.partition_queue import (
    BATCH_BYTES_MIN,
    IDLE_MS_MAX,
    PRODUCER_EPOCH_MAX,
    PartitionQueue,
    ProducerBatch,
)
from odradek.producer.partitioner import TopicQueues
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_header import Compression, read_header

E = ErrorCode


class Bench:
    """A test bench: one accumulator with one queue, whose leader knows the producer, and a
    clock.
    """

    def __init__(self, **limits: int) -> None:
        defaults = {"batch_bytes_max": 400, "linger_ms": 10, "delivery_timeout_ms": 1_000}
        self.accumulator = Accumulator(AccumulatorLimits(**{**defaults, **limits}))
        self.accumulator.producer_id, self.accumulator.producer_epoch = 7, 0
        self.queue = PartitionQueue("t", 0)
        self.queue.producer_id, self.queue.producer_epoch = 7, 0
        self.queue.is_remembered = True
        self.now_ms = 1_000

    def append(self, count: int = 1, size: int = 10) -> ProducerBatch:
        for _ in range(count):
            batch = self.accumulator.append(
                self.queue, None, b"x" * size, None, self.now_ms, self.now_ms
            )
            assert batch is not None, "the buffer is full"
        return batch

    def batches(self, count: int) -> None:
        """Make this many sealed batches of one record each."""
        for _ in range(count):
            self.append()
            self.queue.seal()

    def drain(self, *, is_idle: bool = True) -> list[ProducerBatch]:
        return self.accumulator.drain([self.queue], self.now_ms, is_idle=is_idle)

    def drain_all(self) -> list[ProducerBatch]:
        sent: list[ProducerBatch] = []
        while batches := self.drain():
            sent += batches
        return sent

    def answer(self, batch: ProducerBatch, code: ErrorCode = E.NONE, offset: int = 0) -> None:
        self.accumulator.responded(
            batch, batch.attempt, code, "", base_offset=offset, log_append_time_ms=-1,
            now_ms=self.now_ms, draw=0.0,
        )  # fmt: skip

    def retry_all(self) -> list[ProducerBatch]:
        """Acknowledge each batch that is sent, until none is; a retried batch must be sent alone."""
        retried: list[ProducerBatch] = []
        while batches := self.drain_all():
            assert len(batches) == 1, "nothing may be sent behind a retried batch"
            self.answer(batches[0])
            retried += batches
        return retried

    def lose(self, batch: ProducerBatch) -> None:
        self.accumulator.lost(
            batch, batch.attempt, BrokerUnreachable("b:1", "gone"), self.now_ms, 0.0
        )


def sequences(batches: list[ProducerBatch]) -> list[tuple[int, int]]:
    return [(b.producer_epoch, b.base_sequence) for b in batches]


# --- when ---------------------------------------------------------------------------------------------


def test_a_lone_record_leaves_at_once_when_the_broker_is_idle() -> None:
    bench = Bench()
    batch = bench.append()
    assert bench.drain(is_idle=True) == [batch]


def test_under_load_records_gather_until_they_linger_too_long() -> None:
    bench = Bench()
    batch = bench.append()
    assert bench.drain(is_idle=False) == []
    assert bench.accumulator.wake_ms(bench.now_ms) == bench.now_ms + 10
    bench.now_ms += 10
    assert bench.drain(is_idle=False) == [batch]


def test_a_full_batch_leaves_under_load_and_the_rest_stays() -> None:
    bench = Bench()
    first = bench.append()
    while (last := bench.append()) is first:
        pass
    assert bench.drain(is_idle=False) == [first]
    assert bench.drain(is_idle=False) == []
    assert bench.queue.open_batch is last


def test_a_flush_releases_what_is_there_but_not_what_comes() -> None:
    bench = Bench()
    batch = bench.append()
    bench.accumulator.release_all(bench.now_ms)
    bench.now_ms += 1
    assert bench.drain(is_idle=False) == [batch]
    bench.append()
    assert bench.drain(is_idle=False) == []


def test_at_most_five_batches_of_a_partition_are_in_flight() -> None:
    bench = Bench()
    bench.batches(8)
    assert len(bench.drain_all()) == 5
    bench.answer(bench.queue.in_flight[0])
    assert len(bench.drain_all()) == 1


def test_a_request_holds_one_batch_a_partition_and_no_more_bytes_than_allowed() -> None:
    bench = Bench(request_bytes_max=700, batch_bytes_max=400)
    others = [PartitionQueue("t", index) for index in (1, 2)]
    queues = [bench.queue, *others]
    for queue in queues:
        bench.accumulator.append(queue, None, b"x" * 300, None, 0, bench.now_ms)
    sent = bench.accumulator.drain(queues, bench.now_ms, is_idle=True)
    assert [b.queue for b in sent] == [bench.queue], "two would have more than 700 bytes"
    bench.accumulator.rotate([bench.queue])
    assert list(bench.accumulator.pending)[-1] is bench.queue, "it goes behind those that wait"


def test_nothing_is_sent_before_there_is_a_producer_id() -> None:
    bench = Bench()
    bench.accumulator.producer_id = -1
    batch = bench.append()
    assert bench.drain() == []
    bench.accumulator.producer_id = 9
    assert bench.drain() == [batch]
    assert batch.producer_id == 9


# --- bounds -------------------------------------------------------------------------------------------


def test_a_full_buffer_refuses_releases_what_it_has_and_takes_again() -> None:
    bench = Bench(buffer_bytes_max=200)
    batch = bench.append(size=150)
    queue, now_ms = bench.queue, bench.now_ms
    assert bench.accumulator.append(queue, None, b"x", None, 0, now_ms) is None
    assert bench.drain(is_idle=False) == [batch], "pressure releases what lingers"
    bench.answer(batch)
    assert bench.accumulator.buffered_bytes == 0
    assert bench.accumulator.append(queue, None, b"x", None, 0, now_ms) is not None


def test_a_record_that_fits_no_request_is_refused_and_leaves_nothing_behind() -> None:
    bench = Bench(request_bytes_max=500)
    with pytest.raises(RecordTooLarge, match="t-0"):
        bench.append(size=600)
    assert bench.accumulator.buffered_bytes == 0
    assert bench.accumulator.pending_count == 0
    assert list(bench.accumulator.pending) == []


@pytest.mark.parametrize("stage", ["open", "waiting", "in flight"])
def test_every_batch_ends_when_its_time_is_up_wherever_it_is(stage: str) -> None:
    bench = Bench()
    batch = bench.append()
    if stage == "waiting":
        bench.queue.seal()
    if stage == "in flight":
        bench.drain()
    bench.now_ms += 999
    bench.accumulator.expire(bench.now_ms)
    assert not batch.is_done
    bench.now_ms += 1
    bench.accumulator.expire(bench.now_ms)
    assert isinstance(batch.error, DeliveryTimedOut)
    assert ("never sent" in str(batch.error)) == (stage != "in flight")
    assert bench.accumulator.buffered_bytes == 0


# --- order and numbers --------------------------------------------------------------------------------


def test_a_leader_that_does_not_know_the_producer_yet_gets_one_batch_at_a_time() -> None:
    bench = Bench()
    bench.accumulator.producer_id = 8
    bench.batches(3)
    (first,) = bench.drain_all()
    bench.answer(first, E.NOT_ENOUGH_REPLICAS)
    bench.now_ms += 2_000
    assert bench.drain_all() == [first]
    bench.answer(first)
    assert len(bench.drain_all()) == 2


def test_numbers_count_records_and_survive_a_retry() -> None:
    bench = Bench()
    for count in (3, 1, 2):
        bench.append(count)
        bench.queue.seal()
    sent = bench.drain_all()
    assert sequences(sent) == [(0, 0), (0, 3), (0, 4)]
    before = [b.encode(Compression.NONE, None) for b in sent]
    for batch in sent:
        bench.lose(batch)
    bench.now_ms += 2_000
    again: list[bytes] = []
    for batch in sent:
        assert bench.drain_all() == [batch]
        again.append(batch.encode(Compression.NONE, None))
        bench.answer(batch)
    assert again == before
    header = read_header(before[1])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, 3)


def test_after_a_failure_nothing_new_overtakes_and_all_go_again_in_order() -> None:
    bench = Bench()
    bench.batches(4)
    first, second, third, fourth = bench.drain_all()
    bench.batches(1)
    bench.answer(second, E.NOT_ENOUGH_REPLICAS)
    bench.now_ms += 2_000
    assert bench.drain() == [], "the others are undecided still"
    bench.answer(first)
    bench.answer(third, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    bench.answer(fourth, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    bench.now_ms += 2_000
    again = bench.retry_all()
    assert again[:3] == [second, third, fourth]
    assert sequences(again) == [(0, 1), (0, 2), (0, 3), (0, 4)]


def test_after_a_long_pause_one_batch_is_sent_at_a_time_until_the_first_is_written() -> None:
    """The leader may have forgotten the producer. If it then refused the first of several batches and took the second,
    the retry of the first would look like records that the log has lost.
    """
    bench = Bench()
    bench.batches(2)
    for batch in bench.drain_all():
        bench.answer(batch)
    bench.now_ms += IDLE_MS_MAX + 1
    bench.batches(3)
    (first,) = bench.drain_all()
    bench.answer(first, E.NOT_ENOUGH_REPLICAS)
    assert bench.drain_all() == []
    bench.now_ms += 1_000
    assert bench.drain_all() == [first]
    bench.answer(first)
    assert len(bench.drain_all()) == 2


def test_no_new_batch_pushes_an_unacknowledged_one_out_of_the_five_that_a_leader_remembers() -> (
    None
):
    bench = Bench()
    bench.batches(7)
    sent = bench.drain_all()
    assert len(sent) == 5
    for batch in sent[1:]:
        bench.answer(batch)
    assert bench.drain_all() == [], "the first is not acknowledged, and a sixth would be remembered"
    bench.answer(sent[0], E.REQUEST_TIMED_OUT)
    bench.now_ms += 2_000
    assert bench.drain_all() == [sent[0]], "a sixth could be written while the first is refused"
    bench.answer(sent[0])
    assert len(bench.drain_all()) == 2


def test_an_answer_to_an_earlier_attempt_decides_nothing() -> None:
    bench = Bench()
    batch = bench.append()
    bench.drain()
    bench.lose(batch)
    bench.now_ms += 2_000
    bench.drain()
    bench.accumulator.responded(
        batch, 1, E.MESSAGE_TOO_LARGE, "", base_offset=-1, log_append_time_ms=-1,
        now_ms=bench.now_ms, draw=0.0,
    )  # fmt: skip
    assert not batch.is_done
    bench.answer(batch, offset=42)
    assert (batch.is_done, batch.error, batch.base_offset) == (True, None, 42)


def test_a_new_leader_is_tried_at_once_with_the_same_numbers() -> None:
    bench = Bench()
    bench.batches(3)
    sent = bench.drain_all()
    bench.accumulator.leader_changed(bench.queue)
    assert bench.retry_all() == sent, "in order, without waiting for the old leader"
    assert sequences(sent) == [(0, 0), (0, 1), (0, 2)]


def test_without_idempotence_the_old_leaders_answers_are_awaited() -> None:
    bench = Bench()
    bench.accumulator.is_idempotent = False
    bench.batches(2)
    bench.drain_all()
    bench.accumulator.leader_changed(bench.queue)
    assert bench.drain_all() == []


def test_a_batch_too_large_for_its_topic_goes_on_as_halves_in_order() -> None:
    bench = Bench(batch_bytes_max=4_000)
    whole = bench.append(5, size=100)
    bench.queue.seal()
    later = bench.append(2)
    bench.queue.seal()
    futures = [DeliveryFuture(whole, index) for index in range(5)]
    told: list[str] = []
    futures[0].add_done_callback(lambda _: told.append("done"))
    assert bench.drain_all() == [whole, later]
    bench.answer(whole, E.MESSAGE_TOO_LARGE)
    assert bench.drain_all() == [], "what is in flight is decided first"
    bench.answer(later, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    bench.now_ms += 2_000
    first, second = bench.drain_all()
    assert [b.record_count for b in (first, second)] == [2, 3]
    assert sequences([first, second, later]) == [(0, 0), (0, 2), (0, 5)]
    bench.answer(first, offset=10)
    assert not whole.is_done
    assert bench.accumulator.pending_count == 2
    bench.answer(second, E.MESSAGE_TOO_LARGE)
    bench.now_ms += 2_000
    third, fourth = bench.drain_all()
    assert sequences([third, fourth, later]) == [(0, 2), (0, 3), (0, 5)]
    bench.answer(third, E.MESSAGE_TOO_LARGE)  # a single record: no way to make it smaller
    bench.answer(fourth, offset=12)
    assert told == []
    assert whole.is_done
    assert [f.result().offset for f in (*futures[:2], *futures[3:])] == [10, 11, 12, 13]
    assert isinstance(futures[2].exception(), RecordTooLarge)
    assert bench.drain_all() == [later]
    bench.answer(later, offset=14)
    assert bench.accumulator.pending_count == 0
    assert bench.accumulator.buffered_bytes == 0
    assert bench.queue.is_empty
    batch = bench.append(30, size=100)
    assert batch.size_bytes <= BATCH_BYTES_MIN, "the next ones are made smaller"


def test_a_hole_in_the_sequence_is_closed_by_numbering_anew() -> None:
    bench = Bench()
    bench.batches(3)
    first, second, third = bench.drain_all()
    bench.answer(first, E.MESSAGE_TOO_LARGE)
    assert first.error is not None
    bench.answer(second, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    bench.answer(third, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    bench.now_ms += 2_000
    assert bench.drain_all() == [second], "alone, until the leader knows the epoch"
    bench.answer(second)
    assert bench.drain_all() == [third]
    assert sequences([second, third]) == [(1, 0), (1, 1)], "from 0 under the next epoch"
    bench.answer(third)
    assert (second.error, third.error) == (None, None)


def test_a_gap_that_the_producer_did_not_make_is_lost_data_and_said_so_once() -> None:
    bench = Bench()
    bench.batches(1)
    bench.answer(bench.drain_all()[0])
    bench.batches(3)
    second, third, fourth = bench.drain_all()
    bench.answer(second, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert isinstance(second.error, SequenceLost)
    bench.answer(third, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    bench.answer(fourth, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    bench.now_ms += 2_000
    assert sequences(bench.drain_all()) == [(1, 0)]
    bench.answer(third)
    assert sequences(bench.drain_all()) == [(1, 1)]


def test_a_retried_batch_expires_in_time_while_a_newer_one_is_in_flight() -> None:
    bench = Bench()
    bench.batches(1)
    bench.now_ms += 600
    bench.batches(1)
    old, new = bench.drain_all()
    bench.answer(old, E.NOT_ENOUGH_REPLICAS)
    bench.now_ms += 400
    assert bench.drain_all() == [], "the response to the newer batch is awaited"
    bench.accumulator.expire(bench.now_ms)
    assert (old.is_done, new.is_done) == (True, False)
    assert isinstance(old.error, DeliveryTimedOut)
    bench.answer(new, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    bench.now_ms += 100
    assert sequences(bench.retry_all()) == [(1, 0)], "the gap is closed with another epoch"


def test_an_expired_batch_that_was_written_after_all_makes_no_hole() -> None:
    bench = Bench()
    bench.append()
    bench.drain()
    bench.now_ms += 999
    bench.append()
    bench.queue.seal()
    (late,) = bench.drain_all()
    bench.now_ms += 1
    bench.accumulator.expire(bench.now_ms)
    bench.answer(late)
    assert bench.queue.gap_number == -1
    bench.batches(1)
    assert sequences(bench.drain_all()) == [(0, 2)]


def test_a_used_up_epoch_waits_for_a_new_producer_id() -> None:
    bench = Bench()
    bench.batches(1)
    (batch,) = bench.drain_all()
    bench.queue.producer_epoch = PRODUCER_EPOCH_MAX
    bench.answer(batch, E.UNKNOWN_PRODUCER_ID)
    bench.now_ms += 2_000
    assert bench.queue.is_epoch_used_up
    assert bench.drain_all() == []
    bench.accumulator.producer_id = 8
    bench.queue.producer_epoch = PRODUCER_EPOCH_MAX
    assert bench.drain_all() == [batch]
    assert (batch.producer_id, batch.base_sequence) == (8, 0)


def test_a_new_producer_id_is_not_taken_over_while_an_old_number_may_have_been_written() -> None:
    bench = Bench()
    bench.batches(1)
    (batch,) = bench.drain_all()
    bench.lose(batch)
    bench.accumulator.producer_id = 8
    bench.now_ms += 2_000
    assert bench.drain_all() == [batch]
    assert batch.producer_id == 7


def test_an_error_that_will_not_pass_fails_the_batch_with_its_cause() -> None:
    bench = Bench()
    batch = bench.append()
    bench.drain()
    bench.answer(batch, E.TOPIC_AUTHORIZATION_FAILED)
    assert batch.error is not None
    assert batch.error.code is E.TOPIC_AUTHORIZATION_FAILED


def test_a_time_out_tells_why_the_last_attempt_failed() -> None:
    bench = Bench()
    batch = bench.append()
    bench.drain()
    bench.answer(batch, E.NOT_ENOUGH_REPLICAS)
    assert isinstance(batch.last_error, NotEnoughReplicas)
    bench.now_ms += 1_000
    bench.accumulator.expire(bench.now_ms)
    assert "min.insync.replicas" in str(batch.error)


# --- partitioning -------------------------------------------------------------------------------------


def test_keys_go_where_kafkas_default_partitioner_sends_them() -> None:
    topic_queues = TopicQueues("t", [PartitionQueue("t", index) for index in range(10)])
    # murmur2 of Kafka's own UtilsTest: "21" -> -973932308, "foobar" -> -790332482, "a-..." -> -1486304829
    for key, hashed in ((b"21", -973932308), (b"foobar", -790332482)):
        assert topic_queues.of_key(key).partition == (hashed & 0x7FFFFFFF) % 10


def test_turns_without_a_key_are_even_and_skip_partitions_without_a_leader() -> None:
    topic_queues = TopicQueues("t", [PartitionQueue("t", index) for index in range(4)])
    assert [topic_queues.next_sticky().partition for _ in range(8)] == [1, 2, 3, 0, 1, 2, 3, 0]
    topic_queues.set_available([0, 2])
    assert {topic_queues.next_sticky().partition for _ in range(4)} == {0, 2}
    topic_queues.set_available([])
    assert len({topic_queues.next_sticky().partition for _ in range(8)}) == 4


def test_a_partitioner_of_ones_own_is_held_to_the_partitions_that_exist() -> None:
    topic_queues = TopicQueues("t", [PartitionQueue("t", 0)], partitioner=lambda key, count: count)
    with pytest.raises(ValueError, match="chose partition 1"):
        topic_queues.of_key(b"k")
