"""Produce: appends the batches of a request to the logs of partitions that this broker leads, without a copy or a task.

All appends begin, in the order of the request, before the handler returns. Therefore the connection may begin its next
request while this request waits for replicas (`is_ordered`). A request with more than `PARTITIONS_AT_ONCE` partitions
is an exception: a task handles it, and the next request begins after its response. Each partition has its own error
code. A request with acks=0 has no response; after an error the broker closes the connection, as Kafka does, so that the
client notices the error.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Generator
from typing import Final

from odradek_broker.access.quotas import PRODUCE_RATE
from odradek_broker.kafka.later import Later
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
from odradek_protocol.identity import NO_OFFSET, PartitionIndex, TopicId, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.leader_hints import CurrentLeader
from odradek_protocol.kafka.produce import (
    PartitionResponse,
    PlainResponse,
    ProducedTopic,
    ProduceRequest,
    decode_produce,
    decode_produce_steps,
    encode_produce_response,
    encode_produce_steps,
)

_NONE: Final = ErrorCode.NONE
TIMEOUT_MS_MAX: Final = 600_000
PARTITIONS_AT_ONCE: Final = 256
"""A request with more partitions is handled in steps, between which the event loop does other work. This many
partitions occupy the event loop for 8 ms.
"""
_RESPONSES_A_STEP: Final = 64
_ABORTABLE_FROM: Final = 11
"""The first version whose clients know TRANSACTION_ABORTABLE."""
_LEADERS_ADD_FROM: Final = 12
"""The first version in which partition leaders, not the client, add partitions to a transaction (KIP-890)."""
_UNKNOWN_TOPIC_ID: Final = ProduceOutcome(ErrorCode.UNKNOWN_TOPIC_ID)
_NOT_ALLOWED: Final = ProduceOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_NO_RECORDS: Final = ProduceOutcome(
    ErrorCode.INVALID_RECORD, message="the request has no records for this partition"
)
_ID_NOT_ALLOWED: Final = ProduceOutcome(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


@handles(
    ProduceRequest,
    decode=decode_produce,
    decode_in_steps=decode_produce_steps,
    is_ordered=True,
)
def produce(
    request: Request[ProduceRequest],
) -> Encoded | NoResponse | Awaitable[Encoded | NoResponse]:
    """Append all batches. The response is sent when all batches are replicated as `acks` requires."""
    message = request.message
    topics = message.topics
    if len(topics) == 1 and len(topics[0][2]) == 1 and message.acks:
        if message.transactional_id is None:
            return _OnePartition(request).start()
    elif sum([len(partitions) for _, _, partitions in topics]) > PARTITIONS_AT_ONCE:
        return _Produce(request).start_in_turns()
    return _Produce(request).start()


class _OnePartition(Later[Encoded]):
    """A request in progress that has one partition and no transactional id, which is the usual case."""

    __slots__ = ("_has_begun", "_outcome", "_partition", "_request")

    def __init__(self, request: Request[ProduceRequest]) -> None:
        super().__init__()
        self._request = request
        self._partition: Partition | None = None
        self._outcome: ProduceOutcome | None = None
        self._has_begun = False

    def start(self) -> Encoded | Later[Encoded]:
        request = self._request
        message = request.message
        name, topic_id, ((index, records),) = message.topics[0]
        topic, refused = _look_at(request, name, topic_id)
        if refused is None and not records:
            refused = _NO_RECORDS
        size_bytes = 0
        if refused is None and records:
            size_bytes = len(records)
            partition = request.services.partitions.find(topic, PartitionIndex(index))
            if isinstance(partition, ErrorCode):
                refused = ProduceOutcome(partition)
            else:
                self._partition = partition
                timeout_ms = min(max(message.timeout_ms, 0), TIMEOUT_MS_MAX)
                partition.produce(
                    records, acks=message.acks, timeout_ms=timeout_ms, on_done=self._done
                )
        _throttle(request, size_bytes)
        self._has_begun = True
        outcome = refused or self._outcome
        return self if outcome is None else self._encode(outcome)

    def _done(self, outcome: ProduceOutcome) -> None:
        if self._has_begun:
            self.respond(self._encode(outcome))
        else:
            self._outcome = outcome

    def _encode(self, outcome: ProduceOutcome) -> Encoded:
        name, topic_id, ((index, _),) = self._request.message.topics[0]
        topic: Topic = topic_id if name is None else name
        leaders: list[CurrentLeader] = []
        result = _result(self._request, topic, index, self._partition, outcome, leaders)
        return _encoded(self._request, [(name, topic_id, [result])], leaders)


class _Produce:
    """A Produce request in progress, with the number of partitions whose outcome is pending."""

    __slots__ = (
        "_all_known",
        "_message",
        "_outcomes",
        "_partitions",
        "_refused_all",
        "_request",
        "_response",
        "_size_bytes",
        "_timeout_ms",
        "_transaction",
        "_unknown",
    )

    def __init__(self, request: Request[ProduceRequest]) -> None:
        self._request = request
        message = self._message = request.message
        # Both lists have an entry for each partition, in the order of the request.
        self._outcomes: list[ProduceOutcome | None] = []
        self._partitions: list[Partition | None] = []
        self._unknown = 1  # number of pending partitions, plus 1 until all appends have begun
        self._size_bytes = 0
        self._timeout_ms = min(max(message.timeout_ms, 0), TIMEOUT_MS_MAX)
        self._refused_all: ProduceOutcome | None = None
        self._transaction: ProduceTransaction | None = None
        if message.transactional_id is not None:
            self._enter_transaction(message.transactional_id)
        self._response: Later[Encoded] | None = None
        # This is used instead of `_response` if the response is encoded in steps.
        self._all_known: asyncio.Future[None] | None = None

    def start(self) -> Encoded | NoResponse | Later[Encoded]:
        for name, topic_id, partitions in self._message.topics:
            topic, refused = _look_at(self._request, name, topic_id, self._refused_all)
            for index, records in partitions:
                self._append(topic, refused, index, records)
        self._all_began()
        if self._message.acks == 0:
            return self._without_response()
        if not self._unknown:
            return self._encode()
        self._response = Later()
        return self._response

    async def start_in_turns(self) -> Encoded | NoResponse:
        """Append to many partitions and encode the response, and let other work run in between."""
        pace = self._request.pace
        await pace.run(self._append_steps())
        if self._message.acks == 0:
            return self._without_response()
        if self._unknown:
            self._all_known = asyncio.get_running_loop().create_future()
            await self._all_known
            await pace.turn()
        return await pace.run(self._encode_steps())

    def _append_steps(self) -> Generator[None, None, None]:
        """Begin the append to each partition. Yields after each partition."""
        for name, topic_id, partitions in self._message.topics:
            topic, refused = _look_at(self._request, name, topic_id, self._refused_all)
            for index, records in partitions:
                self._append(topic, refused, index, records)
                yield
        self._all_began()

    def _all_began(self) -> None:
        self._unknown -= 1
        _throttle(self._request, self._size_bytes)

    def _enter_transaction(self, transactional_id: str) -> None:
        """Set the transaction of the request's batches. If the caller may not use the transactional id, all partitions
        are refused.
        """
        request = self._request
        if not request.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            self._refused_all = _ID_NOT_ALLOWED
        is_added_here = request.version >= _LEADERS_ADD_FROM
        self._transaction = ProduceTransaction(
            transactional_id, RegistrationMode.ADD if is_added_here else RegistrationMode.VERIFY
        )

    def _append(
        self,
        topic: Topic,
        refused: ProduceOutcome | None,
        index: int,
        records: memoryview | None,
    ) -> None:
        """Begin the append to the next partition of the request."""
        number = len(self._outcomes)
        self._outcomes.append(refused)
        self._partitions.append(None)
        if refused is not None:
            return
        if not records:
            self._outcomes[number] = _NO_RECORDS
            return
        self._size_bytes += len(records)
        partition = self._request.services.partitions.find(topic, PartitionIndex(index))
        if isinstance(partition, ErrorCode):
            self._outcomes[number] = ProduceOutcome(partition)
            return
        self._partitions[number] = partition
        self._unknown += 1
        partition.produce(
            records,
            acks=self._message.acks,
            timeout_ms=self._timeout_ms,
            on_done=functools.partial(self._done, number),
            transaction=self._transaction,
        )

    def _done(self, number: int, outcome: ProduceOutcome) -> None:
        self._outcomes[number] = outcome
        self._unknown -= 1
        if self._unknown:
            return
        response, all_known = self._response, self._all_known
        if response is not None:
            response.respond(self._encode())
        elif all_known is not None and not all_known.done():
            all_known.set_result(None)

    def _without_response(self) -> NoResponse:
        if any(
            outcome is not None and outcome.error is not ErrorCode.NONE
            for outcome in self._outcomes
        ):
            raise CloseConnection(
                "a produce request with acks=0 failed, and closing the connection is the only way to report this"
            )
        return NO_RESPONSE

    def _encode(self) -> Encoded:
        topics: list[ProducedTopic] = []
        leaders: list[CurrentLeader] = []
        number = 0
        for name, topic_id, partitions in self._message.topics:
            topic: Topic = topic_id if name is None else name
            responses = []
            for index, _ in partitions:
                responses.append(self._response_of(number, topic, index, leaders))
                number += 1
            topics.append((name, topic_id, responses))
        return _encoded(self._request, topics, leaders)

    def _encode_steps(self) -> Generator[None, None, Encoded]:
        """Return the same as `_encode`. Yields after every few partitions."""
        topics: list[ProducedTopic] = []
        leaders: list[CurrentLeader] = []
        number = 0
        for name, topic_id, partitions in self._message.topics:
            topic: Topic = topic_id if name is None else name
            responses = []
            for index, _ in partitions:
                responses.append(self._response_of(number, topic, index, leaders))
                number += 1
                if number % _RESPONSES_A_STEP == 0:
                    yield
            topics.append((name, topic_id, responses))
        request = self._request
        body = yield from encode_produce_steps(
            request.version,
            topics,
            throttle_ms=request.throttle_ms,
            endpoints=endpoints_of(request, leaders) if leaders else (),
        )
        return Encoded((body,), len(body))

    def _response_of(
        self, number: int, topic: Topic, index: int, leaders: list[CurrentLeader]
    ) -> PartitionResponse | PlainResponse:
        outcome = self._outcomes[number]
        assert outcome is not None, (topic, index)
        return _result(self._request, topic, index, self._partitions[number], outcome, leaders)


def _look_at(
    request: Request[ProduceRequest],
    name: TopicName | None,
    topic_id: TopicId,
    refused_all: ProduceOutcome | None = None,
) -> tuple[Topic, ProduceOutcome | None]:
    """Return the topic's name or id, as in the request, and the error for all partitions of the topic, or None."""
    topic: Topic = topic_id if name is None else name
    if refused_all is not None:
        return topic, refused_all
    services = request.services
    if name is None:
        state = services.image.topics.get(topic_id)
        if state is None:
            return topic, _UNKNOWN_TOPIC_ID
        name = state.name
    if services.authorizer.is_on and not request.allows_topic(Operation.WRITE, name):
        return topic, _NOT_ALLOWED
    return topic, None


def _throttle(request: Request[ProduceRequest], size_bytes: int) -> None:
    """Count the bytes of all batches against the client's quota."""
    quotas = request.services.quotas
    if not quotas.is_empty:
        request.throttle_ms = quotas.throttle_ms(
            PRODUCE_RATE, request.session.principal, request.client_id, size_bytes
        )


def _encoded(
    request: Request[ProduceRequest],
    topics: list[ProducedTopic],
    leaders: list[CurrentLeader],
) -> Encoded:
    body = encode_produce_response(
        request.version,
        topics,
        throttle_ms=request.throttle_ms,
        endpoints=endpoints_of(request, leaders) if leaders else (),
    )
    return Encoded((body,), len(body))


def _result(
    request: Request[ProduceRequest],
    topic: Topic,
    index: int,
    partition: Partition | None,
    outcome: ProduceOutcome,
    leaders: list[CurrentLeader],
) -> PartitionResponse | PlainResponse:
    """Return one partition's entry of the response. A leader that the entry contains is appended to `leaders`."""
    if partition is not None:
        outcome = partition.gate_produce(outcome, acks=request.message.acks)
    error = outcome.error
    if error is _NONE:
        return (
            index,
            0,
            outcome.base_offset,
            outcome.log_append_time_ms,
            outcome.log_start_offset,
        )
    if error is ErrorCode.TRANSACTION_ABORTABLE and request.version < _ABORTABLE_FROM:
        error = ErrorCode.INVALID_TXN_STATE
    leader = None
    if error.leader_moved:
        now = request.services.partitions.leader_of(topic, PartitionIndex(index))
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
