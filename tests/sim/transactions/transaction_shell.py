"""The part of a simulated broker's listener that serves transactional clients with the production code's
coordinators.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.coordination.transaction_coordinator import OutdatedConnection
from odradek_broker.groups.messages import CommitInTransaction
from odradek_broker.partition.events import RegistrationMode
from odradek_broker.replication.client_requests import ProduceTransaction
from odradek_broker.replication.local_partitions import FetchWant
from odradek_broker.replication.outcomes import AbortedRange, ProduceOutcome, ReadOutcome
from odradek_broker.transactions.messages import (
    AbortStaged,
    AddPartitions,
    CompleteStep,
    Ended,
    EndTransaction,
    Initialized,
    InitProducer,
    OpenStaged,
    PrepareStaged,
    RenewStaged,
)
from odradek_broker.transactions.transaction_shard import TransactionShard
from odradek_protocol.identity import Offset, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records import ControlType, decode_batch, iter_headers, read_control
from tests.sim.network import Stream
from tests.sim.transactions.transaction_oracle import TransactionOracle

if TYPE_CHECKING:
    from tests.sim.broker_process import BrokerProcess

PRODUCE_TIMEOUT_MS = 3_000
FETCH_BYTES_MAX = 1_500
StagedRequest: TypeAlias = OpenStaged | RenewStaged | PrepareStaged | CompleteStep | AbortStaged


@dataclass(frozen=True, slots=True)
class ProduceTransactional:
    """A request to produce one batch of a transaction."""

    partition: TopicIdPartition
    records: bytes
    transactional_id: str
    mode: RegistrationMode


@dataclass(frozen=True, slots=True)
class CommitOffsetsInTransaction:
    """A request to commit offsets of a group in a transaction."""

    commit: CommitInTransaction
    transactional_id: str
    mode: RegistrationMode


@dataclass(frozen=True, slots=True)
class FetchCommitted:
    """A request of a read_committed reader for the records from `offset` on."""

    partition: TopicIdPartition
    offset: int


@dataclass(frozen=True, slots=True)
class CommittedRead:
    """The committed records in a response as (offset, value) pairs, and the offset at which the next read begins."""

    records: tuple[tuple[int, int], ...]
    next_offset: int


Request: TypeAlias = (
    InitProducer
    | AddPartitions
    | EndTransaction
    | ProduceTransactional
    | CommitOffsetsInTransaction
    | FetchCommitted
    | StagedRequest
)


@dataclass(frozen=True, slots=True)
class TransactionCall:
    """One request of a client."""

    call_id: int
    request: Request


@dataclass(frozen=True, slots=True)
class TransactionAnswer:
    """The response to a request, or the error code with which the broker refused the request."""

    call_id: int
    response: Any


def accept(life: BrokerProcess, stream: Stream) -> None:
    """Serve a client's connection. Its requests begin in order, one after the other, as on the Kafka listener."""
    broker = life.broker
    assert broker is not None
    number = broker.transactions.connection_numbers.next()
    waiting: asyncio.Queue[TransactionCall] = asyncio.Queue()
    stream.on_message[1] = waiting.put_nowait

    async def serve() -> None:
        while True:
            call = await waiting.get()
            try:
                response = await _respond(life, call.request, number)
            except CoordinatorError as refused:
                response = refused.code
            except OutdatedConnection:
                life.scheduler.counters["outdated connections closed"] += 1
                stream.close(life.process)
                return
            stream.send(life.process, TransactionAnswer(call.call_id, response))

    task = life.loop.spawn(serve())

    def closed() -> None:
        task.cancel()

    stream.on_closed[1] = closed


async def _respond(life: BrokerProcess, request: Request, number: int) -> Any:
    assert life.broker is not None
    transactions = life.broker.transactions
    coordinator = transactions.coordinator
    oracle = life.cluster.invariants
    assert isinstance(oracle, TransactionOracle)
    match request:
        case InitProducer():
            initialized: Initialized = await coordinator.init_producer(request, connection=number)
            if initialized.error is ErrorCode.NONE:
                oracle.identity_told(request.transactional_id, initialized.identity)
            return initialized
        case AddPartitions():
            return await coordinator.add_partitions(request, connection=number)
        case EndTransaction():
            connection = None if request.is_tv2 else number
            ended: Ended = await coordinator.end_transaction(request, connection=connection)
            if ended.error is ErrorCode.NONE:
                oracle.end_told(request)
            return ended
        case ProduceTransactional():
            return await _produce(life, request)
        case CommitOffsetsInTransaction():
            return await transactions.offsets.commit(
                request.commit,
                transactional_id=request.transactional_id,
                mode=request.mode,
                connection=number if request.mode is RegistrationMode.VERIFY else None,
            )
        case FetchCommitted():
            return await _fetch(life, request, oracle)
        case _:
            return await _staged(life, request)


async def _produce(life: BrokerProcess, request: ProduceTransactional) -> ErrorCode:
    assert life.broker is not None
    target = request.partition
    partition = life.broker.partitions.find(target.topic_id, target.partition)
    if isinstance(partition, ErrorCode):
        return partition
    done: asyncio.Future[ProduceOutcome] = life.loop.create_future()
    partition.produce(
        request.records,
        acks=-1,
        timeout_ms=PRODUCE_TIMEOUT_MS,
        on_done=lambda outcome: None if done.done() else done.set_result(outcome),
        transaction=ProduceTransaction(request.transactional_id, request.mode),
    )
    return partition.gate_produce(await done, acks=-1).error


async def _fetch(
    life: BrokerProcess, request: FetchCommitted, oracle: TransactionOracle
) -> CommittedRead | ErrorCode:
    assert life.broker is not None
    partitions, target = life.broker.partitions, request.partition
    partition = partitions.find(target.topic_id, target.partition)
    (read,) = await partitions.fetch(
        [FetchWant(partition=partition, offset=Offset(request.offset), bytes_max=FETCH_BYTES_MAX)],
        bytes_min=0,
        bytes_max=FETCH_BYTES_MAX,
        wait_ms_max=0,
        read_committed=True,
    )
    if not isinstance(partition, ErrorCode):
        read = partition.gate_read(read)
    if read.error is not ErrorCode.NONE:
        return read.error
    records = tuple(_visible(read, request.offset))
    oracle.committed_read(target, request.offset, read.next_offset, records)
    return CommittedRead(records, read.next_offset)


def _visible(read: ReadOutcome, position: int) -> list[tuple[int, int]]:
    """Return the records of a response without the records of aborted transactions, as clients do. The response lists
    these transactions.
    """
    aborted = sorted(read.aborted or (), key=lambda item: item.first_offset)
    skipped: set[int] = set()
    records: list[tuple[int, int]] = []
    for data in read.records:
        for at, header in iter_headers(data):
            skipped |= _begun(aborted, header.last_offset)
            if header.is_control:
                if read_control(data, at).type is ControlType.ABORT:
                    skipped.discard(header.producer_id)
            elif not header.is_transactional or header.producer_id not in skipped:
                records += (
                    (record.offset, int(bytes(record.value or b"")))
                    for record in decode_batch(data, at)
                    if record.offset >= position
                )
    return records


def _begun(aborted: list[AbortedRange], last_offset: int) -> set[int]:
    """Remove the transactions that begin up to this offset from the list, and return their producer ids."""
    begun: set[int] = set()
    while aborted and aborted[0].first_offset <= last_offset:
        begun.add(aborted.pop(0).producer_id)
    return begun


async def _staged(life: BrokerProcess, request: StagedRequest) -> Any:
    assert life.broker is not None
    coordinator = life.broker.transactions.coordinator
    match request:
        case OpenStaged() | CompleteStep():
            key = request.query
        case PrepareStaged():
            key = request.member.transactional_id
        case RenewStaged() | AbortStaged():
            key = request.members[0].transactional_id

    def decide(shard: TransactionShard, request_id: Any) -> Any:
        now_ms, wall_ms = coordinator.now_ms(), coordinator.wall_ms()
        staged = shard.staged
        match request:
            case OpenStaged():
                return staged.handle_open(request_id, request, now_ms=now_ms, wall_ms=wall_ms)
            case RenewStaged():
                return staged.handle_renew(request_id, request, now_ms=now_ms)
            case PrepareStaged():
                return staged.handle_prepare(request_id, request, now_ms=now_ms, wall_ms=wall_ms)
            case CompleteStep():
                return staged.handle_complete(request_id, request, now_ms=now_ms, wall_ms=wall_ms)
            case AbortStaged():
                return staged.handle_abort(request_id, request, now_ms=now_ms, wall_ms=wall_ms)

    response, _, _ = await coordinator.ask_in_epoch(key, decide)
    return response
