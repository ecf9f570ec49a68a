"""DescribeTopicPartitions: topics page by page, with their eligible leader replicas (KIP-966)."""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.topics.topic_errors import find_topic
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DescribeTopicPartitionsResponse, Message, uuid_of
from odradek_protocol.metadata.configs import INTERNAL_TOPICS
from odradek_protocol.metadata.image import PartitionState, TopicState

PARTITIONS_MAX: Final = 2000
_Topic: Final = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Partition: Final = _Topic.DescribeTopicPartitionsResponsePartition
_Cursor: Final = DescribeTopicPartitionsResponse.Cursor


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
async def describe_topic_partitions(request: Request) -> Message:
    """In order of the topics' names, from the cursor on."""
    message = request.message
    image = request.services.image
    if message.topics:
        names = sorted({one.name for one in message.topics})
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
        names = [name for name in names if name >= first_topic]
    left = max(1, min(message.response_partition_limit, PARTITIONS_MAX))
    topics: list[Any] = []
    async for name in request.in_turns(names):
        found = find_topic(request, name, None, Operation.DESCRIBE)
        if not isinstance(found, TopicState):
            topics.append(_Topic(error_code=found, name=name, partitions=[]))
            continue
        start = first_partition if name == first_topic else 0
        page = found.partitions[start : start + left]
        topics.append(await _topic(request, found, page))
        left -= len(page)
        if start + len(page) < len(found.partitions):
            cursor = _Cursor(topic_name=name, partition_index=start + len(page))
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
        if not left and name != names[-1]:
            following = names[names.index(name) + 1]
            cursor = _Cursor(topic_name=following, partition_index=0)
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=None)


async def _topic(request: Request, topic: TopicState, page: list[PartitionState]) -> Any:
    return _Topic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=uuid_of(topic.topic_id),
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition(request, one) async for one in request.in_turns(page)],
        topic_authorized_operations=request.operation_bits(ResourceType.TOPIC, topic.name),
    )


def _partition(request: Request, state: PartitionState) -> Any:
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
            one for one in state.replicas if one not in brokers or brokers[one].fenced
        ],
    )
