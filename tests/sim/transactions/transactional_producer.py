"""A transactional producer, and what it was told: a client machine that lives again and again with one id.

It waits for each response, gives a connection up when none comes, and repeats its request over another one. Half of the
producers use one epoch for each transaction (transaction.version 2), the others one for all.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from odradek_broker.coordination.placement import absolute_java_hash
from odradek_broker.partition.events import RegistrationMode
from odradek_broker.transactions.identity import ProducerIdentity
from odradek_broker.transactions.messages import (
    Added,
    AddPartitions,
    Ended,
    EndTransaction,
    Initialized,
    InitProducer,
)
from odradek_broker.transactions.transaction import TransactionalId, TransactionPartition
from odradek_protocol.identity import TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records import encode_batch
from odradek_protocol.records.codec import Record
from odradek_protocol.topic_names import TRANSACTIONS_TOPIC
from tests.sim.cluster import Cluster
from tests.sim.machine import WALL_BEGINS_MS
from tests.sim.network import Stream
from tests.sim.scheduler import MS, SECOND, Process
from tests.sim.simulated_loop import SimulatedLoop
from tests.sim.transactions import transaction_shell
from tests.sim.transactions.transaction_shell import (
    ProduceTransactional,
    TransactionAnswer,
    TransactionCall,
)

ATTEMPT_S: Final = 1.5
TIMEOUT_MS: Final = 6_000
DATA_TOPIC: Final = "money"
_FATAL: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)


class Fate(Enum):
    """What the client knows of a transaction."""

    OPEN = "open"  # its end was never asked for
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # a commit was asked for, and nobody said what became of it


@dataclass(slots=True)
class Attempted:
    """One transaction: the values that it wrote, by partition."""

    values: dict[TopicIdPartition, list[int]] = field(default_factory=lambda: defaultdict(list))
    fate: Fate = Fate.OPEN


class Fatal(Exception):
    """The producer cannot go on with its identity."""


class Abortable(Exception):
    """The transaction must be aborted."""


class TransactionalProducer:
    """One transactional id, written by one process after the other."""

    def __init__(
        self,
        cluster: Cluster,
        client_id: int,
        values: itertools.count[int],
        history: list[Attempted],
        *,
        is_tv2: bool,
    ) -> None:
        self.cluster = cluster
        self.scheduler = cluster.scheduler
        self.client_id = client_id
        self.transactional_id = TransactionalId(f"tx-{client_id}")
        self.is_tv2 = is_tv2
        self.is_stopped = False
        self._values = values
        self._history = history
        self._call_ids = itertools.count(1)
        self._identity: ProducerIdentity | None = None
        self._sequences: dict[TopicIdPartition, int] = defaultdict(int)
        self._streams: dict[int, Stream] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self.process: Process | None = None
        self._loop: SimulatedLoop | None = None

    def start(self) -> None:
        """Begin a life without any memory."""
        self.process = Process(self.scheduler, self.client_id)
        self._loop = SimulatedLoop.of(self.process)
        self._streams, self._calls = {}, {}
        self._identity = None
        self._loop.spawn(self._run())

    def die(self) -> None:
        """kill -9 of the client."""
        assert self.process is not None
        assert self._loop is not None
        self.process.kill()
        self.cluster.network.process_ended(self.process)
        self._loop.close()

    async def _run(self) -> None:
        while not self.is_stopped:
            try:
                if self._identity is None:
                    await self._init()
                await self._transact()
            except Fatal:
                self.scheduler.counters["producers that began again"] += 1
                self._identity = None
            await self._pause(5, 60)

    async def _init(self) -> None:
        request = InitProducer(transactional_id=self.transactional_id, timeout_ms=TIMEOUT_MS)
        while True:
            response = await self._ask(self._coordinator, request)
            if isinstance(response, Initialized) and response.error is ErrorCode.NONE:
                self._use(response.identity)
                return
            await self._pause(20, 100)

    def _use(self, identity: ProducerIdentity | None) -> None:
        assert identity is not None
        self._identity = identity
        self._sequences.clear()

    async def _transact(self) -> None:
        transaction = Attempted()
        self._history.append(transaction)
        try:
            for partition in self._choose():
                for _ in range(self.scheduler.between(1, 3)):
                    await self._write(transaction, partition)
            wants_commit = not self.scheduler.chance(0.25)
        except Abortable:
            wants_commit = False
        if self.scheduler.chance(0.03):
            await self._pause(TIMEOUT_MS - 500, TIMEOUT_MS + 2_500)
        if transaction.values:
            await self._end(transaction, is_commit=wants_commit)

    def _choose(self) -> list[TransactionPartition]:
        topic = self.cluster.log.image.topic(DATA_TOPIC)
        assert topic is not None
        partitions = [
            TransactionPartition(topic.topic_id, topic.name, state.partition)
            for state in topic.partitions
        ]
        return self.scheduler.random.sample(partitions, self.scheduler.between(1, 3))

    async def _write(self, transaction: Attempted, target: TransactionPartition) -> None:
        partition = TopicIdPartition(target.topic_id, target.partition)
        identity = self._identity
        assert identity is not None
        if not self.is_tv2 and partition not in transaction.values:
            await self._add(transaction, partition, target, identity)
        value = next(self._values)
        transaction.values[partition].append(value)
        records = encode_batch(
            [Record(b"", b"%d" % value, timestamp_ms=WALL_BEGINS_MS + self.scheduler.now_us // MS)],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=self._sequences[partition],
            transactional=True,
        )
        mode = RegistrationMode.ADD if self.is_tv2 else RegistrationMode.VERIFY
        request = ProduceTransactional(partition, records, self.transactional_id, mode)
        for _ in range(12):
            response = await self._ask(lambda: self._leader(partition), request)
            if response is ErrorCode.NONE:
                self._sequences[partition] += 1
                return
            if response is ErrorCode.TRANSACTION_ABORTABLE:
                raise Abortable
            if response in _FATAL:
                raise Fatal(response)
            await self._pause(20, 150)
        raise Fatal("no response")

    async def _add(
        self,
        transaction: Attempted,
        partition: TopicIdPartition,
        target: TransactionPartition,
        identity: ProducerIdentity,
    ) -> None:
        request = AddPartitions(
            transactional_id=self.transactional_id,
            identity=identity,
            partitions=(target,),
            is_tv2=False,
        )
        while True:
            response = await self._ask(self._coordinator, request)
            if isinstance(response, Added):
                if response.error is ErrorCode.NONE:
                    transaction.values[partition] = []
                    return
                if response.error in _FATAL:
                    raise Fatal(response.error)
            await self._pause(20, 100)

    async def _end(self, transaction: Attempted, *, is_commit: bool) -> None:
        identity = self._identity
        assert identity is not None
        if is_commit:
            transaction.fate = Fate.UNKNOWN
        request = EndTransaction(
            transactional_id=self.transactional_id,
            identity=identity,
            is_commit=is_commit,
            is_tv2=self.is_tv2,
        )
        while True:
            response = await self._ask(self._coordinator, request)
            if isinstance(response, Ended):
                if response.error is ErrorCode.NONE:
                    transaction.fate = Fate.COMMITTED if is_commit else Fate.ABORTED
                    self.scheduler.counters[f"transactions {transaction.fate.value}"] += 1
                    if response.next_identity is not None and self.is_tv2:
                        self._use(response.next_identity)
                    return
                if response.error is ErrorCode.TRANSACTION_ABORTABLE or response.error in _FATAL:
                    raise Fatal(response.error)
            await self._pause(20, 100)

    # --- asking ----------------------------------------------------------------------------------

    def _leader(self, partition: TopicIdPartition) -> int:
        state = self.cluster.log.image.partition(partition.topic_id, partition.partition)
        return -1 if state is None else state.leader

    def _coordinator(self) -> int:
        topic = self.cluster.log.image.topic(TRANSACTIONS_TOPIC)
        if topic is None or not topic.partitions:
            return -1
        index = absolute_java_hash(self.transactional_id) % len(topic.partitions)
        return topic.partitions[index].leader

    async def _ask(self, find: Any, request: Any) -> Any:
        """Return the response, or an ErrorCode; NETWORK_EXCEPTION if none came."""
        assert self.process is not None
        assert self._loop is not None
        broker_id = find()
        stream = self._streams.get(broker_id)
        if stream is None or not stream.is_open_for(self.process):
            stream = self._connect(broker_id)
            if stream is None:
                return ErrorCode.NETWORK_EXCEPTION
        call_id = next(self._call_ids)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls[call_id] = future
        stream.send(self.process, TransactionCall(call_id, request))
        try:
            async with asyncio.timeout(ATTEMPT_S):
                return await future
        except TimeoutError:
            # The request may still be on its way, over a connection that was given up.
            self._streams.pop(broker_id, None)
            stream.on_closed[0] = stream.on_message[0] = None
            if self.scheduler.chance(0.5):
                stream.close(self.process)
            return ErrorCode.NETWORK_EXCEPTION
        finally:
            self._calls.pop(call_id, None)

    def _connect(self, broker_id: int) -> Stream | None:
        process, network = self.process, self.cluster.network
        assert process is not None
        node = self.cluster.brokers.get(broker_id)
        life = node.life if node is not None else None
        if (
            life is None
            or life.broker is None
            or not life.is_serving
            or not life.process.is_running
            or not network.both_ways(self.client_id, broker_id)
        ):
            return None
        stream = Stream(network, process, life.process)

        def on_message(answer: TransactionAnswer) -> None:
            future = self._calls.get(answer.call_id)
            if future is not None and not future.done():
                future.set_result(answer.response)

        def on_closed() -> None:
            self._streams.pop(broker_id, None)
            for future in self._calls.values():
                if not future.done():
                    future.set_result(ErrorCode.NETWORK_EXCEPTION)

        stream.on_message[0] = on_message
        stream.on_closed[0] = on_closed
        transaction_shell.accept(life, stream)
        self._streams[broker_id] = stream
        return stream

    async def _pause(self, low_ms: int, high_ms: int) -> None:
        await asyncio.sleep(self.scheduler.between(low_ms * MS, high_ms * MS) / SECOND)
