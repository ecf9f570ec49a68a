"""AddPartitionsToTxn and AddOffsetsToTxn: add partitions to a producer's transaction.

Clients send versions 0 to 3 of AddPartitionsToTxn, for the feature transaction.version 0 and 1. Brokers send later
versions, which add or verify partitions for several producers at once (KIP-890). Either all partitions of a transaction
are added or none: if one is refused, the others get OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_broker.kafka.requests.groups import coordinator as group_coordinator
from odradek_broker.kafka.requests.transactions import (
    as_version,
    coordinator,
    decided,
    has_transactions,
    identity_of,
    may_write,
)
from odradek_broker.transactions.identity import ProducerIdentity
from odradek_broker.transactions.messages import AddPartitions, VerifyPartitions
from odradek_broker.transactions.transaction import TransactionalId, TransactionPartition
from odradek_protocol.access import Operation
from odradek_protocol.identity import PartitionIndex
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from odradek_protocol.topic_names import INTERNAL_TOPICS

_FOR_BROKERS_FROM: Final = 4
_Topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_Partition = _Topic.AddPartitionsToTxnPartitionResult
_BatchedTopic = AddPartitionsToTxnResponse.AddPartitionsToTxnResult.AddPartitionsToTxnTopicResult
_BatchedPartition = _BatchedTopic.AddPartitionsToTxnPartitionResult
_Transaction = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
_NamedTopic: TypeAlias = (
    AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    | AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic
)
_Codes: TypeAlias = Mapping[tuple[str, int], ErrorCode]


@handles(AddPartitionsToTxnRequest, while_=has_transactions)
async def add_partitions_to_txn(
    request: Request[AddPartitionsToTxnRequest],
) -> AddPartitionsToTxnResponse:
    """Add partitions to the producer's open transaction. If no transaction is open, begin one."""
    if request.version >= _FOR_BROKERS_FROM:
        return await _for_brokers(request)
    message = request.message
    topics = message.v3_and_below_topics
    transactional_id = message.v3_and_below_transactional_id
    if not transactional_id:
        codes = _all(topics, ErrorCode.INVALID_REQUEST)
    elif not may_write(request, transactional_id):
        codes = _all(topics, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    else:
        codes = await _add(
            request,
            TransactionalId(transactional_id),
            identity_of(message.v3_and_below_producer_id, message.v3_and_below_producer_epoch),
            topics,
        )
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            _Topic(
                name=topic.name,
                results_by_partition=[
                    _Partition(
                        partition_index=index,
                        partition_error_code=as_version(request, codes[topic.name, index]),
                    )
                    async for index in request.in_turns(topic.partitions)
                ],
            )
            async for topic in request.in_turns(topics)
        ]
    )


async def _for_brokers(request: Request[AddPartitionsToTxnRequest]) -> AddPartitionsToTxnResponse:
    if not request.allows_cluster(Operation.CLUSTER_ACTION):
        return AddPartitionsToTxnResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, results_by_transaction=[]
        )
    results = []
    async for transaction in request.in_turns(request.message.transactions):
        identity = identity_of(transaction.producer_id, transaction.producer_epoch)
        transactional_id = TransactionalId(transaction.transactional_id)
        add = _verify if transaction.verify_only else _add
        codes = await add(request, transactional_id, identity, transaction.topics)
        results.append(
            _Transaction(
                transactional_id=transactional_id,
                topic_results=[
                    _BatchedTopic(
                        name=topic.name,
                        results_by_partition=[
                            _BatchedPartition(
                                partition_index=index,
                                partition_error_code=as_version(request, codes[topic.name, index]),
                            )
                            async for index in request.in_turns(topic.partitions)
                        ],
                    )
                    async for topic in request.in_turns(transaction.topics)
                ],
            )
        )
    return AddPartitionsToTxnResponse(error_code=ErrorCode.NONE, results_by_transaction=results)


async def _add(
    request: AnyRequest,
    transactional_id: TransactionalId,
    identity: ProducerIdentity,
    topics: Iterable[_NamedTopic],
) -> _Codes:
    is_tv2 = request.version >= _FOR_BROKERS_FROM
    partitions, refused = await _partitions(request, topics, is_client=not is_tv2)
    if refused:
        return {**dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED), **refused}
    added = await decided(
        coordinator(request).add_partitions(
            AddPartitions(
                transactional_id=transactional_id,
                identity=identity,
                partitions=tuple(partitions.values()),
                is_tv2=is_tv2,
            ),
            connection=None if is_tv2 else request.session.connection_number,
        )
    )
    return dict.fromkeys(partitions, added if isinstance(added, ErrorCode) else added.error)


async def _verify(
    request: AnyRequest,
    transactional_id: TransactionalId,
    identity: ProducerIdentity,
    topics: Iterable[_NamedTopic],
) -> _Codes:
    partitions, refused = await _partitions(request, topics, is_client=False)
    verified = await decided(
        coordinator(request).verify_partitions(
            VerifyPartitions(
                transactional_id=transactional_id,
                identity=identity,
                partitions=tuple(partitions.values()),
            )
        )
    )
    if isinstance(verified, ErrorCode):
        return {**dict.fromkeys(partitions, verified), **refused}
    codes = {key: verified.errors[partition] for key, partition in partitions.items()}
    return {**codes, **refused}


async def _partitions(
    request: AnyRequest, topics: Iterable[_NamedTopic], *, is_client: bool
) -> tuple[dict[tuple[str, int], TransactionPartition], dict[tuple[str, int], ErrorCode]]:
    """Return the partitions that may be added, and the error codes of the other partitions of the request."""
    partitions: dict[tuple[str, int], TransactionPartition] = {}
    refused: dict[tuple[str, int], ErrorCode] = {}
    image = request.services.image
    async for topic in request.in_turns(topics):
        error = ErrorCode.NONE
        # Clients add a partition of `__consumer_offsets` only by AddOffsetsToTxn, and never write to other internal
        # topics.
        if is_client and (
            topic.name in INTERNAL_TOPICS or not request.allows_topic(Operation.WRITE, topic.name)
        ):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        state = image.topic(topic.name)
        async for index in request.in_turns(topic.partitions):
            key = (topic.name, index)
            if error is not ErrorCode.NONE:
                refused[key] = error
            elif state is None or not 0 <= index < len(state.partitions):
                refused[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                partitions[key] = TransactionPartition(
                    state.topic_id, state.name, PartitionIndex(index)
                )
    return partitions, refused


def _all(topics: Iterable[_NamedTopic], code: ErrorCode) -> _Codes:
    return {(topic.name, index): code for topic in topics for index in topic.partitions}


@handles(AddOffsetsToTxnRequest, while_=has_transactions)
async def add_offsets_to_txn(request: Request[AddOffsetsToTxnRequest]) -> AddOffsetsToTxnResponse:
    """Add the group's partition of `__consumer_offsets` to the transaction."""
    code = await _add_offsets(request)
    return AddOffsetsToTxnResponse(error_code=as_version(request, code))


async def _add_offsets(request: Request[AddOffsetsToTxnRequest]) -> ErrorCode:
    message = request.message
    if not message.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if not may_write(request, message.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not request.allows_group(Operation.READ, message.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    placement = group_coordinator(request).placement
    if placement.partition_of(message.group_id) is None:
        await placement.ensure_topic()
    partition = placement.partition_of(message.group_id)
    topic = request.services.image.topic(placement.topic)
    if topic is None or partition is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    added = await decided(
        coordinator(request).add_partitions(
            AddPartitions(
                transactional_id=TransactionalId(message.transactional_id),
                identity=identity_of(message.producer_id, message.producer_epoch),
                partitions=(TransactionPartition(topic.topic_id, topic.name, partition),),
                is_tv2=False,
            ),
            connection=request.session.connection_number,
        )
    )
    return added if isinstance(added, ErrorCode) else added.error
