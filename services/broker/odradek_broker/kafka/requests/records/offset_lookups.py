"""ListOffsets and OffsetForLeaderEpoch: offsets by timestamp, and by leader epoch.

In ListOffsets, timestamps below zero have a special meaning:

    -1  the end: the high watermark, or the last stable offset for isolation level read_committed
    -2  the start of the log
    -3  the record with the greatest timestamp (KIP-734)
    -4  the start of the local log (KIP-405), which without remote storage is the start of the log
    -5  the last record in remote storage (KIP-1005)
    -6  the first record that is not yet in remote storage (KIP-1023)

Odradek has no remote storage. For -5 and -6, the response has no offset, as in Kafka for a topic without remote
storage.

OffsetForLeaderEpoch returns the end offset of a leader epoch, from which a consumer notices lost records (KIP-320).
"""

from __future__ import annotations

from typing import Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_broker.replication.outcomes import OFFSET_EARLIEST, OffsetOutcome
from odradek_protocol.access import Operation
from odradek_protocol.identity import LeaderEpoch, PartitionIndex, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

_EARLIEST_LOCAL: Final = -4
_NEVER: Final = 1 << 15
_OF_REMOTE_STORAGE: Final = frozenset({-5, -6})
_LOWEST_VERSION: Final = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
_TimestampLookup = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
_ListedTopic = ListOffsetsResponse.ListOffsetsTopicResponse
_ListedPartition = _ListedTopic.ListOffsetsPartitionResponse
_EpochLookup = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition
_EpochTopic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_EpochEnd = _EpochTopic.EpochEndOffset


@handles(ListOffsetsRequest)
async def list_offsets(request: Request[ListOffsetsRequest]) -> ListOffsetsResponse:
    """Look up an offset in each partition that this broker leads. Other partitions get an error."""
    topics = []
    async for topic in request.in_turns(request.message.topics):
        is_allowed = request.allows_topic(Operation.DESCRIBE, topic.name)
        topics.append(
            _ListedTopic(
                name=topic.name,
                partitions=[
                    _listed(
                        lookup.partition_index,
                        await _look_up(request, TopicName(topic.name), lookup)
                        if is_allowed
                        else OffsetOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
                    )
                    async for lookup in request.in_turns(topic.partitions)
                ],
            )
        )
    return ListOffsetsResponse(topics=topics)


async def _look_up(
    request: Request[ListOffsetsRequest], topic: TopicName, lookup: _TimestampLookup
) -> OffsetOutcome:
    timestamp_ms = lookup.timestamp
    if timestamp_ms < 0 and request.version < _LOWEST_VERSION.get(timestamp_ms, _NEVER):
        return OffsetOutcome(ErrorCode.UNSUPPORTED_VERSION)
    is_remote = timestamp_ms in _OF_REMOTE_STORAGE
    if is_remote or timestamp_ms == _EARLIEST_LOCAL:
        timestamp_ms = OFFSET_EARLIEST
    partition = request.services.partitions.find(topic, PartitionIndex(lookup.partition_index))
    if isinstance(partition, ErrorCode):
        return OffsetOutcome(partition)
    outcome = await partition.offset_at(
        timestamp_ms,
        read_committed=request.message.isolation_level == 1,
        current_leader_epoch=LeaderEpoch(lookup.current_leader_epoch),
    )
    return OffsetOutcome(outcome.error) if is_remote else outcome


def _listed(index: int, outcome: OffsetOutcome) -> _ListedPartition:
    return _ListedPartition(
        partition_index=index,
        error_code=outcome.error,
        timestamp=outcome.timestamp_ms,
        offset=outcome.offset,
        leader_epoch=outcome.leader_epoch,
    )


@handles(OffsetForLeaderEpochRequest)
async def offset_for_leader_epoch(
    request: Request[OffsetForLeaderEpochRequest],
) -> OffsetForLeaderEpochResponse:
    """Look up the end of an epoch in each partition that this broker leads. Other partitions get an error."""
    topics = []
    async for topic in request.in_turns(request.message.topics):
        is_allowed = request.allows_topic(Operation.DESCRIBE, topic.topic)
        topics.append(
            _EpochTopic(
                topic=topic.topic,
                partitions=[
                    _epoch_end(request, TopicName(topic.topic), lookup, is_allowed=is_allowed)
                    async for lookup in request.in_turns(topic.partitions)
                ],
            )
        )
    return OffsetForLeaderEpochResponse(topics=topics)


def _epoch_end(
    request: AnyRequest, topic: TopicName, lookup: _EpochLookup, *, is_allowed: bool
) -> _EpochEnd:
    partition = (
        request.services.partitions.find(topic, PartitionIndex(lookup.partition))
        if is_allowed
        else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    if isinstance(partition, ErrorCode):
        outcome = OffsetOutcome(partition)
    else:
        outcome = partition.end_of_epoch(
            LeaderEpoch(lookup.leader_epoch),
            current_leader_epoch=LeaderEpoch(lookup.current_leader_epoch),
        )
    return _EpochEnd(
        error_code=outcome.error,
        partition=lookup.partition,
        leader_epoch=outcome.leader_epoch,
        end_offset=outcome.offset,
    )
