"""OffsetDelete (KIP-496): forget committed offsets of topics that no member reads."""

from __future__ import annotations

from typing import Final

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_protocol.access import Operation
from odradek_protocol.identity import GroupId, PartitionIndex, TopicName, TopicPartition
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message, OffsetDeleteResponse

_Topic: Final = OffsetDeleteResponse.OffsetDeleteResponseTopic
_Partition: Final = _Topic.OffsetDeleteResponsePartition


@handles(ApiKey.OFFSET_DELETE, needs=has_groups)
async def offset_delete(request: Request) -> Message:
    """See the module."""
    message = request.message
    if not request.allows_group(Operation.DELETE, message.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, topics=[])
    named = [
        TopicPartition(TopicName(topic.name), PartitionIndex(one.partition_index))
        async for topic in request.in_turns(message.topics)
        async for one in request.in_turns(topic.partitions)
    ]
    allowed = [
        one
        async for one in request.in_turns(named)
        if request.allows_topic(Operation.READ, one.topic)
    ]
    try:
        told = await coordinator(request).delete_offsets(GroupId(message.group_id), allowed)
    except CoordinatorError as error:
        return OffsetDeleteResponse(error_code=error.code, topics=[])
    if told.error is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=told.error, topics=[])
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return OffsetDeleteResponse(
        topics=[
            _Topic(
                name=topic.name,
                partitions=[
                    _Partition(
                        partition_index=one.partition_index,
                        error_code=told.partitions.get(
                            TopicPartition(
                                TopicName(topic.name), PartitionIndex(one.partition_index)
                            ),
                            denied,
                        ),
                    )
                    async for one in request.in_turns(topic.partitions)
                ],
            )
            async for topic in request.in_turns(message.topics)
        ]
    )
