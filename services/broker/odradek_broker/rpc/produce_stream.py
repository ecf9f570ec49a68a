"""One client's Produce stream. The broker receives requests, and sends each response when its request is complete.

The broker stops reading while too many requests have no response, so that a client cannot fill the broker's memory. The
replica's lease and role are checked just before a response is sent (rule R13 of partition/README.md).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import grpc
import grpc.aio

from odradek_broker.access.quotas import PRODUCE_RATE, Quotas
from odradek_broker.partition.events import RegistrationMode
from odradek_broker.replication.client_requests import ProduceTransaction
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.outcomes import ProduceOutcome, Topic
from odradek_broker.replication.partition import Partition
from odradek_broker.rpc.callers import Caller, in_turns
from odradek_broker.rpc.intake import call_errors
from odradek_broker.rpc.metadata_view import leader_hint
from odradek_broker.transactions.transaction_shard import partition_key
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.identity import PartitionIndex, TopicId, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.record_messages import (
    ProduceMessage,
    WireError,
    produce_request_steps,
)
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb

BYTES_IN_FLIGHT_MAX: Final = 64 << 20
REQUESTS_IN_FLIGHT_MAX: Final = 1024
_PARTITIONS_A_PIECE: Final = 100  # other work may run after appends to this many partitions
TIMEOUT_MS_MAX: Final = 600_000
Context = grpc.aio.ServicerContext[bytes, pb.ProduceResponse]


class _Request:
    """A produce request in progress. `missing` is the number of partitions whose outcome is pending."""

    __slots__ = (
        "acks",
        "missing",
        "names",
        "outcomes",
        "partitions",
        "request_id",
        "size_bytes",
        "throttle_ms",
    )

    def __init__(self, request: ProduceMessage) -> None:
        self.request_id = request.request_id
        self.acks = request.acks
        self.names = [(part.topic, part.topic_id, part.partition) for part in request.partitions]
        self.partitions: list[Partition | None] = [None] * len(self.names)
        self.outcomes: list[ProduceOutcome | None] = [None] * len(self.names)
        self.missing = len(self.names)
        self.size_bytes = request.size_bytes
        self.throttle_ms = 0


class ProduceStream:
    """Serves one Produce stream until the client ends it."""

    def __init__(
        self, partitions: LocalPartitions, caller: Caller, quotas: Quotas, context: Context
    ) -> None:
        self._partitions = partitions
        self._quotas = quotas
        self._caller = caller
        self._context = context
        self._done: deque[_Request] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._bytes_in_flight = 0
        self._requests_in_flight = 0
        self._is_ended = False

    async def serve(self) -> None:
        """Serve requests until the client ends the stream. Return after the last response was sent."""
        with call_errors():
            async with asyncio.TaskGroup() as group:
                group.create_task(self._respond())
                try:
                    while True:
                        data: object = await self._context.read()
                        if data is grpc.aio.EOF:
                            break
                        assert isinstance(data, bytes), type(data)
                        self._caller.got_message(len(data))
                        try:
                            request = await self._read(data)
                        except WireError as error:
                            await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                        throttle_ms = await self._take(request)
                        if throttle_ms:  # a client that exceeds its quota is delayed
                            await asyncio.sleep(throttle_ms / 1000)
                        while (
                            self._bytes_in_flight > BYTES_IN_FLIGHT_MAX
                            or self._requests_in_flight > REQUESTS_IN_FLIGHT_MAX
                        ):
                            self._room.clear()
                            await self._room.wait()
                finally:
                    self._is_ended = True
                    self._wake.set()

    async def _read(self, data: bytes) -> ProduceMessage:
        """Decode a request. A request with many partitions is decoded in steps, between which other work runs."""
        steps = produce_request_steps(data)
        try:
            next(steps)
        except StopIteration as done:
            request: ProduceMessage = done.value
            return request
        pace = self._caller.pace
        assert pace is not None, "a client's call has a pace"
        await pace.turn()
        return await pace.run(steps)

    async def _take(self, request: ProduceMessage) -> int:
        """Begin to append a request's batches. Return for how many ms the client is throttled."""
        waiting = _Request(request)
        waiting.throttle_ms = self._quotas.throttle_ms(
            PRODUCE_RATE, self._caller.principal, self._caller.client_id, request.size_bytes
        )
        self._bytes_in_flight += waiting.size_bytes
        self._requests_in_flight += 1
        timeout_ms = min(max(request.timeout_ms, 0), TIMEOUT_MS_MAX)
        transactional_id = request.transactional_id
        refused_all, transaction = self._transaction_refusal(transactional_id), None
        if transactional_id:
            # gRPC clients do not add partitions to a transaction; each partition leader adds its own partition
            # (KIP-890).
            transaction = ProduceTransaction(transactional_id, RegistrationMode.ADD)
        pace = self._caller.pace
        for number, part in enumerate(request.partitions):
            if number % _PARTITIONS_A_PIECE == _PARTITIONS_A_PIECE - 1 and pace is not None:
                await pace.turn()
            topic: Topic = TopicId(part.topic_id) if part.topic_id else TopicName(part.topic)
            refused = refused_all or self._refusal(part.topic, part.topic_id)
            if refused is not None:
                self._completed(waiting, number, refused)
                continue
            partition = self._partitions.find(topic, PartitionIndex(part.partition))
            if isinstance(partition, ErrorCode):
                self._completed(waiting, number, ProduceOutcome(partition))
                continue
            waiting.partitions[number] = partition
            partition.produce(
                part.records,
                acks=request.acks,
                timeout_ms=timeout_ms,
                transaction=transaction,
                on_done=lambda outcome, n=number: self._completed(waiting, n, outcome),  # type: ignore[misc]
            )
        if not waiting.names:
            self._finished(waiting)
        return waiting.throttle_ms

    def _transaction_refusal(self, transactional_id: str) -> ProduceOutcome | None:
        """Return an error if the caller may not use the transactional id; None if it may, or if the id is empty."""
        # A right to the name of a query (staged writes) includes the transactional ids of all slots of the query.
        name = partition_key(transactional_id)
        need = [(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name)]
        if not transactional_id or self._caller.has(need):
            return None
        return ProduceOutcome(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            message=self._caller.denied("Produce", need),
        )

    def _refusal(self, name: str, topic_id: bytes) -> ProduceOutcome | None:
        """Return an error if the caller may not write to the topic; None if it may."""
        given_name = name
        if topic_id:
            topic = self._partitions.image.topics.get(TopicId(topic_id))
            name = "" if topic is None else topic.name
        if self._caller.may(Operation.WRITE, name):
            return None
        return ProduceOutcome(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            message=self._caller.denied_topic("Produce", Operation.WRITE, name, given_name),
        )

    def _completed(self, waiting: _Request, number: int, outcome: ProduceOutcome) -> None:
        assert waiting.outcomes[number] is None, f"partition {number} completed twice"
        waiting.outcomes[number] = outcome
        waiting.missing -= 1
        if waiting.missing == 0:
            self._finished(waiting)

    def _finished(self, waiting: _Request) -> None:
        self._bytes_in_flight -= waiting.size_bytes
        self._requests_in_flight -= 1
        self._room.set()
        if waiting.acks != 0:
            self._done.append(waiting)
        self._wake.set()

    async def _respond(self) -> None:
        while True:
            while self._done:
                waiting = self._done.popleft()
                response = pb.ProduceResponse(
                    request_id=waiting.request_id, throttle_time_ms=waiting.throttle_ms
                )
                if len(waiting.names) <= _PARTITIONS_A_PIECE:
                    for number in range(len(waiting.names)):
                        self._add_result(response, waiting, number)
                else:
                    async for number in in_turns(range(len(waiting.names))):
                        self._add_result(response, waiting, number)
                await self._context.write(response)
            if self._is_ended and not self._requests_in_flight:
                return
            self._wake.clear()
            await self._wake.wait()

    def _add_result(self, response: pb.ProduceResponse, waiting: _Request, number: int) -> None:
        """Add the result of one partition to a request's response."""
        name, topic_id, index = waiting.names[number]
        partition, outcome = waiting.partitions[number], waiting.outcomes[number]
        assert outcome is not None
        gated = outcome
        if partition is not None:
            gated = partition.gate_produce(outcome, acks=waiting.acks)
        result = response.partitions.add(
            topic=name,
            partition=index,
            error_code=gated.error,
            error_message=gated.message,
            base_offset=gated.base_offset,
            log_append_time_ms=gated.log_append_time_ms,
            log_start_offset=gated.log_start_offset,
        )
        if gated.error and gated.error.leader_moved:
            topic: Topic = TopicId(topic_id) if topic_id else TopicName(name)
            leader = self._partitions.leader_of(topic, PartitionIndex(index))
            result.leader.CopyFrom(
                leader_hint(
                    self._partitions.image,
                    leader.broker_id,
                    leader.leader_epoch,
                    self._caller.listener,
                )
            )
