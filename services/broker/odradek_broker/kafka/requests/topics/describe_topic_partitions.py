"""DescribeTopicPartitions: describes topics page by page, with their eligible leader replicas (KIP-966)."""

from __future__ import annotations

from typing import Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request, find_topic
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    uuid_of,
)
from odradek_protocol.metadata.configs import INTERNAL_TOPICS
from odradek_protocol.metadata.image import PartitionState, TopicState
from odradek_protocol.topic_names import topic_name_error

PARTITIONS_MAX: Final = 2000
_Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Partition = _Topic.DescribeTopicPartitionsResponsePartition
_Cursor = DescribeTopicPartitionsResponse.Cursor


@handles(DescribeTopicPartitionsRequest)
async def describe_topic_partitions(
    request: Request[DescribeTopicPartitionsRequest],
) -> DescribeTopicPartitionsResponse:
    """Describe topics in the order of their names, from the cursor on."""
    message = request.message
    image = request.services.image
    if message.topics:
        names = sorted({topic.name for topic in message.topics})
    else:
        names = sorted(
            [
                name
                async for name in request.in_turns(list(image.topic_ids))
                if request.sees(Operation.DESCRIBE, ResourceType.TOPIC, name)
            ]
        )
    first_topic, first_partition = "", 0
    if message.cursor is not None:
        first_topic, first_partition = message.cursor.topic_name, message.cursor.partition_index
        if first_partition < 0 or (message.topics and first_topic not in names):
            return DescribeTopicPartitionsResponse(
                topics=[
                    _Topic(error_code=ErrorCode.INVALID_REQUEST, name=name, partitions=[])
                    for name in names
                ],
                next_cursor=None,
            )
        names = [name for name in names if name >= first_topic]
    room = max(1, min(message.response_partition_limit, PARTITIONS_MAX))
    topics: list[_Topic] = []
    async for name in request.in_turns(names):
        state = find_topic(request, name, None, Operation.DESCRIBE)
        if isinstance(state, ErrorCode):
            topics.append(_not_described(request, name, state))
            continue
        start = first_partition if name == first_topic else 0
        page = state.partitions[start : start + room]
        topics.append(await _topic(request, state, page))
        room -= len(page)
        if start + len(page) < len(state.partitions):
            cursor = _Cursor(topic_name=name, partition_index=start + len(page))
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
        if not room and name != names[-1]:
            following = names[names.index(name) + 1]
            cursor = _Cursor(topic_name=following, partition_index=0)
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=None)


def _not_described(request: AnyRequest, name: str, error: ErrorCode) -> _Topic:
    result = _Topic(error_code=error, name=name, partitions=[])
    if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        if topic_name_error(name) is not None:
            result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
        result.topic_authorized_operations = request.operation_bits(ResourceType.TOPIC, name)
    return result


async def _topic(request: AnyRequest, topic: TopicState, page: list[PartitionState]) -> _Topic:
    return _Topic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=uuid_of(topic.topic_id),
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition(request, state) async for state in request.in_turns(page)],
        topic_authorized_operations=request.operation_bits(ResourceType.TOPIC, topic.name),
    )


def _partition(request: AnyRequest, state: PartitionState) -> _Partition:
    brokers = request.services.image.brokers
    return _Partition(
        error_code=ErrorCode.NONE if state.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=state.partition,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        eligible_leader_replicas=list(state.elr),
        last_known_elr=list(state.lost),
        offline_replicas=[
            replica
            for replica in state.replicas
            if replica not in brokers or brokers[replica].fenced
        ],
    )
