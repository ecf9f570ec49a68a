"""TxnOffsetCommit: offsets that are committed for a group when the producer's transaction commits (KIP-447).

Before version 5, the client must have added the group's partition of `__consumer_offsets` to the transaction, by
AddOffsetsToTxn. From version 5 on, the group coordinator adds this partition (KIP-890). Version 6 identifies topics by
id (KIP-1319), as OffsetCommit version 10 does.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from odradek_broker.groups.messages import CommitInTransaction, CommitOffsets, CommittedOffset
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request, find_topic
from odradek_broker.kafka.requests.transactions import (
    as_version,
    decided,
    has_transactions,
    may_write,
)
from odradek_broker.partition.events import RegistrationMode
from odradek_protocol.access import Operation
from odradek_protocol.identity import (
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    uuid_of,
)
from odradek_protocol.metadata.image import TopicState

_MEMBERS_FROM: Final = 3
_LEADER_EPOCHS_FROM: Final = 2
_LEADERS_ADD_FROM: Final = 5
_TOPIC_IDS_FROM: Final = 6
OFFSETS_MAX: Final = 10_000
_Topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Partition = _Topic.TxnOffsetCommitResponsePartition
_Reference: TypeAlias = tuple[str | bytes, int]
"""A partition as the request identifies it: the name or the id of its topic, and its index."""


@handles(TxnOffsetCommitRequest, while_=has_transactions)
async def txn_offset_commit(request: Request[TxnOffsetCommitRequest]) -> TxnOffsetCommitResponse:
    """Add offsets to the producer's transaction. A partition that does not exist gets its own error code."""
    message = request.message
    refused = _refused(request)
    if refused is not ErrorCode.NONE:
        return await _response(request, {}, refused)
    by_id = request.version >= _TOPIC_IDS_FROM
    codes: dict[_Reference, ErrorCode] = {}
    references: dict[TopicPartition, _Reference] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    async for topic in request.in_turns(message.topics):
        topic_id = bytes(topic.topic_id or NO_TOPIC_ID)
        topic_state = find_topic(request, None if by_id else topic.name, topic_id, Operation.READ)
        async for item in request.in_turns(topic.partitions):
            reference = (topic_id if by_id else topic.name, item.partition_index)
            partition = _partition(topic_state, item.partition_index)
            if isinstance(partition, ErrorCode):
                codes[reference] = partition
                continue
            references[partition] = reference
            epoch = NO_LEADER_EPOCH
            if request.version >= _LEADER_EPOCHS_FROM:
                epoch = LeaderEpoch(item.committed_leader_epoch)
            offsets[partition] = CommittedOffset(
                offset=Offset(item.committed_offset),
                leader_epoch=epoch,
                metadata=item.committed_metadata or "",
            )
    if len(offsets) > OFFSETS_MAX:
        return await _response(request, {}, ErrorCode.INVALID_REQUEST)
    if not offsets:
        return await _response(request, codes, ErrorCode.NONE)
    has_member = request.version >= _MEMBERS_FROM
    is_added_here = request.version >= _LEADERS_ADD_FROM
    transactional_offsets = request.services.transactional_offsets
    assert transactional_offsets is not None, "a broker with transactions has TransactionalOffsets"
    committed = await decided(
        transactional_offsets.commit(
            CommitInTransaction(
                commit=CommitOffsets(
                    group_id=GroupId(message.group_id),
                    member_id=MemberId(message.member_id if has_member else ""),
                    instance_id=message.group_instance_id if has_member else None,
                    generation_or_epoch=message.generation_id if has_member else -1,
                    offsets=offsets,
                ),
                producer_id=ProducerId(message.producer_id),
                producer_epoch=ProducerEpoch(message.producer_epoch),
            ),
            transactional_id=message.transactional_id,
            mode=RegistrationMode.ADD if is_added_here else RegistrationMode.VERIFY,
            connection=None if is_added_here else request.session.connection_number,
        )
    )
    if isinstance(committed, ErrorCode):
        return await _response(request, codes, committed)
    if committed.error is not ErrorCode.NONE:
        return await _response(request, codes, committed.error)
    for partition, code in committed.partitions.items():
        codes[references[partition]] = code
    return await _response(request, codes, ErrorCode.NONE)


def _refused(request: Request[TxnOffsetCommitRequest]) -> ErrorCode:
    message = request.message
    if not message.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if not may_write(request, message.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not request.allows_group(Operation.READ, message.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def _partition(topic: TopicState | ErrorCode, index: int) -> TopicPartition | ErrorCode:
    if isinstance(topic, ErrorCode):
        return topic
    if not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return TopicPartition(topic.name, PartitionIndex(index))


async def _response(
    request: Request[TxnOffsetCommitRequest],
    codes: dict[_Reference, ErrorCode],
    error: ErrorCode,
) -> TxnOffsetCommitResponse:
    """Return the response. A partition that is not in `codes` gets the code `error`."""
    by_id = request.version >= _TOPIC_IDS_FROM

    def code_of(name: str, topic_id: bytes | None, index: int) -> ErrorCode:
        topic = bytes(topic_id or NO_TOPIC_ID) if by_id else name
        return _as_version(request, codes.get((topic, index), error))

    return TxnOffsetCommitResponse(
        topics=[
            _Topic(
                name=topic.name,
                topic_id=uuid_of(topic.topic_id or NO_TOPIC_ID),
                partitions=[
                    _Partition(
                        partition_index=item.partition_index,
                        error_code=code_of(topic.name, topic.topic_id, item.partition_index),
                    )
                    async for item in request.in_turns(topic.partitions)
                ],
            )
            async for topic in request.in_turns(request.message.topics)
        ]
    )


def _as_version(request: AnyRequest, code: ErrorCode) -> ErrorCode:
    # Members of the consumer protocol (KIP-848) send their member epoch as the generation. Only clients of version 6
    # and later know the error code STALE_MEMBER_EPOCH.
    if code is ErrorCode.STALE_MEMBER_EPOCH and request.version < _TOPIC_IDS_FROM:
        return ErrorCode.ILLEGAL_GENERATION
    return as_version(request, code)
