"""The listener's part for transactional clients on a simulated broker, over the production's coordinator."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.coordination.transaction_coordinator import OutdatedConnection
from odradek_broker.partition.events import RegistrationMode
from odradek_broker.replication.client_requests import ProduceTransaction
from odradek_broker.replication.outcomes import ProduceOutcome
from odradek_broker.transactions.messages import AddPartitions, EndTransaction, InitProducer
from odradek_protocol.identity import TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.sim.network import Stream

if TYPE_CHECKING:
    from tests.sim.broker_process import BrokerProcess

PRODUCE_TIMEOUT_MS = 3_000


@dataclass(frozen=True, slots=True)
class ProduceTransactional:
    """One batch of a transaction."""

    partition: TopicIdPartition
    records: bytes
    transactional_id: str
    mode: RegistrationMode


@dataclass(frozen=True, slots=True)
class TransactionCall:
    """One request of a client."""

    call_id: int
    request: InitProducer | AddPartitions | EndTransaction | ProduceTransactional


@dataclass(frozen=True, slots=True)
class TransactionAnswer:
    """The response, or the code with which the broker refused."""

    call_id: int
    response: Any


def accept(life: BrokerProcess, stream: Stream) -> None:
    """Serve a client's connection. Its requests begin in order, as on the Kafka listener one after the other."""
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


async def _respond(life: BrokerProcess, request: Any, number: int) -> Any:
    assert life.broker is not None
    coordinator = life.broker.transactions.coordinator
    match request:
        case InitProducer():
            return await coordinator.init_producer(request, connection=number)
        case AddPartitions():
            return await coordinator.add_partitions(request, connection=number)
        case EndTransaction():
            connection = None if request.is_tv2 else number
            return await coordinator.end_transaction(request, connection=connection)
        case ProduceTransactional():
            return await _produce(life, request)
    raise AssertionError(request)


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
