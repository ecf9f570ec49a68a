"""ListOffsets: where a partition begins and ends, and what was first at or after a time.

Timestamps below zero are questions of their own: -1 the end, -2 the start, -3 the record with the
greatest timestamp (KIP-734), -4 the start of what is here rather than in remote storage, which for
us is the start, -5 (KIP-1005) the end of what is in remote storage and -6 (KIP-1023) the start of
what is yet to go there, both without an offset, as in Kafka where a topic has no remote storage.
The end is the high watermark, or the last stable offset to who reads committed.
"""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.replication.outcomes import OffsetOutcome
from odradek_broker.replication.partition_service import OFFSET_EARLIEST
from odradek_protocol.access import Operation
from odradek_protocol.identity import LeaderEpoch, PartitionIndex, TopicName
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import ListOffsetsResponse, Message

_EARLIEST_LOCAL: Final = -4
_NEVER: Final = 1 << 15
_OF_REMOTE_STORAGE: Final = frozenset({-5, -6})
_LOWEST_VERSION: Final = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
_Topic: Final = ListOffsetsResponse.ListOffsetsTopicResponse
_Partition: Final = _Topic.ListOffsetsPartitionResponse


@handles(ApiKey.LIST_OFFSETS)
async def list_offsets(request: Request) -> Message:
    """Each partition at its leader."""
    topics = []
    async for topic in request.in_turns(request.message.topics):
        may = request.allows_topic(Operation.DESCRIBE, topic.name)
        topics.append(
            _Topic(
                name=topic.name,
                partitions=[
                    _answer(
                        one.partition_index,
                        await _look_up(request, TopicName(topic.name), one)
                        if may
                        else OffsetOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
                    )
                    async for one in request.in_turns(topic.partitions)
                ],
            )
        )
    return ListOffsetsResponse(topics=topics)


async def _look_up(request: Request, topic: TopicName, wanted: Any) -> OffsetOutcome:
    timestamp_ms = wanted.timestamp
    if timestamp_ms < 0 and request.version < _LOWEST_VERSION.get(timestamp_ms, _NEVER):
        return OffsetOutcome(ErrorCode.UNSUPPORTED_VERSION)
    asks_remote = timestamp_ms in _OF_REMOTE_STORAGE
    if asks_remote or timestamp_ms == _EARLIEST_LOCAL:
        timestamp_ms = OFFSET_EARLIEST
    outcome = await request.services.partitions.list_offsets(
        topic,
        PartitionIndex(wanted.partition_index),
        timestamp_ms,
        read_committed=request.message.isolation_level == 1,
        current_leader_epoch=LeaderEpoch(wanted.current_leader_epoch),
    )
    return OffsetOutcome(outcome.error) if asks_remote else outcome


def _answer(index: int, outcome: OffsetOutcome) -> Any:
    return _Partition(
        partition_index=index,
        error_code=outcome.error,
        timestamp=outcome.timestamp_ms,
        offset=outcome.offset,
        leader_epoch=outcome.leader_epoch,
    )
