"""OffsetCommit and OffsetDelete (KIP-496): set and delete the offsets from which a group continues to read.

Partitions that the caller may not read, or that do not exist, get an error before the group coordinator is called. As
in Kafka, if all partitions are refused in this way, the response does not reveal whether the member exists. Version 10
identifies topics by id, so that no offset is committed for a topic that was deleted and created again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import Final, TypeAlias

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import CommitOffsets, CommittedOffset, OffsetsAnswer
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Encoded, Request, at_once, encoded, find_topic
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_protocol.access import Operation
from odradek_protocol.identity import (
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.group_messages import (
    CommittedTopic,
    OffsetCommit,
    decode_offset_commit,
    decode_offset_commit_steps,
    encode_offset_commit_response,
    offset_commit_response,
)
from odradek_protocol.kafka.messages import (
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    uuid_of,
)
from odradek_protocol.metadata.image import TopicState
from odradek_runtime.clock import wall_ms

_ResponseTopic = OffsetCommitResponse.OffsetCommitResponseTopic
_ResponsePartition = _ResponseTopic.OffsetCommitResponsePartition
_DeletedTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
_DeletedPartition = _DeletedTopic.OffsetDeleteResponsePartition
_CONSUMER_PROTOCOL_FROM: Final = 9
_TOPIC_IDS_FROM: Final = 10
COMMITTED_WITHOUT_TURNS: Final = 64
"""A request with more partitions is handled in steps, between which the event loop does other work."""
COMMITTED_AT_ONCE: Final = 500
"""The maximum number of offsets that the coordinator commits in one step, which takes 5 ms of the event loop and writes
one batch. Some steps of a request may fail although others succeed. Each partition has its own error code, as if the
client had sent several requests.
"""
_TIMESTAMP_MAX: Final = (1 << 63) - 1  # timestamps in the records of offsets are int64
_Codes: TypeAlias = Mapping[TopicPartition, ErrorCode]
_CommitResponse: TypeAlias = OffsetCommitResponse | Encoded


async def _refuse(request: Request[OffsetCommit], code: ErrorCode) -> OffsetCommitResponse:
    return await _response_in_turns(request, lambda *_: code)


@handles(
    OffsetCommit,
    decode=decode_offset_commit,
    decode_in_steps=decode_offset_commit_steps,
    refuse=_refuse,
    needs=has_groups,
)
def offset_commit(
    request: Request[OffsetCommit],
) -> _CommitResponse | Awaitable[_CommitResponse]:
    """Commit the offsets of partitions that exist. Each partition has its own result."""
    if request.message.partition_count > COMMITTED_WITHOUT_TURNS:
        return _commit_in_turns(request)
    offsets: dict[TopicPartition, CommittedOffset] = {}
    partitions: list[TopicPartition | ErrorCode] = []
    expire_ms = _expire_ms(request)
    for name, topic_id, items in request.message.topics:
        topic = _find(request, name, topic_id)
        for item in items:
            partition = _partition(topic, item[0])
            partitions.append(partition)
            if not isinstance(partition, ErrorCode):
                offsets[partition] = _committed(item, expire_ms)
    if not offsets:
        return _response(request, partitions, {})

    def response_of(outcome: OffsetsAnswer | CoordinatorError) -> _CommitResponse:
        return _response(request, partitions, _codes(request, offsets, outcome))

    try:
        response = coordinator(request).commit_soon(_commit(request, offsets), response_of)
    except CoordinatorError as error:
        return response_of(error)
    return at_once(response)


async def _commit_in_turns(request: Request[OffsetCommit]) -> OffsetCommitResponse:
    """Commit many offsets in steps, between which the event loop does other work."""
    message = request.message
    expire_ms = _expire_ms(request)
    topics = {
        (name, topic_id): _find(request, name, topic_id)
        async for name, topic_id, _ in request.in_turns(message.topics)
    }
    offsets: dict[TopicPartition, CommittedOffset] = {}
    async for name, topic_id, items in request.in_turns(message.topics):
        async for item in request.in_turns(items):
            partition = _partition(topics[name, topic_id], item[0])
            if not isinstance(partition, ErrorCode):
                offsets[partition] = _committed(item, expire_ms)
    codes: dict[TopicPartition, ErrorCode] = {}
    entries = iter(offsets.items())
    while piece := dict(islice(entries, COMMITTED_AT_ONCE)):
        outcome: OffsetsAnswer | CoordinatorError
        try:
            outcome = await coordinator(request).commit(_commit(request, piece))
        except CoordinatorError as error:
            outcome = error
        codes |= _codes(request, piece, outcome)
        await request.pace.turn()

    def code_of(name: str, topic_id: bytes, index: int) -> ErrorCode:
        partition = _partition(topics[name, topic_id], index)
        return partition if isinstance(partition, ErrorCode) else codes[partition]

    return await _response_in_turns(request, code_of)


def _expire_ms(request: Request[OffsetCommit]) -> int:
    retention_ms = request.message.retention_ms
    return min(wall_ms() + retention_ms, _TIMESTAMP_MAX) if retention_ms >= 0 else -1


def _commit(
    request: Request[OffsetCommit], offsets: Mapping[TopicPartition, CommittedOffset]
) -> CommitOffsets:
    message = request.message
    return CommitOffsets(
        group_id=GroupId(message.group_id),
        member_id=MemberId(message.member_id),
        instance_id=message.instance_id,
        generation_or_epoch=message.generation_or_epoch,
        offsets=offsets,
    )


def _committed(item: tuple[int, int, int, str | None], expire_ms: int) -> CommittedOffset:
    _, offset, epoch, metadata = item
    return CommittedOffset(
        offset=Offset(offset),
        leader_epoch=LeaderEpoch(epoch),
        metadata=metadata or "",
        expire_timestamp_ms=expire_ms,
    )


def _codes(
    request: AnyRequest,
    offsets: Iterable[TopicPartition],
    outcome: OffsetsAnswer | CoordinatorError,
) -> _Codes:
    if isinstance(outcome, CoordinatorError):
        return dict.fromkeys(offsets, outcome.code)
    if outcome.error is not ErrorCode.NONE:
        return dict.fromkeys(offsets, _as_version(request, outcome.error))
    return outcome.partitions


def _find(request: AnyRequest, name: str, topic_id: bytes) -> TopicState | ErrorCode:
    by_id = request.version >= _TOPIC_IDS_FROM
    return find_topic(request, None if by_id else name, topic_id, Operation.READ)


def _partition(topic: TopicState | ErrorCode, index: int) -> TopicPartition | ErrorCode:
    if isinstance(topic, ErrorCode):
        return topic
    if not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return TopicPartition(topic.name, PartitionIndex(index))


def _as_version(request: AnyRequest, code: ErrorCode) -> ErrorCode:
    """Return `code`, or UNSUPPORTED_VERSION for STALE_MEMBER_EPOCH if the request is older than KIP-848, because its
    client does not know member epochs.
    """
    if code is ErrorCode.STALE_MEMBER_EPOCH and request.version < _CONSUMER_PROTOCOL_FROM:
        return ErrorCode.UNSUPPORTED_VERSION
    return code


def _response(
    request: Request[OffsetCommit],
    partitions: Iterable[TopicPartition | ErrorCode],
    codes: _Codes,
) -> _CommitResponse:
    """Return the response. `partitions` has an item for each partition of the request, in order: the partition, whose
    code is in `codes`, or the error that refuses it.
    """
    in_order = iter(partitions)
    topics: list[CommittedTopic] = []
    for name, topic_id, items in request.message.topics:
        results = []
        for item in items:
            partition = next(in_order)
            code = partition if isinstance(partition, ErrorCode) else codes[partition]
            results.append((item[0], int(code)))
        topics.append((name, topic_id, results))
    if request.services.quotas.counts_time:
        return offset_commit_response(topics)
    return encoded(encode_offset_commit_response(request.version, topics))


async def _response_in_turns(
    request: Request[OffsetCommit],
    code_of: Callable[[str, bytes, int], ErrorCode],
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            _ResponseTopic(
                name=name,
                topic_id=uuid_of(topic_id),
                partitions=[
                    _ResponsePartition(
                        partition_index=item[0], error_code=int(code_of(name, topic_id, item[0]))
                    )
                    async for item in request.in_turns(items)
                ],
            )
            async for name, topic_id, items in request.in_turns(request.message.topics)
        ]
    )


def _refuse_deletion(_request: AnyRequest, code: ErrorCode) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=code, topics=[])


@handles(OffsetDeleteRequest, refuse=_refuse_deletion, needs=has_groups)
async def offset_delete(request: Request[OffsetDeleteRequest]) -> OffsetDeleteResponse:
    """Delete offsets of partitions that exist and that the caller may read. Each partition has its own result."""
    message = request.message
    if not message.group_id:
        return _refuse_deletion(request, ErrorCode.INVALID_GROUP_ID)
    codes: dict[TopicPartition, ErrorCode] = {}
    allowed: list[TopicPartition] = []
    async for topic in request.in_turns(message.topics):
        topic_state = find_topic(request, topic.name, None, Operation.READ)
        async for item in request.in_turns(topic.partitions):
            partition = _partition(topic_state, item.partition_index)
            if isinstance(partition, ErrorCode):
                codes[_named(topic.name, item.partition_index)] = partition
            else:
                allowed.append(partition)
    try:
        deleted = await coordinator(request).delete_offsets(GroupId(message.group_id), allowed)
    except CoordinatorError as error:
        return _refuse_deletion(request, error.code)
    if deleted.error is not ErrorCode.NONE:
        return _refuse_deletion(request, deleted.error)
    codes |= deleted.partitions
    return OffsetDeleteResponse(
        topics=[
            _DeletedTopic(
                name=topic.name,
                partitions=[
                    _DeletedPartition(
                        partition_index=item.partition_index,
                        error_code=codes[_named(topic.name, item.partition_index)],
                    )
                    async for item in request.in_turns(topic.partitions)
                ],
            )
            async for topic in request.in_turns(message.topics)
        ]
    )


def _named(topic: str, index: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(index))
