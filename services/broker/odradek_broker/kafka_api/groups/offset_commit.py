"""OffsetCommit: where a group goes on. Topics that may not be read are refused one by one."""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import CommitOffsets, CommittedOffset
from odradek_broker.kafka_api.groups import coordinator, has_groups
from odradek_broker.kafka_api.registry import handles
from odradek_broker.kafka_api.request import Request
from odradek_broker.security.rights import Operation
from odradek_protocol.identity import (
    NO_LEADER_EPOCH,
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message, OffsetCommitResponse
from odradek_runtime.clock import wall_ms

_Topic: Final = OffsetCommitResponse.OffsetCommitResponseTopic
_Partition: Final = _Topic.OffsetCommitResponsePartition
_CONSUMER_PROTOCOL_FROM: Final = 9
_TIMESTAMP_MAX: Final = (1 << 63) - 1  # what a record of an offset has room for


@handles(ApiKey.OFFSET_COMMIT, needs=has_groups)
async def offset_commit(request: Request) -> Message:
    """See the module."""
    message = request.message
    if not request.allows_group(Operation.READ, message.group_id):
        return _all(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    refused: dict[TopicPartition, ErrorCode] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    expire_ms = -1
    if request.version <= 4 and message.retention_time_ms >= 0:
        expire_ms = min(wall_ms() + message.retention_time_ms, _TIMESTAMP_MAX)
    for topic in message.topics:
        is_allowed = request.allows_topic(Operation.READ, topic.name)
        for one in topic.partitions:
            partition = TopicPartition(TopicName(topic.name), PartitionIndex(one.partition_index))
            if not is_allowed:
                refused[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            else:
                epoch = one.committed_leader_epoch if request.version >= 6 else NO_LEADER_EPOCH
                offsets[partition] = CommittedOffset(
                    offset=Offset(one.committed_offset),
                    leader_epoch=LeaderEpoch(epoch),
                    metadata=one.committed_metadata or "",
                    expire_timestamp_ms=expire_ms,
                )
    commit = CommitOffsets(
        group_id=GroupId(message.group_id),
        member_id=MemberId(message.member_id),
        instance_id=message.group_instance_id if request.version >= 7 else None,
        generation_or_epoch=message.generation_id_or_member_epoch,
        offsets=offsets,
    )
    try:
        told = await coordinator(request).commit(commit)
    except CoordinatorError as error:
        return _all(request, error.code)
    if told.error is not ErrorCode.NONE:
        return _all(request, _as_version(request, told.error))
    return _response(request, {**told.partitions, **refused})


def _as_version(request: Request, code: ErrorCode) -> ErrorCode:
    """Clients of before KIP-848 know no member epochs."""
    if code is ErrorCode.STALE_MEMBER_EPOCH and request.version < _CONSUMER_PROTOCOL_FROM:
        return ErrorCode.UNSUPPORTED_VERSION
    return code


def _all(request: Request, code: ErrorCode) -> Message:
    return _response(
        request,
        {
            TopicPartition(TopicName(t.name), PartitionIndex(p.partition_index)): code
            for t in request.message.topics
            for p in t.partitions
        },
    )


def _response(request: Request, codes: dict[TopicPartition, ErrorCode]) -> Message:
    def code_of(topic: Any, one: Any) -> ErrorCode:
        named = TopicPartition(TopicName(topic.name), PartitionIndex(one.partition_index))
        return codes[named]

    return OffsetCommitResponse(
        topics=[
            _Topic(
                name=topic.name,
                partitions=[
                    _Partition(partition_index=one.partition_index, error_code=code_of(topic, one))
                    for one in topic.partitions
                ],
            )
            for topic in request.message.topics
        ]
    )
