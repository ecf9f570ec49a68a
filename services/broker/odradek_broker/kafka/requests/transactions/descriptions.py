"""ListTransactions, DescribeTransactions and DescribeProducers, for operators (KIP-664)."""

from __future__ import annotations

from collections.abc import Callable

import re2

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request, find_topic
from odradek_broker.kafka.requests.transactions import coordinator, decided, has_transactions
from odradek_broker.transactions.transaction import (
    NO_TIME,
    Transaction,
    TransactionalId,
    TransactionStatus,
)
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.identity import PartitionIndex
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from odradek_protocol.metadata.image import TopicState

PATTERN_BYTES_MAX = 4_096
_Listing = ListTransactionsResponse.TransactionState
_Description = DescribeTransactionsResponse.TransactionState
_ProducersTopic = DescribeProducersResponse.TopicResponse
_ProducersPartition = _ProducersTopic.PartitionResponse
_Producer = _ProducersPartition.ProducerState
_STATES = {status.kafka_name: status for status in TransactionStatus}


@handles(ListTransactionsRequest, while_=has_transactions)
async def list_transactions(request: Request[ListTransactionsRequest]) -> ListTransactionsResponse:
    """List the transactional ids that this broker coordinates. Unknown state filters are listed in the response."""
    message = request.message
    unknown = [name for name in message.state_filters if name not in _STATES]
    statuses = {_STATES[name] for name in message.state_filters if name in _STATES}
    pattern = message.transactional_id_pattern if request.version >= 2 else None
    matches = _matcher(pattern)
    if matches is None:
        return _no_list(ErrorCode.INVALID_REGULAR_EXPRESSION)
    older_than_ms = message.duration_filter if request.version >= 1 else -1
    try:
        listings = coordinator(request).listings()
    except CoordinatorError as error:
        return _no_list(error.code)
    now_ms = coordinator(request).wall_ms()
    states = []
    async for transactional_id, state in request.in_turns(listings):
        if message.state_filters and state.status not in statuses:
            continue
        if message.producer_id_filters and state.producer_id not in message.producer_id_filters:
            continue
        if older_than_ms >= 0 and not _is_older(state, older_than_ms, now_ms):
            continue
        if not matches(transactional_id) or not _may_see(request, transactional_id):
            continue
        states.append(
            _Listing(
                transactional_id=transactional_id,
                producer_id=state.producer_id,
                transaction_state=state.status.kafka_name,
            )
        )
    return ListTransactionsResponse(
        error_code=ErrorCode.NONE, unknown_state_filters=unknown, transaction_states=states
    )


def _no_list(code: ErrorCode) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        error_code=code, unknown_state_filters=[], transaction_states=[]
    )


def _matcher(pattern: str | None) -> Callable[[str], bool] | None:
    """Return a function that returns whether a transactional id matches `pattern`, an RE2 expression. Return None if
    the pattern is too long or not valid.
    """
    if not pattern:
        return lambda _: True
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        return None
    try:
        compiled = re2.compile(pattern)
    except re2.error:
        return None
    return lambda name: compiled.fullmatch(name) is not None


def _is_older(state: Transaction, duration_ms: int, now_ms: int) -> bool:
    return state.start_ms != NO_TIME and now_ms - state.start_ms > duration_ms


def _may_see(request: AnyRequest, transactional_id: str) -> bool:
    return request.sees(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)


@handles(DescribeTransactionsRequest, while_=has_transactions)
async def describe_transactions(
    request: Request[DescribeTransactionsRequest],
) -> DescribeTransactionsResponse:
    """Describe transactional ids. Partitions of topics that the caller may not describe are omitted."""
    return DescribeTransactionsResponse(
        transaction_states=[
            await _describe(request, transactional_id)
            async for transactional_id in request.in_turns(request.message.transactional_ids)
        ]
    )


async def _describe(request: AnyRequest, transactional_id: str) -> _Description:
    def refused(code: ErrorCode) -> _Description:
        return _Description(
            error_code=code, transactional_id=transactional_id, transaction_state="", topics=[]
        )

    if not transactional_id:
        return refused(ErrorCode.INVALID_REQUEST)
    if not request.allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    state = await decided(coordinator(request).describe(TransactionalId(transactional_id)))
    if isinstance(state, ErrorCode):
        return refused(state)
    if state is None:
        return refused(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    topics: dict[str, list[int]] = {}
    partitions = sorted(state.partitions, key=lambda p: (p.topic, p.partition))
    async for partition in request.in_turns(partitions):
        if request.sees(Operation.DESCRIBE, ResourceType.TOPIC, partition.topic):
            topics.setdefault(partition.topic, []).append(partition.partition)
    return _Description(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=state.status.kafka_name,
        transaction_timeout_ms=state.timeout_ms,
        transaction_start_time_ms=state.start_ms,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        topics=[
            _Description.TopicData(topic=topic, partitions=indexes)
            for topic, indexes in topics.items()
        ],
    )


@handles(DescribeProducersRequest, while_=has_transactions)
async def describe_producers(
    request: Request[DescribeProducersRequest],
) -> DescribeProducersResponse:
    """Describe the producers of each requested partition that this broker leads."""
    topics = []
    async for topic in request.in_turns(request.message.topics):
        topic_state = find_topic(request, topic.name, None, Operation.READ)
        topics.append(
            _ProducersTopic(
                name=topic.name,
                partitions=[
                    _describe_partition(request, topic_state, index)
                    async for index in request.in_turns(topic.partition_indexes)
                ],
            )
        )
    return DescribeProducersResponse(topics=topics)


def _describe_partition(
    request: AnyRequest, topic: TopicState | ErrorCode, index: int
) -> _ProducersPartition:
    def refused(code: ErrorCode) -> _ProducersPartition:
        return _ProducersPartition(
            partition_index=index, error_code=code, error_message=code.name, active_producers=[]
        )

    if isinstance(topic, ErrorCode):
        return refused(topic)
    partition = request.services.partitions.find(topic.topic_id, PartitionIndex(index))
    if isinstance(partition, ErrorCode):
        return refused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if partition is ErrorCode.UNKNOWN_TOPIC_ID
            else partition
        )
    producers = partition.producers()
    if isinstance(producers, ErrorCode):
        return refused(producers)
    return _ProducersPartition(
        partition_index=index,
        error_code=ErrorCode.NONE,
        error_message=None,
        active_producers=[
            _Producer(
                producer_id=producer_id,
                producer_epoch=entry.epoch,
                last_sequence=entry.batches[-1].last_sequence if entry.batches else -1,
                last_timestamp=entry.last_timestamp_ms,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.transaction_first_offset,
            )
            for producer_id, entry in producers.items()
        ],
    )
