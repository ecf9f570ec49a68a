"""OffsetForLeaderEpoch: where a leader's epoch ended, so that a consumer notices lost records (KIP-320)."""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.replication.outcomes import OffsetOutcome
from odradek_protocol.access import Operation
from odradek_protocol.identity import LeaderEpoch, PartitionIndex, TopicName
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message, OffsetForLeaderEpochResponse

_Topic: Final = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_Partition: Final = _Topic.EpochEndOffset


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH)
async def offset_for_leader_epoch(request: Request) -> Message:
    """Each partition at its leader."""
    topics = []
    async for topic in request.in_turns(request.message.topics):
        may = request.allows_topic(Operation.DESCRIBE, topic.topic)
        topics.append(
            _Topic(
                topic=topic.topic,
                partitions=[
                    _partition(request, TopicName(topic.topic), one, may=may)
                    async for one in request.in_turns(topic.partitions)
                ],
            )
        )
    return OffsetForLeaderEpochResponse(topics=topics)


def _partition(request: Request, topic: TopicName, wanted: Any, *, may: bool) -> Any:
    outcome = OffsetOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if may:
        outcome = request.services.partitions.offset_for_leader_epoch(
            topic,
            PartitionIndex(wanted.partition),
            LeaderEpoch(wanted.leader_epoch),
            current_leader_epoch=LeaderEpoch(wanted.current_leader_epoch),
        )
    return _Partition(
        error_code=outcome.error,
        partition=wanted.partition,
        leader_epoch=outcome.leader_epoch,
        end_offset=outcome.offset,
    )
