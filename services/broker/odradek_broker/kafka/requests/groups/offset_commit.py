"""OffsetCommit and OffsetDelete (KIP-496): the offsets from which a group continues.

Partitions that the caller may not read, or that do not exist, are refused one by one before the group is asked. As in
Kafka, a caller whose partitions were all refused does not learn whether the group has such a member. Version 10 names
topics by id, so that nothing is committed into a topic that was deleted and created again.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import CommitOffsets, CommittedOffset
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request, find_topic
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_protocol.access import Operation
from odradek_protocol.identity import (
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    uuid_of,
)
from odradek_protocol.metadata.image import TopicState
from odradek_runtime.clock import wall_ms

_NamedTopic = OffsetCommitRequest.OffsetCommitRequestTopic
_NamedPartition = _NamedTopic.OffsetCommitRequestPartition
_Topic = OffsetCommitResponse.OffsetCommitResponseTopic
_Partition = _Topic.OffsetCommitResponsePartition
_DeletedTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
_DeletedPartition = _DeletedTopic.OffsetDeleteResponsePartition
_CONSUMER_PROTOCOL_FROM: Final = 9
_TOPIC_IDS_FROM: Final = 10
COMMITTED_AT_ONCE: Final = 500
"""Offsets that a coordinator takes in one piece: 5 ms of the loop, and one batch of records.

Each partition has a code of its own, so parts of a request may be refused where others are
committed, as when a client sends them one request after the other.
"""
_TIMESTAMP_MAX: Final = (1 << 63) - 1  # the field of an offset's record is an int64


async def _refuse(request: Request[OffsetCommitRequest], code: ErrorCode) -> OffsetCommitResponse:
    return await _response(request, lambda *_: code)


@handles(OffsetCommitRequest, refuse=_refuse, needs=has_groups)
async def offset_commit(request: Request[OffsetCommitRequest]) -> OffsetCommitResponse:
    """Commit the offsets of partitions that exist. Each partition has a result of its own."""
    message = request.message
    expire_ms = -1
    if request.version <= 4 and message.retention_time_ms >= 0:
        expire_ms = min(wall_ms() + message.retention_time_ms, _TIMESTAMP_MAX)
    topics = {
        _reference(topic): _find(request, topic) async for topic in request.in_turns(message.topics)
    }
    offsets: dict[TopicPartition, CommittedOffset] = {}
    async for topic in request.in_turns(message.topics):
        async for item in request.in_turns(topic.partitions):
            partition = _partition(topics[_reference(topic)], item.partition_index)
            if isinstance(partition, ErrorCode):
                continue
            epoch = item.committed_leader_epoch if request.version >= 6 else NO_LEADER_EPOCH
            offsets[partition] = CommittedOffset(
                offset=Offset(item.committed_offset),
                leader_epoch=LeaderEpoch(epoch),
                metadata=item.committed_metadata or "",
                expire_timestamp_ms=expire_ms,
            )
    codes: dict[TopicPartition, ErrorCode] = {}
    entries = iter(offsets.items())
    while at_once := dict(islice(entries, COMMITTED_AT_ONCE)):
        commit = CommitOffsets(
            group_id=GroupId(message.group_id),
            member_id=MemberId(message.member_id),
            instance_id=message.group_instance_id if request.version >= 7 else None,
            generation_or_epoch=message.generation_id_or_member_epoch,
            offsets=at_once,
        )
        codes |= await _commit(request, commit)
        if len(offsets) > COMMITTED_AT_ONCE:
            await request.pace.turn()

    def code_of(topic: _NamedTopic, item: _NamedPartition) -> ErrorCode:
        partition = _partition(topics[_reference(topic)], item.partition_index)
        return partition if isinstance(partition, ErrorCode) else codes[partition]

    return await _response(request, code_of)


async def _commit(request: AnyRequest, commit: CommitOffsets) -> dict[TopicPartition, ErrorCode]:
    try:
        committed = await coordinator(request).commit(commit)
    except CoordinatorError as error:
        return dict.fromkeys(commit.offsets, error.code)
    if committed.error is not ErrorCode.NONE:
        return dict.fromkeys(commit.offsets, _as_version(request, committed.error))
    return dict(committed.partitions)


def _reference(topic: _NamedTopic) -> tuple[str, bytes]:
    return topic.name or "", topic.topic_id or NO_TOPIC_ID


def _find(request: AnyRequest, topic: _NamedTopic) -> TopicState | ErrorCode:
    name, topic_id = _reference(topic)
    if request.version < _TOPIC_IDS_FROM and not name:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return find_topic(request, name, topic_id, Operation.READ)


def _partition(topic: TopicState | ErrorCode, index: int) -> TopicPartition | ErrorCode:
    if isinstance(topic, ErrorCode):
        return topic
    if not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return TopicPartition(topic.name, PartitionIndex(index))


def _as_version(request: AnyRequest, code: ErrorCode) -> ErrorCode:
    """Return the code in a form that clients of this version know: those from before KIP-848 know no member epochs."""
    if code is ErrorCode.STALE_MEMBER_EPOCH and request.version < _CONSUMER_PROTOCOL_FROM:
        return ErrorCode.UNSUPPORTED_VERSION
    return code


async def _response(
    request: Request[OffsetCommitRequest],
    code_of: Callable[[_NamedTopic, _NamedPartition], ErrorCode],
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            _Topic(
                name=topic.name or "",
                topic_id=uuid_of(topic.topic_id or NO_TOPIC_ID),
                partitions=[
                    _Partition(
                        partition_index=item.partition_index, error_code=code_of(topic, item)
                    )
                    async for item in request.in_turns(topic.partitions)
                ],
            )
            async for topic in request.in_turns(request.message.topics)
        ]
    )


def _refuse_deletion(_request: AnyRequest, code: ErrorCode) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=code, topics=[])


@handles(OffsetDeleteRequest, refuse=_refuse_deletion, needs=has_groups)
async def offset_delete(request: Request[OffsetDeleteRequest]) -> OffsetDeleteResponse:
    """Delete offsets of topics that the caller may read. Each partition has a result of its own."""
    message = request.message
    named = [
        TopicPartition(TopicName(topic.name), PartitionIndex(partition.partition_index))
        async for topic in request.in_turns(message.topics)
        async for partition in request.in_turns(topic.partitions)
    ]
    allowed = [
        partition
        async for partition in request.in_turns(named)
        if request.allows_topic(Operation.READ, partition.topic)
    ]
    try:
        deleted = await coordinator(request).delete_offsets(GroupId(message.group_id), allowed)
    except CoordinatorError as error:
        return _refuse_deletion(request, error.code)
    if deleted.error is not ErrorCode.NONE:
        return _refuse_deletion(request, deleted.error)
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return OffsetDeleteResponse(
        topics=[
            _DeletedTopic(
                name=topic.name,
                partitions=[
                    _DeletedPartition(
                        partition_index=partition.partition_index,
                        error_code=deleted.partitions.get(
                            TopicPartition(
                                TopicName(topic.name), PartitionIndex(partition.partition_index)
                            ),
                            denied,
                        ),
                    )
                    async for partition in request.in_turns(topic.partitions)
                ],
            )
            async for topic in request.in_turns(message.topics)
        ]
    )
