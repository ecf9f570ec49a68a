"""OffsetFetch: committed offsets of one group, or of several from version 8 on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import CommittedOffset, FetchedOffsets, FetchOffsets
from odradek_broker.kafka_api.groups import coordinator, has_groups
from odradek_broker.kafka_api.registry import handles
from odradek_broker.kafka_api.request import Request
from odradek_broker.kafka_api.turns import in_turns
from odradek_broker.security.rights import Operation
from odradek_protocol.identity import (
    GroupId,
    MemberId,
    PartitionIndex,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message, OffsetFetchResponse

_BATCHED_FROM: Final = 8
_CONSUMER_PROTOCOL_FROM: Final = 9
_GROUP_ERROR_FROM: Final = 2
_Group: Final = OffsetFetchResponse.OffsetFetchResponseGroup
_GroupTopic: Final = _Group.OffsetFetchResponseTopics
_GroupPartition: Final = _GroupTopic.OffsetFetchResponsePartitions
_Topic: Final = OffsetFetchResponse.OffsetFetchResponseTopic
_Partition: Final = _Topic.OffsetFetchResponsePartition


@handles(ApiKey.OFFSET_FETCH, needs=has_groups)
async def offset_fetch(request: Request) -> Message:
    """See the module."""
    message = request.message
    if request.version >= _BATCHED_FROM:
        asked = {one.group_id: one for one in message.groups}  # each is told once
        groups = [await _group(request, one) async for one in in_turns(asked.values())]
        return OffsetFetchResponse(groups=groups)
    wanted = _wanted(message.topics)
    fetched = await _fetch(request, message.group_id, wanted, None, -1)
    if fetched.error is not ErrorCode.NONE:
        fetched = FetchedOffsets(error=fetched.error, offsets=dict.fromkeys(wanted or ()))
    code = fetched.error if request.version < _GROUP_ERROR_FROM else ErrorCode.NONE
    return OffsetFetchResponse(
        error_code=fetched.error,
        topics=_topics(fetched, _Topic, _Partition, code, _refused(request, fetched, wanted)),
    )


async def _group(request: Request, asked: Any) -> Any:
    is_member = request.version >= _CONSUMER_PROTOCOL_FROM and asked.member_id is not None
    wanted = _wanted(asked.topics)
    fetched = await _fetch(
        request,
        asked.group_id,
        wanted,
        asked.member_id if is_member else None,
        asked.member_epoch if is_member else -1,
    )
    return _Group(
        group_id=asked.group_id,
        error_code=fetched.error,
        topics=_topics(
            fetched,
            _GroupTopic,
            _GroupPartition,
            ErrorCode.NONE,
            _refused(request, fetched, wanted),
        ),
    )


async def _fetch(
    request: Request,
    group_id: str,
    wanted: Sequence[TopicPartition] | None,
    member_id: str | None,
    member_epoch: int,
) -> FetchedOffsets:
    if not request.allows_group(Operation.DESCRIBE, group_id):
        return FetchedOffsets(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    fetch = FetchOffsets(
        group_id=GroupId(group_id),
        partitions=wanted,
        member_id=None if member_id is None else MemberId(member_id),
        member_epoch=member_epoch,
    )
    try:
        fetched = await coordinator(request).fetch_offsets(fetch)
    except CoordinatorError as error:
        return FetchedOffsets(error=error.code)
    visible = {
        partition: committed
        for partition, committed in fetched.offsets.items()
        if request.allows_topic(Operation.DESCRIBE, partition.topic)
    }
    return FetchedOffsets(error=fetched.error, offsets=visible)


def _refused(
    request: Request, fetched: FetchedOffsets, wanted: Sequence[TopicPartition] | None
) -> list[TopicPartition]:
    """What was asked for by name and may not be seen; of all offsets it is just left out."""
    if wanted is None or fetched.error is not ErrorCode.NONE:
        return []
    return [one for one in wanted if not request.allows_topic(Operation.DESCRIBE, one.topic)]


def _wanted(topics: Iterable[Any] | None) -> list[TopicPartition] | None:
    if topics is None:
        return None
    return [
        TopicPartition(TopicName(topic.name), PartitionIndex(index))
        for topic in topics
        for index in topic.partition_indexes
    ]


def _topics(
    fetched: FetchedOffsets,
    topic_type: Any,
    item_type: Any,
    code: ErrorCode,
    refused: Iterable[TopicPartition],
) -> list[Any]:
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for partition in refused:
        by_topic[partition.topic].append(
            _item(item_type, partition, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        )
    for partition, committed in fetched.offsets.items():
        by_topic[partition.topic].append(_item(item_type, partition, committed, code))
    return [topic_type(name=name, partitions=items) for name, items in by_topic.items()]


def _item(
    item_type: Any, partition: TopicPartition, committed: CommittedOffset | None, code: ErrorCode
) -> Any:
    return item_type(
        partition_index=partition.partition,
        committed_offset=-1 if committed is None else committed.offset,
        committed_leader_epoch=-1 if committed is None else committed.leader_epoch,
        metadata="" if committed is None else committed.metadata,
        error_code=code,
    )
