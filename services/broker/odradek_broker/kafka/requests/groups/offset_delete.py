"""OffsetDelete: deletes committed offsets of topics that no member reads (KIP-496)."""

from __future__ import annotations

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_protocol.access import Operation
from odradek_protocol.identity import GroupId, PartitionIndex, TopicName, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import OffsetDeleteRequest, OffsetDeleteResponse

_Topic = OffsetDeleteResponse.OffsetDeleteResponseTopic
_Partition = _Topic.OffsetDeleteResponsePartition


def _refuse(_request: AnyRequest, code: ErrorCode) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=code, topics=[])


@handles(OffsetDeleteRequest, refuse=_refuse, needs=has_groups)
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
        return _refuse(request, error.code)
    if deleted.error is not ErrorCode.NONE:
        return _refuse(request, deleted.error)
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return OffsetDeleteResponse(
        topics=[
            _Topic(
                name=topic.name,
                partitions=[
                    _Partition(
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
