"""Client processes that send requests to the transaction coordinators, leaders and group coordinators of simulated
brokers.

A `Caller` sends one request at a time. If no response arrives, it drops the connection, and repeats the request over
another connection. A `ProducerProcess` is one process of a producer with a transactional id; it records its operations
and their outcomes. Half of the producers use a new epoch for each transaction (transaction.version 2), the others use
one epoch for all transactions.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from odradek_broker.coordination.placement import absolute_java_hash
from odradek_broker.groups.messages import (
    CommitInTransaction,
    CommitOffsets,
    OffsetsAnswer,
)
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
from odradek_broker.transactions.transaction_shard import partition_key
from odradek_protocol.identity import TopicIdPartition, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records import encode_batch
from odradek_protocol.records.codec import Record
from odradek_protocol.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.sim.cluster import Cluster
from tests.sim.machine import WALL_BEGINS_MS
from tests.sim.network import Stream
from tests.sim.scheduler import MS, SECOND, Process
from tests.sim.simulated_loop import SimulatedLoop
from tests.sim.transactions import transaction_shell
from tests.sim.transactions.history_checker import (
    Fate,
    GroupPartition,
    Takeover,
    Transaction,
    TransactionHistory,
)
from tests.sim.transactions.transaction_shell import (
    CommitOffsetsInTransaction,
    CommittedRead,
    FetchCommitted,
    ProduceTransactional,
    TransactionAnswer,
    TransactionCall,
)

ATTEMPT_S: Final = 1.5
TIMEOUT_MS: Final = 6_000
PRODUCE_ATTEMPTS_MAX: Final = 12
FATAL: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
LEFT_THE_GROUP: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)


class Fatal(Exception):
    """The producer cannot continue with its producer id and epoch."""


class Abortable(Exception):
    """The transaction must be aborted."""


class Caller:
    """The connections of one client process."""

    def __init__(
        self, cluster: Cluster, process: Process, loop: SimulatedLoop, client_id: int
    ) -> None:
        self.cluster = cluster
        self.scheduler = cluster.scheduler
        self.process = process
        self.loop = loop
        self.client_id = client_id
        self._call_ids = itertools.count(1)
        self._streams: dict[int, Stream] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}

    def leader(self, partition: TopicIdPartition) -> int:
        """Return the broker that leads the partition; -1 if none does."""
        state = self.cluster.log.image.partition(partition.topic_id, partition.partition)
        return -1 if state is None else state.leader

    def coordinator(self, topic_name: str, key: str) -> int:
        """Return the broker that coordinates a transactional id or a group; -1 if none does."""
        partition = self.internal_partition(topic_name, key)
        return (
            -1
            if partition is None
            else self.leader(TopicIdPartition(partition.topic_id, partition.partition))
        )

    def internal_partition(self, topic_name: str, key: str) -> TransactionPartition | None:
        """Return the partition of an internal topic that has the state of this key; None if the topic does not exist
        yet.
        """
        topic = self.cluster.log.image.topic(topic_name)
        if topic is None or not topic.partitions:
            return None
        state = topic.partitions[absolute_java_hash(key) % len(topic.partitions)]
        return TransactionPartition(topic.topic_id, topic.name, state.partition)

    async def ask(self, find: Callable[[], int], request: Any) -> Any:
        """Send a request to the broker that `find` returns. Return the response or an ErrorCode: NETWORK_EXCEPTION if
        no response arrived.
        """
        broker_id = find()
        stream = self._streams.get(broker_id)
        if stream is None or not stream.is_open_for(self.process):
            stream = self._connect(broker_id)
            if stream is None:
                return ErrorCode.NETWORK_EXCEPTION
        call_id = next(self._call_ids)
        future: asyncio.Future[Any] = self.loop.create_future()
        self._calls[call_id] = future
        stream.send(self.process, TransactionCall(call_id, request))
        try:
            async with asyncio.timeout(ATTEMPT_S):
                return await future
        except TimeoutError:
            # The request may still be in transit, over a connection that this client no longer uses.
            self._streams.pop(broker_id, None)
            stream.on_closed[0] = stream.on_message[0] = None
            if self.scheduler.chance(0.5):
                stream.close(self.process)
            return ErrorCode.NETWORK_EXCEPTION
        finally:
            self._calls.pop(call_id, None)

    def _connect(self, broker_id: int) -> Stream | None:
        network = self.cluster.network
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
        stream = Stream(network, self.process, life.process)

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

    async def read(self, partition: TopicIdPartition, offset: int) -> CommittedRead | ErrorCode:
        """Read committed records, mostly from the leader."""
        target = self.leader(partition)
        if self.scheduler.chance(0.25):
            target = self.scheduler.random.choice(sorted(self.cluster.brokers))
        response: CommittedRead | ErrorCode = await self.ask(
            lambda: target, FetchCommitted(partition, offset)
        )
        return response

    async def pause(self, low_ms: int, high_ms: int) -> None:
        await asyncio.sleep(self.scheduler.between(low_ms * MS, high_ms * MS) / SECOND)


class ProducerProcess:
    """One process with a transactional id, and its current producer id and epoch."""

    def __init__(
        self,
        caller: Caller,
        transactional_id: str,
        name: str,
        history: TransactionHistory,
        values: itertools.count[int],
        *,
        is_tv2: bool,
    ) -> None:
        """`name` is the name of the process in the history."""
        self.caller = caller
        self.scheduler = caller.scheduler
        self.transactional_id = TransactionalId(transactional_id)
        self.name = name
        self.is_tv2 = is_tv2
        self.identity: ProducerIdentity | None = None
        self._history = history
        self._values = values
        self._sequences: dict[TopicIdPartition, int] = defaultdict(int)
        self._added: set[TransactionPartition] = set()

    @property
    def mode(self) -> RegistrationMode:
        return RegistrationMode.ADD if self.is_tv2 else RegistrationMode.VERIFY

    def coordinator(self) -> int:
        return self.caller.coordinator(TRANSACTIONS_TOPIC, partition_key(self.transactional_id))

    async def init(self) -> None:
        """Get a producer id and epoch for the transactional id, which fences older processes."""
        request = InitProducer(transactional_id=self.transactional_id, timeout_ms=TIMEOUT_MS)
        asked_at = self.scheduler.now_us
        while True:
            response = await self.caller.ask(self.coordinator, request)
            if isinstance(response, Initialized) and response.error is ErrorCode.NONE:
                assert response.identity is not None
                self.use(response.identity)
                takeover = Takeover(
                    transactional_id=self.transactional_id,
                    process=self.name,
                    asked_at=asked_at,
                    told_at=self.scheduler.now_us,
                    identity=(response.identity.producer_id, response.identity.epoch),
                )
                self._history.takeovers.append(takeover)
                return
            await self.caller.pause(20, 100)

    def use(self, identity: ProducerIdentity) -> None:
        """Use this producer id and epoch from now on."""
        self.identity = identity
        self._sequences.clear()

    def begin(self) -> Transaction:
        """Begin a transaction."""
        transaction = Transaction(
            transactional_id=self.transactional_id,
            process=self.name,
            began_at=self.scheduler.now_us,
        )
        self._added.clear()
        self._history.transactions.append(transaction)
        return transaction

    async def write(self, transaction: Transaction, target: TransactionPartition) -> int:
        """Write a new value in the transaction, and return the value."""
        partition = TopicIdPartition(target.topic_id, target.partition)
        if not self.is_tv2:
            await self.add(target)
        identity = self.identity
        assert identity is not None
        value = next(self._values)
        transaction.values[partition].append(value)
        timestamp_ms = WALL_BEGINS_MS + self.scheduler.now_us // MS
        records = encode_batch(
            [Record(b"", b"%d" % value, timestamp_ms=timestamp_ms)],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=self._sequences[partition],
            transactional=True,
        )
        request = ProduceTransactional(partition, records, self.transactional_id, self.mode)
        for _ in range(PRODUCE_ATTEMPTS_MAX):
            response = await self.caller.ask(lambda: self.caller.leader(partition), request)
            if response is ErrorCode.NONE:
                self._sequences[partition] += 1
                return value
            raise_final(response)
            await self.caller.pause(20, 150)
        raise Fatal("no response")

    async def add(self, target: TransactionPartition) -> None:
        """Register a partition, as clients with one epoch for all transactions do (AddPartitionsToTxn)."""
        if target in self._added:
            return
        identity = self.identity
        assert identity is not None
        request = AddPartitions(
            transactional_id=self.transactional_id,
            identity=identity,
            partitions=(target,),
            is_tv2=False,
        )
        while True:
            response = await self.caller.ask(self.coordinator, request)
            if isinstance(response, Added):
                if response.error is ErrorCode.NONE:
                    self._added.add(target)
                    return
                raise_final(response.error)
            await self.caller.pause(20, 100)

    async def send_offsets(
        self,
        transaction: Transaction,
        commit: CommitOffsets,
        places: Mapping[TopicPartition, GroupPartition],
    ) -> ErrorCode:
        """Commit offsets of a group in the transaction. Errors of the group are returned."""
        if not self.is_tv2:
            offsets_partition = self.caller.internal_partition(OFFSETS_TOPIC, commit.group_id)
            assert offsets_partition is not None
            await self.add(offsets_partition)
        identity = self.identity
        assert identity is not None
        for partition, committed in commit.offsets.items():
            transaction.offsets[places[partition]] = committed.offset
        request = CommitOffsetsInTransaction(
            CommitInTransaction(
                commit=commit, producer_id=identity.producer_id, producer_epoch=identity.epoch
            ),
            self.transactional_id,
            self.mode,
        )
        for _ in range(PRODUCE_ATTEMPTS_MAX):
            response = await self.caller.ask(
                lambda: self.caller.coordinator(OFFSETS_TOPIC, commit.group_id), request
            )
            code = response.error if isinstance(response, OffsetsAnswer) else response
            if code is ErrorCode.NONE:
                codes = set(response.partitions.values()) - {ErrorCode.NONE}
                assert not codes, f"offsets were refused with {codes}"
                return code
            if code in LEFT_THE_GROUP:
                return code
            raise_final(code)
            await self.caller.pause(20, 150)
        raise Fatal("no response")

    async def end(self, transaction: Transaction, *, is_commit: bool) -> None:
        """Request the end of the transaction until it is confirmed.

        If a commit comes too late, an abort is requested after it.
        """
        identity = self.identity
        assert identity is not None
        if is_commit:
            transaction.commit_asked_at = self.scheduler.now_us
        while True:
            request = EndTransaction(
                transactional_id=self.transactional_id,
                identity=identity,
                is_commit=is_commit,
                is_tv2=self.is_tv2,
            )
            response = await self.caller.ask(self.coordinator, request)
            if isinstance(response, Ended):
                if response.error is ErrorCode.NONE:
                    fate = Fate.COMMITTED if is_commit else Fate.ABORTED
                    transaction.fate, transaction.told_at = fate, self.scheduler.now_us
                    self.scheduler.counters[f"transactions {fate.value}"] += 1
                    if response.next_identity is not None and self.is_tv2:
                        self.use(response.next_identity)
                    return
                if response.error is ErrorCode.TRANSACTION_ABORTABLE and is_commit:
                    is_commit = False
                    continue
                raise_final(response.error)
            await self.caller.pause(20, 100)


def raise_final(code: ErrorCode) -> None:
    """Raise Fatal or Abortable if the code ends the producer or the transaction. Return if the request must be
    repeated.
    """
    if code is ErrorCode.TRANSACTION_ABORTABLE:
        raise Abortable
    if code in FATAL:
        raise Fatal(code)
