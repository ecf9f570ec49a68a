"""Simulated clients: idempotent producers with several batches in flight, and consumers."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import Any

from odradek_protocol.identity import TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records import Compression, encode_batch
from odradek_protocol.records.codec import Record
from tests.sim.client_shell import Call, FetchCall, LatestCall, ProduceCall, Response
from tests.sim.cluster import Cluster
from tests.sim.history import History, Latest, Outcome, Poll, Send
from tests.sim.machine import WALL_BEGINS_MS
from tests.sim.network import Stream
from tests.sim.scheduler import MS, SECOND, Process

ATTEMPT_US = 1_500 * MS
DELIVERY_US = 6 * SECOND
IN_FLIGHT_MAX = 4

Hist = History[TopicIdPartition]
_FATAL = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)


class Connection:
    """A client's connection to the broker that it assumes to be the leader of one partition."""

    def __init__(self, cluster: Cluster, process: Process, partition: TopicIdPartition) -> None:
        self.cluster = cluster
        self.process = process
        self.partition = partition
        self.leader = -1
        self.leader_epoch = -1
        self._stream: Stream | None = None

    def learn(self, answer: Response) -> None:
        """Store the leader and the leader epoch of a response, unless the epoch is older than the stored
        one (KIP-320).
        """
        if answer.leader_epoch >= self.leader_epoch:
            self.leader, self.leader_epoch = answer.leader, answer.leader_epoch

    def refresh(self) -> None:
        """Read the leader from a random broker's metadata, without sending a message."""
        lives = [
            n.life
            for n in self.cluster.brokers.values()
            if n.life is not None
            and n.life.process.is_running
            and self.cluster.network.both_ways(self.process.node_id, n.broker_id)
        ]
        if lives:
            life = self.cluster.scheduler.random.choice(lives)
            state = life.image.partition(self.partition.topic_id, self.partition.partition)
            if state is not None and state.leader_epoch >= self.leader_epoch:
                self.leader, self.leader_epoch = state.leader, state.leader_epoch

    def open(self, broker_id: int, on_response: Any, on_closed: Any) -> bool:
        """Close the connection and open a new one. Return False if the broker cannot be reached, or does not serve."""
        self.close()
        node = self.cluster.brokers.get(broker_id)
        network = self.cluster.network
        if node is None or node.life is None or not node.life.process.is_running:
            return False
        if not node.life.is_serving:
            return False
        if not network.both_ways(self.process.node_id, broker_id):
            return False
        stream = Stream(network, self.process, node.life.process)
        stream.on_message[0] = on_response
        stream.on_closed[0] = on_closed
        node.life.clients.accept(stream)
        self._stream = stream
        return True

    @property
    def is_open(self) -> bool:
        return self._stream is not None and self._stream.is_open_for(self.process)

    def send(self, call: Any) -> None:
        if self._stream is not None:
            self._stream.send(self.process, call)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.on_closed[0] = self._stream.on_message[0] = None
            self._stream.close(self.process)
            self._stream = None


@dataclass(slots=True, eq=False)
class _InFlight:
    send: Send[TopicIdPartition]
    made_at_us: int
    number: int
    unresolved: int = 0  # number of attempts that may have been appended
    is_sent: bool = False  # sent in the present connection
    call_id: int = 0


class Producer:
    """One idempotent producer of one partition."""

    def __init__(
        self,
        cluster: Cluster,
        history: Hist,
        client_id: int,
        partition: TopicIdPartition,
        values: itertools.count[int],
        *,
        acks: int,
        pace_us: int,
    ) -> None:
        self.cluster = cluster
        self.scheduler = cluster.scheduler
        self.history = history
        self.client_id = client_id
        self.acks = acks
        self.pace_us = pace_us
        self.is_stopped = False
        self.last_success_us = -1  # creation time of the newest acknowledged batch; -1: none
        self._process = Process(cluster.scheduler, client_id)
        self._connection = Connection(cluster, self._process, partition)
        self._partition = partition
        self._values = values
        self._window: deque[_InFlight] = deque()
        self._calls = itertools.count(1)
        self._epoch = 0
        self._sequence = 0
        self._made = 0
        self._attempt_until_us = 0
        self._generation = 0  # number of the connection; events of earlier connections are ignored
        self._process.after(self.scheduler.between(0, pace_us), self._produce)

    def _produce(self) -> None:
        if self.is_stopped and not self._window:
            return
        if not self.is_stopped and self._has_room():
            values = tuple(next(self._values) for _ in range(self.scheduler.between(1, 3)))
            send = Send(
                client=self.client_id,
                partition=self._partition,
                values=values,
                producer_epoch=self._epoch,
                base_sequence=self._sequence,
                acks=self.acks,
                made_ms=WALL_BEGINS_MS + self.scheduler.now_us // MS,
                keys=self._keys(len(values)),
            )
            self._sequence += len(values)
            self.history.sends.append(send)
            self._made += 1
            self._window.append(_InFlight(send, self.scheduler.now_us, self._made))
            self._send_unsent()
        self._judge_time()
        delay = self.scheduler.between(self.pace_us // 4, self.pace_us * 2)
        self._process.after(delay, self._produce)

    def _keys(self, count: int) -> tuple[bytes, ...]:
        """Return keys for `count` records. This class writes records without keys, because its topics are not
        compacted.
        """
        return ()

    @property
    def is_waiting(self) -> bool:
        """Whether a batch has no outcome yet."""
        return bool(self._window)

    def _has_room(self) -> bool:
        """Return whether another batch may be sent.

        A broker stores the last five batches of a producer, so the oldest batch without a response must be one of
        these.
        """
        return not self._window or self._made - self._window[0].number < IN_FLIGHT_MAX

    def _judge_time(self) -> None:
        if not self._window:
            return
        if self.scheduler.now_us - self._window[0].made_at_us > DELIVERY_US:
            self._give_up()
        elif not self._connection.is_open or self.scheduler.now_us > self._attempt_until_us:
            self._reconnect()

    def _reconnect(self) -> None:
        self._generation += 1
        self._connection.refresh()
        self._attempt_until_us = self.scheduler.now_us + ATTEMPT_US
        for flight in self._window:
            flight.is_sent = False
        generation = self._generation

        def on_response(answer: Response) -> None:
            if generation == self._generation:
                self._taken(answer)

        if self._connection.open(self._connection.leader, on_response, self._retry_soon):
            self._send_unsent()

    def _send_unsent(self) -> None:
        if not self._connection.is_open:
            return
        for flight in self._window:
            if flight.is_sent:
                continue
            flight.is_sent = True
            flight.unresolved += 1
            flight.call_id = next(self._calls)
            send = flight.send
            self._connection.send(
                ProduceCall(
                    call_id=flight.call_id,
                    partition=self._partition,
                    records=self._encoded(send),
                    acks=self.acks,
                    timeout_ms=1_000,
                )
            )

    def _encoded(self, send: Send[TopicIdPartition]) -> bytes:
        return self._batch(send, self.client_id, send.producer_epoch)

    def _batch(
        self,
        send: Send[TopicIdPartition],
        producer_id: int,
        producer_epoch: int,
        compression: Compression = Compression.NONE,
    ) -> bytes:
        keys = send.keys or (b"",) * len(send.values)
        return encode_batch(
            [
                Record(key, b"%d" % value, timestamp_ms=send.made_ms)
                for key, value in zip(keys, send.values, strict=True)
            ],
            base_offset=0,
            leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=send.base_sequence,
            compression=compression,
        )

    def _taken(self, answer: Response) -> None:
        flight = next((f for f in self._window if f.call_id == answer.call_id), None)
        if flight is None:
            return
        code = answer.error_code
        if code is ErrorCode.NONE:
            flight.send.outcome = Outcome.OK
            flight.send.offset = answer.offset
            self._window.remove(flight)
            self._attempt_until_us = self.scheduler.now_us + ATTEMPT_US
            self.last_success_us = max(self.last_success_us, flight.made_at_us)
            # Compaction may remove acknowledged records with keys.
            if self.acks == -1 and not flight.send.keys:
                invariants = self.cluster.invariants
                values = flight.send.values
                invariants.acknowledged(self._partition, answer.offset, values, answer.leader_epoch)
        elif code in _FATAL:
            is_out_of_order = code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            flight.send.is_refused_repeat = is_out_of_order and flight is self._window[0]
            self._give_up()
        else:
            if code is ErrorCode.NOT_ENOUGH_REPLICAS:
                flight.unresolved -= 1
            self._connection.learn(answer)
            self._retry_soon()

    def _retry_soon(self) -> None:
        self._generation += 1
        self._connection.close()
        self._attempt_until_us = self.scheduler.now_us + self.scheduler.between(20, 100) * MS

    def _give_up(self) -> None:
        """Give all batches in flight an outcome, failed or unknown, and start a new producer epoch with sequence number
        0.
        """
        for flight in self._window:
            known = flight.unresolved == 0
            flight.send.outcome = Outcome.FAIL if known else Outcome.UNKNOWN
        self._window.clear()
        self._epoch += 1
        self._sequence = 0
        self._retry_soon()


class Consumer:
    """Reads one partition from its start, mostly from the leader, and sometimes requests the end offset."""

    patience_us = ATTEMPT_US

    def __init__(
        self,
        cluster: Cluster,
        history: Hist,
        client_id: int,
        partition: TopicIdPartition,
        *,
        pace_us: int,
    ) -> None:
        self.cluster = cluster
        self.scheduler = cluster.scheduler
        self.history = history
        self.client_id = client_id
        self.pace_us = pace_us
        self.position = 0
        self.is_stopped = False
        self._process = Process(cluster.scheduler, client_id)
        self._connection = Connection(cluster, self._process, partition)
        self._partition = partition
        self._calls = itertools.count(1)
        self._waiting: tuple[int, int] | None = None  # call id, and the time of the request
        self._process.after(self.scheduler.between(0, pace_us), self._poll)

    def _poll(self) -> None:
        if self.is_stopped:
            return
        now_us = self.scheduler.now_us
        if self._waiting is not None and now_us - self._waiting[1] > self.patience_us:
            self._drop()
        if self._waiting is None:
            self._ask(now_us)
        delay = self.scheduler.between(self.pace_us // 4, self.pace_us * 2)
        self._process.after(delay, self._poll)

    def _ask(self, now_us: int) -> None:
        connection = self._connection
        if not connection.is_open:
            connection.refresh()
            target = connection.leader
            if self.scheduler.chance(0.25):
                target = self.scheduler.random.choice(sorted(self.cluster.brokers))
            if not connection.open(target, self._taken, self._drop):
                return
        call_id = next(self._calls)
        self._waiting = (call_id, now_us)
        connection.send(self._call(call_id, connection.leader_epoch))

    def _call(self, call_id: int, leader_epoch: int) -> Call:
        """Return the next request."""
        if self.scheduler.chance(0.1):
            return LatestCall(call_id=call_id, partition=self._partition, leader_epoch=leader_epoch)
        return FetchCall(
            call_id=call_id,
            partition=self._partition,
            offset=self.position,
            leader_epoch=leader_epoch,
        )

    def _taken(self, answer: Response) -> None:
        if self._waiting is None or answer.call_id != self._waiting[0]:
            return
        self._waiting = None
        self._connection.learn(answer)
        if answer.error_code is not ErrorCode.NONE:
            if answer.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                self._reset(answer.log_start)
            self._drop()
            return
        if answer.high_watermark < 0:
            self.history.latests.append(
                Latest(client=self.client_id, partition=self._partition, offset=answer.offset)
            )
            return
        self.history.polls.append(
            Poll(
                client=self.client_id,
                partition=self._partition,
                position=answer.offset,
                records=answer.records,
                high_watermark=answer.high_watermark,
            )
        )
        if answer.records:
            self.position = answer.records[-1][0] + 1
        if self.scheduler.chance(0.05):
            self._drop()

    def _reset(self, log_start: int) -> None:
        """Reset the position, as with `auto.offset.reset=earliest`.

        A position that is out of range above the log end would mean a lost record.
        """
        self.history.polls.append(
            Poll(
                client=self.client_id,
                partition=self._partition,
                position=log_start,
                records=(),
                high_watermark=log_start,
                reset_from=self.position,
            )
        )
        self.position = log_start

    def _drop(self) -> None:
        self._waiting = None
        self._connection.close()
