"""Produce: batches from the client's frame to the leaders' logs, without a copy and without a task.

All partitions are appended before this returns, in the order of the request, so the next request
of the connection may be begun while this one waits for replicas (`is_ordered`). Errors are per
partition. acks=0 is answered by nothing at all; Kafka closes the connection on an error there, so
that the client notices: so do we.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Final

from odradek_broker.access.quotas import PRODUCE_RATE
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import (
    NO_ANSWER,
    CloseConnection,
    Encoded,
    NoAnswer,
    Request,
)
from odradek_broker.kafka.requests.cluster.brokers import endpoints_of
from odradek_broker.replication.outcomes import ProduceOutcome
from odradek_broker.replication.partition_service import Topic
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.identity import NO_OFFSET, PartitionIndex, TopicName
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.leader_hints import CurrentLeader
from odradek_protocol.kafka.produce import (
    PartitionAnswer,
    ProduceRequest,
    ProduceTopic,
    TopicAnswer,
    decode_produce,
    encode_produce_response,
)

TIMEOUT_MS_MAX: Final = 600_000
PARTITIONS_AT_ONCE: Final = 256
"""A request for more is appended in turns with everybody else: 8 ms of the loop."""
_UNKNOWN_TOPIC_ID: Final = ProduceOutcome(ErrorCode.UNKNOWN_TOPIC_ID)
_NOT_ALLOWED: Final = ProduceOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_NO_RECORDS: Final = ProduceOutcome(ErrorCode.INVALID_RECORD, message="there are no records")
_ID_NOT_ALLOWED: Final = ProduceOutcome(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


@handles(ApiKey.PRODUCE, decode=decode_produce, is_ordered=True)
def produce(request: Request) -> Encoded | NoAnswer | Awaitable[Encoded | NoAnswer]:
    """Append everything; the answer is there when all of it is replicated as `acks` says."""
    topics = request.message.topics
    if sum([len(topic.partitions) for topic in topics]) > PARTITIONS_AT_ONCE:
        return _Produce(request).start_in_turns()
    return _Produce(request).start()


class _Produce:
    """One request under way: counts the partitions whose outcome is still unknown."""

    __slots__ = ("_answer", "_message", "_outcomes", "_request", "_unknown")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._message: ProduceRequest = request.message
        self._outcomes: list[list[ProduceOutcome | None]] = []
        self._unknown = 1  # ours, until all partitions were begun
        self._answer: asyncio.Future[Encoded] | None = None

    def start(self) -> Encoded | NoAnswer | asyncio.Future[Encoded]:
        for _ in self._append_all():
            pass
        return self._appended()

    async def start_in_turns(self) -> Encoded | NoAnswer:
        """Of many partitions: with turns for others between them."""
        await self._request.pace.run(self._append_all())
        appended = self._appended()
        return await appended if isinstance(appended, asyncio.Future) else appended

    def _append_all(self) -> Generator[None, None, None]:
        """Begin every partition, with a step after each."""
        message = self._message
        timeout_ms = min(max(message.timeout_ms, 0), TIMEOUT_MS_MAX)
        refused_all = self._refused_all()
        size_bytes = 0
        for topic in message.topics:
            name = self._name(topic)
            outcomes: list[ProduceOutcome | None] = [None] * len(topic.partitions)
            self._outcomes.append(outcomes)
            refused = refused_all or self._refused(name)
            for number, (index, records) in enumerate(topic.partitions):
                if refused is not None:
                    outcomes[number] = refused
                elif not records:
                    outcomes[number] = _NO_RECORDS
                else:
                    assert name is not None
                    size_bytes += len(records)
                    self._unknown += 1
                    self._append(outcomes, number, topic, name, index, records, timeout_ms)
                yield
        self._unknown -= 1
        self._throttle(size_bytes)

    def _appended(self) -> Encoded | NoAnswer | asyncio.Future[Encoded]:
        if self._message.acks == 0:
            return self._unanswered()
        if not self._unknown:
            return self._encode()
        self._answer = asyncio.get_running_loop().create_future()
        return self._answer

    def _append(
        self,
        outcomes: list[ProduceOutcome | None],
        number: int,
        topic: ProduceTopic,
        name: TopicName,
        index: int,
        records: memoryview,
        timeout_ms: int,
    ) -> None:
        def done(outcome: ProduceOutcome) -> None:
            outcomes[number] = outcome
            self._unknown -= 1
            answer = self._answer
            if not self._unknown and answer is not None and not answer.done():
                answer.set_result(self._encode())

        self._request.services.partitions.produce(
            topic.topic_id if topic.name is None else name,
            PartitionIndex(index),
            records,
            acks=self._message.acks,
            timeout_ms=timeout_ms,
            on_done=done,
        )

    def _name(self, topic: ProduceTopic) -> TopicName | None:
        if topic.name is not None:
            return topic.name
        found = self._request.services.image.topics.get(topic.topic_id)
        return None if found is None else found.name

    def _refused_all(self) -> ProduceOutcome | None:
        transactional_id = self._message.transactional_id
        if transactional_id is not None and not self._request.allows(
            Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            return _ID_NOT_ALLOWED
        return None

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

    def _unanswered(self) -> NoAnswer:
        if any(
            one is not None and one.error is not ErrorCode.NONE
            for outcomes in self._outcomes
            for one in outcomes
        ):
            raise CloseConnection("a produce with acks=0 failed, and nothing else would tell")
        return NO_ANSWER

    def _encode(self) -> Encoded:
        request = self._request
        topics = []
        leaders: list[CurrentLeader] = []
        for topic, outcomes in zip(self._message.topics, self._outcomes, strict=True):
            ref: Topic = topic.topic_id if topic.name is None else topic.name
            answers = []
            for partition, outcome in zip(topic.partitions, outcomes, strict=True):
                assert outcome is not None, (ref, partition.partition)
                answers.append(self._partition_answer(ref, partition.partition, outcome, leaders))
            topics.append(TopicAnswer(topic.name, topic.topic_id, answers))
        body = encode_produce_response(
            request.version,
            topics,
            throttle_ms=request.throttle_ms,
            endpoints=endpoints_of(request, leaders) if leaders else (),
        )
        return Encoded((body,), len(body))

    def _partition_answer(
        self, topic: Topic, index: int, outcome: ProduceOutcome, leaders: list[CurrentLeader]
    ) -> PartitionAnswer:
        partitions = self._request.services.partitions
        outcome = partitions.gate_produce(
            topic, PartitionIndex(index), outcome, acks=self._message.acks
        )
        error = outcome.error
        if error is ErrorCode.NONE:
            return PartitionAnswer(
                index, 0, outcome.base_offset, outcome.log_append_time_ms, outcome.log_start_offset
            )
        leader = None
        if error.leader_moved:
            now = partitions.leader_of(topic, PartitionIndex(index))
            leader = CurrentLeader(now.broker_id, now.leader_epoch)
            leaders.append(leader)
        return PartitionAnswer(
            index,
            error,
            NO_OFFSET,
            -1,
            outcome.log_start_offset,
            outcome.message or None,
            leader,
            outcome.invalid_records,
        )
