"""Produce: batches from the client's frame to the leaders' logs, without a copy and without a task.

All partitions are appended, in the order of the request, before the handler returns. The connection may therefore begin
its next request while this one waits for replicas (`is_ordered`). Errors are per partition. A request with acks=0 has
no response; on an error the broker closes the connection instead, as Kafka does, so that the client notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Final

from odradek_broker.access.quotas import PRODUCE_RATE
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import (
    NO_RESPONSE,
    CloseConnection,
    Encoded,
    NoResponse,
    Request,
)
from odradek_broker.kafka.requests.administration.brokers import endpoints_of
from odradek_broker.partition.events import RegistrationMode
from odradek_broker.replication.client_requests import ProduceTransaction
from odradek_broker.replication.outcomes import ProduceOutcome, Topic
from odradek_broker.replication.partition import Partition
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.identity import NO_OFFSET, PartitionIndex, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.leader_hints import CurrentLeader
from odradek_protocol.kafka.produce import (
    PartitionResponse,
    ProduceRequest,
    ProduceTopic,
    TopicResponse,
    decode_produce_steps,
    encode_produce_steps,
)
from odradek_protocol.kafka.request_decoding import all_steps

TIMEOUT_MS_MAX: Final = 600_000
PARTITIONS_AT_ONCE: Final = 256
"""A longer request is appended in turns with other work: so many partitions take 8 ms of the loop."""
_RESPONSES_A_STEP: Final = 64
_ABORTABLE_FROM: Final = 11
"""The first version whose clients know TRANSACTION_ABORTABLE."""
_LEADERS_ADD_FROM: Final = 12
"""The first version whose clients leave it to the leaders to add partitions to a transaction (KIP-890)."""
_UNKNOWN_TOPIC_ID: Final = ProduceOutcome(ErrorCode.UNKNOWN_TOPIC_ID)
_NOT_ALLOWED: Final = ProduceOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_NO_RECORDS: Final = ProduceOutcome(ErrorCode.INVALID_RECORD, message="there are no records")
_ID_NOT_ALLOWED: Final = ProduceOutcome(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


@handles(ProduceRequest, decode_in_steps=decode_produce_steps, is_ordered=True)
def produce(
    request: Request[ProduceRequest],
) -> Encoded | NoResponse | Awaitable[Encoded | NoResponse]:
    """Append all batches; the response is complete when all are replicated as `acks` demands."""
    topics = request.message.topics
    if sum([len(topic.partitions) for topic in topics]) > PARTITIONS_AT_ONCE:
        return _Produce(request).start_in_turns()
    return _Produce(request).start()


class _Produce:
    """A request in progress: counts the partitions whose outcome is not known yet."""

    __slots__ = (
        "_all_known",
        "_message",
        "_outcomes",
        "_partitions",
        "_request",
        "_response",
        "_unknown",
    )

    def __init__(self, request: Request[ProduceRequest]) -> None:
        self._request = request
        self._message: ProduceRequest = request.message
        # Both by topic and partition, in the order of the request.
        self._outcomes: list[list[ProduceOutcome | None]] = []
        self._partitions: list[list[Partition | None]] = []
        self._unknown = 1  # one more than partitions, until all of them have begun
        self._response: asyncio.Future[Encoded] | None = None
        # Instead of `_response` for a request that is answered in turns.
        self._all_known: asyncio.Future[None] | None = None

    def start(self) -> Encoded | NoResponse | asyncio.Future[Encoded]:
        for _ in self._append_all():
            pass
        return self._appended()

    async def start_in_turns(self) -> Encoded | NoResponse:
        """Append many partitions and build their response, with turns for other work between them."""
        pace = self._request.pace
        await pace.run(self._append_all())
        if self._message.acks == 0:
            return self._without_response()
        if self._unknown:
            self._all_known = asyncio.get_running_loop().create_future()
            await self._all_known
            await pace.turn()
        return await pace.run(self._encode_steps())

    def _append_all(self) -> Generator[None, None, None]:
        """Begin every partition, with a step after each."""
        message = self._message
        timeout_ms = min(max(message.timeout_ms, 0), TIMEOUT_MS_MAX)
        refused_all = self._refused_all()
        transaction = self._transaction()
        size_bytes = 0
        for topic in message.topics:
            name = self._name(topic)
            outcomes: list[ProduceOutcome | None] = [None] * len(topic.partitions)
            self._outcomes.append(outcomes)
            partitions: list[Partition | None] = [None] * len(topic.partitions)
            self._partitions.append(partitions)
            ref: Topic | None = topic.topic_id if topic.name is None else name
            refused = refused_all or self._refused(name)
            for number, (index, records) in enumerate(topic.partitions):
                if refused is not None:
                    outcomes[number] = refused
                elif not records:
                    outcomes[number] = _NO_RECORDS
                else:
                    assert ref is not None
                    size_bytes += len(records)
                    partition = self._request.services.partitions.find(ref, PartitionIndex(index))
                    if isinstance(partition, ErrorCode):
                        outcomes[number] = ProduceOutcome(partition)
                    else:
                        partitions[number] = partition
                        self._unknown += 1
                        self._append(outcomes, number, partition, records, timeout_ms, transaction)
                yield
        self._unknown -= 1
        self._throttle(size_bytes)

    def _appended(self) -> Encoded | NoResponse | asyncio.Future[Encoded]:
        if self._message.acks == 0:
            return self._without_response()
        if not self._unknown:
            return all_steps(self._encode_steps())
        self._response = asyncio.get_running_loop().create_future()
        return self._response

    def _append(
        self,
        outcomes: list[ProduceOutcome | None],
        number: int,
        partition: Partition,
        records: memoryview,
        timeout_ms: int,
        transaction: ProduceTransaction | None,
    ) -> None:
        def done(outcome: ProduceOutcome) -> None:
            outcomes[number] = outcome
            self._unknown -= 1
            if self._unknown:
                return
            response, all_known = self._response, self._all_known
            if response is not None and not response.done():
                response.set_result(all_steps(self._encode_steps()))
            elif all_known is not None and not all_known.done():
                all_known.set_result(None)

        partition.produce(
            records,
            acks=self._message.acks,
            timeout_ms=timeout_ms,
            on_done=done,
            transaction=transaction,
        )

    def _name(self, topic: ProduceTopic) -> TopicName | None:
        if topic.name is not None:
            return topic.name
        state = self._request.services.image.topics.get(topic.topic_id)
        return None if state is None else state.name

    def _refused_all(self) -> ProduceOutcome | None:
        transactional_id = self._message.transactional_id
        if transactional_id is not None and not self._request.allows(
            Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            return _ID_NOT_ALLOWED
        return None

    def _transaction(self) -> ProduceTransaction | None:
        """Return the transaction that batches with the transactional bit belong to."""
        transactional_id = self._message.transactional_id
        if transactional_id is None:
            return None
        is_added_here = self._request.version >= _LEADERS_ADD_FROM
        return ProduceTransaction(
            transactional_id, RegistrationMode.ADD if is_added_here else RegistrationMode.VERIFY
        )

    def _refused(self, name: TopicName | None) -> ProduceOutcome | None:
        if name is None:
            return _UNKNOWN_TOPIC_ID
        if not self._request.allows_topic(Operation.WRITE, name):
            return _NOT_ALLOWED
        return None

    def _throttle(self, size_bytes: int) -> None:
        request = self._request
        request.throttle_ms = request.services.quotas.throttle_ms(
            PRODUCE_RATE, request.session.principal, request.client_id, size_bytes
        )

    def _without_response(self) -> NoResponse:
        if any(
            outcome is not None and outcome.error is not ErrorCode.NONE
            for outcomes in self._outcomes
            for outcome in outcomes
        ):
            raise CloseConnection("a produce with acks=0 failed, and nothing else would tell")
        return NO_RESPONSE

    def _encode_steps(self) -> Generator[None, None, Encoded]:
        request = self._request
        topics = []
        leaders: list[CurrentLeader] = []
        since_step = 0
        for topic, partitions, outcomes in zip(
            self._message.topics, self._partitions, self._outcomes, strict=True
        ):
            ref: Topic = topic.topic_id if topic.name is None else topic.name
            responses = []
            for (index, _), partition, outcome in zip(
                topic.partitions, partitions, outcomes, strict=True
            ):
                since_step += 1
                if since_step >= _RESPONSES_A_STEP:
                    since_step = 0
                    yield
                assert outcome is not None, (ref, index)
                if partition is not None:
                    outcome = partition.gate_produce(outcome, acks=self._message.acks)
                responses.append(self._partition_response(ref, index, outcome, leaders))
            topics.append(TopicResponse(topic.name, topic.topic_id, responses))
        body = yield from encode_produce_steps(
            request.version,
            topics,
            throttle_ms=request.throttle_ms,
            endpoints=endpoints_of(request, leaders) if leaders else (),
        )
        return Encoded((body,), len(body))

    def _partition_response(
        self, topic: Topic, index: int, outcome: ProduceOutcome, leaders: list[CurrentLeader]
    ) -> PartitionResponse:
        error = outcome.error
        if error is ErrorCode.TRANSACTION_ABORTABLE and self._request.version < _ABORTABLE_FROM:
            error = ErrorCode.INVALID_TXN_STATE
        if error is ErrorCode.NONE:
            return PartitionResponse(
                index, 0, outcome.base_offset, outcome.log_append_time_ms, outcome.log_start_offset
            )
        leader = None
        if error.leader_moved:
            now = self._request.services.partitions.leader_of(topic, PartitionIndex(index))
            leader = CurrentLeader(now.broker_id, now.leader_epoch)
            leaders.append(leader)
        return PartitionResponse(
            index,
            error,
            NO_OFFSET,
            -1,
            outcome.log_start_offset,
            outcome.message or None,
            leader,
            outcome.invalid_records,
        )
