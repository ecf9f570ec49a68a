"""Clients that send every kind of batch that a broker accepts, and every kind that a broker must refuse."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache

from odradek_metadata_quorum.controller.requests import NewTopic
from odradek_protocol.identity import TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records import Compression, encode_batch
from odradek_protocol.records.batch_header import ATTRIBUTES_AT, CRC_AT, LENGTH_PREFIX_BYTES
from odradek_protocol.records.codec import Record
from odradek_protocol.records.hashes import crc32c
from odradek_protocol.topic_names import OFFSETS_TOPIC
from tests.sim.client_shell import ProduceCall, ProducerIdCall, Response
from tests.sim.clients import ATTEMPT_US, Connection, Hist, Producer
from tests.sim.cluster import Cluster
from tests.sim.history import Outcome, Send
from tests.sim.machine import WALL_BEGINS_MS
from tests.sim.scheduler import MS, Process

COMPACTED = NewTopic(
    name="compacted",
    partition_count=1,
    replication_factor=3,
    configs=(
        ("min.insync.replicas", "2"),
        ("durability", "fsync"),
        ("cleanup.policy", "compact"),
        ("min.cleanable.dirty.ratio", "0.01"),
    ),
)
KEYS = tuple(b"key-%d" % number for number in range(6))
LONG_KEY_CHANCE = 0.02
LONG_KEY = b"long-" + b"x" * 70_000  # so long that the broker reads the batch in a thread pool
MAGIC_AT = 16
COUNT_AT = 57
HOUR_MS = 3_600_000


class VariedProducer(Producer):
    """A Producer that compresses its batches, and gets its producer id from InitProducerId."""

    _producer_id = -1
    _id_call = -1
    _asked_in = -1  # number of the connection over which the producer id was requested

    def _encoded(self, send: Send[TopicIdPartition]) -> bytes:
        return self._batch(send, self._producer_id, 0, self._compression())

    def _compression(self) -> Compression:
        return self.scheduler.random.choice(list(Compression))

    def _send_unsent(self) -> None:
        if self._producer_id >= 0:
            super()._send_unsent()
        elif self._connection.is_open and self._asked_in != self._generation:
            self._asked_in = self._generation
            self._id_call = next(self._calls)
            self._connection.send(ProducerIdCall(call_id=self._id_call, partition=self._partition))

    def _taken(self, answer: Response) -> None:
        if answer.call_id != self._id_call:
            super()._taken(answer)
        elif answer.error_code is ErrorCode.NONE:
            self.history.producer_ids.append(answer.offset)
            self._producer_id = answer.offset
            self._send_unsent()
        else:
            self._retry_soon()

    def _give_up(self) -> None:
        """Also discard the producer id: batches with the next producer id begin with sequence number 0."""
        self._producer_id = -1
        super()._give_up()


class KeyedProducer(VariedProducer):
    """A VariedProducer whose records have keys that other producers write, too."""

    def _keys(self, count: int) -> tuple[bytes, ...]:
        if self.scheduler.chance(LONG_KEY_CHANCE):
            return (LONG_KEY,) * count
        return tuple(self.scheduler.random.choice(KEYS) for _ in range(count))

    def _compression(self) -> Compression:
        return self.scheduler.random.choice([Compression.NONE, Compression.GZIP, Compression.ZSTD])


class RuleBreaker:
    """A client whose every batch breaks a rule: the broker must refuse the batch, and nobody may read it (properties P3
    and P17).
    """

    def __init__(
        self,
        cluster: Cluster,
        history: Hist,
        client_id: int,
        partition: TopicIdPartition,
        values: itertools.count[int],
        *,
        pace_us: int,
        is_compacted: bool,
    ) -> None:
        self.cluster = cluster
        self.scheduler = cluster.scheduler
        self.history = history
        self.client_id = client_id
        self.pace_us = pace_us
        self.is_stopped = False
        self._process = Process(cluster.scheduler, client_id)
        self._connection = Connection(cluster, self._process, partition)
        self._partition = partition
        self._values = values
        self._sends: dict[int, Send[TopicIdPartition]] = {}
        self._kinds = [*KINDS, _without_key] if is_compacted else KINDS
        self._opened_us = 0
        self._process.after(self.scheduler.between(0, pace_us), self._act)

    def _act(self) -> None:
        if self.is_stopped:
            return
        connection, now_us = self._connection, self.scheduler.now_us
        if not connection.is_open or now_us - self._opened_us > ATTEMPT_US:
            self._opened_us = now_us
            connection.refresh()
            connection.open(connection.leader, self._taken, connection.close)
        if connection.is_open:
            self._send(next(self._values))
        delay_us = self.scheduler.between(self.pace_us // 4, self.pace_us * 2)
        self._process.after(delay_us, self._act)

    def _send(self, value: int) -> None:
        partition, acks = self._partition, -1
        now_ms = WALL_BEGINS_MS + self.scheduler.now_us // MS
        records = self.scheduler.random.choice(self._kinds)(value, now_ms)
        if not records:  # an empty result means a valid batch in an invalid request
            records = _batch(value, now_ms)
            internal = self._internal_partition()
            if internal is not None and self.scheduler.chance(0.5):
                partition = internal
            else:
                acks = 7
        self._sends[value] = send = Send(
            client=self.client_id,
            partition=partition,
            values=(value,),
            producer_epoch=0,
            base_sequence=value,
            acks=acks,
            outcome=Outcome.FAIL,
            is_invalid=True,
        )
        self.history.sends.append(send)
        self._connection.send(
            ProduceCall(
                call_id=value, partition=partition, records=records, acks=acks, timeout_ms=1_000
            )
        )

    def _internal_partition(self) -> TopicIdPartition | None:
        topic = self.cluster.log.image.topic(OFFSETS_TOPIC)
        if topic is None:
            return None
        return TopicIdPartition(topic.topic_id, topic.partitions[0].partition)

    def _taken(self, answer: Response) -> None:
        send = self._sends.pop(answer.call_id)
        if answer.error_code is ErrorCode.NONE:
            send.outcome, send.offset = Outcome.OK, answer.offset
        self.scheduler.counters["batches refused"] += answer.error_code in REFUSALS


REFUSALS = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
Kind = Callable[[int, int], bytes]


def _batch(value: int, now_ms: int, key: bytes | None = b"key-0") -> bytes:
    return encode_batch([Record(key, b"%d" % value, timestamp_ms=now_ms)])


def _idempotent(value: int, now_ms: int) -> bytes:
    record = Record(b"key-0", b"%d" % value, timestamp_ms=now_ms)
    return encode_batch([record], producer_id=1 << 40, producer_epoch=0, base_sequence=0)


def _changed(batch: bytes, position: int, byte: int) -> bytes:
    """Return the batch with one byte replaced, and with the matching CRC."""
    changed = bytearray(batch)
    changed[position] = byte
    crc = crc32c(memoryview(changed)[ATTRIBUTES_AT:])
    changed[CRC_AT : CRC_AT + 4] = crc.to_bytes(4, "big")
    return bytes(changed)


def _without_key(value: int, now_ms: int) -> bytes:
    return _batch(value, now_ms, key=None)


def _of_a_transaction(value: int, now_ms: int) -> bytes:
    record = Record(b"key-0", b"%d" % value, timestamp_ms=now_ms)
    return encode_batch(
        [record], producer_id=1 << 40, producer_epoch=0, base_sequence=0, transactional=True
    )


def _without_sequence(value: int, now_ms: int) -> bytes:
    record = Record(b"key-0", b"%d" % value, timestamp_ms=now_ms)
    return encode_batch([record], producer_id=1 << 40, producer_epoch=0, base_sequence=-1)


@lru_cache(maxsize=1)
def _huge() -> bytes:
    """Return a batch so large that the broker checks it in a thread pool."""
    size = 5 << 20
    batch = bytearray(size)
    batch[: len(_batch(0, 0))] = _batch(0, 0)
    batch[8:12] = (size - LENGTH_PREFIX_BYTES).to_bytes(4, "big")
    return bytes(batch)


KINDS: list[Kind] = [
    lambda value, now_ms: _batch(value, now_ms)[:-1] + b"\xff",
    lambda value, now_ms: _batch(value, now_ms)[:-3],
    lambda value, now_ms: _batch(value, now_ms)[:30],
    lambda value, now_ms: _batch(value, now_ms) + bytes(9),
    lambda value, now_ms: _changed(_batch(value, now_ms), MAGIC_AT, 1),
    lambda value, now_ms: _changed(_batch(value, now_ms), ATTRIBUTES_AT + 1, 7),
    lambda value, now_ms: _changed(_batch(value, now_ms), ATTRIBUTES_AT + 1, 32),
    lambda value, now_ms: _changed(_batch(value, now_ms), COUNT_AT + 3, 9),
    lambda value, now_ms: _batch(value, now_ms + 3 * HOUR_MS),
    lambda value, now_ms: _idempotent(value, now_ms) + _idempotent(value, now_ms),
    lambda value, now_ms: b"",
    lambda value, now_ms: _huge(),
    _of_a_transaction,
    _without_sequence,
]
