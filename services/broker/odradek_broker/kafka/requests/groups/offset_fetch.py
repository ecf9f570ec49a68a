"""OffsetFetch: committed offsets of one group, or of several from version 8 on.

Version 10 names topics by id. Offsets go with their topic, so an id that is not known has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import CommittedOffset, FetchedOffsets, FetchOffsets
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_broker.kafka.requests.topics.topic_errors import find_topic
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.identity import (
    NO_TOPIC_ID,
    GroupId,
    MemberId,
    PartitionIndex,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message, OffsetFetchResponse, uuid_of
from odradek_protocol.metadata.image import TopicState

_BATCHED_FROM: Final = 8
_CONSUMER_PROTOCOL_FROM: Final = 9
_TOPIC_IDS_FROM: Final = 10
_GROUP_ERROR_FROM: Final = 2
_Group: Final = OffsetFetchResponse.OffsetFetchResponseGroup
_GroupTopic: Final = _Group.OffsetFetchResponseTopics
_GroupPartition: Final = _GroupTopic.OffsetFetchResponsePartitions
_Topic: Final = OffsetFetchResponse.OffsetFetchResponseTopic
_Partition: Final = _Topic.OffsetFetchResponsePartition


class _Selection(NamedTuple):
    """What a request names of one group: `partitions`, None for all, and topics that it does not get."""

    partitions: list[TopicPartition] | None
    refused: list[tuple[Any, ErrorCode]]


@handles(ApiKey.OFFSET_FETCH, needs=has_groups)
async def offset_fetch(request: Request) -> Message:
    """Offsets of the partitions that are named, or of all that have one."""
    message = request.message
    if request.version >= _BATCHED_FROM:
        groups = {group.group_id: group for group in message.groups}  # each is answered once
        return OffsetFetchResponse(
            groups=[
                await _group(request, group) async for group in request.in_turns(groups.values())
            ]
        )
    selection = await _select(request, message.topics)
    fetched = await _fetch(request, message.group_id, selection, None, -1)
    if fetched.error is not ErrorCode.NONE:
        offsets = dict.fromkeys(selection.partitions or ())
        fetched = FetchedOffsets(error=fetched.error, offsets=offsets)
    code = fetched.error if request.version < _GROUP_ERROR_FROM else ErrorCode.NONE
    topics = [
        _Topic(
            name=name,
            partitions=[
                _item(_Partition, *offset, code) async for offset in request.in_turns(offsets)
            ],
        )
        async for name, offsets in request.in_turns(_by_topic(fetched).items())
    ]
    if fetched.error is ErrorCode.NONE:
        topics += [
            _Topic(name=topic.name, partitions=_refusals(_Partition, topic, refusal))
            async for topic, refusal in request.in_turns(selection.refused)
        ]
    return OffsetFetchResponse(error_code=fetched.error, topics=topics)


async def _group(request: Request, group: Any) -> Any:
    is_member = request.version >= _CONSUMER_PROTOCOL_FROM and group.member_id is not None
    selection = await _select(request, group.topics)
    fetched = await _fetch(
        request,
        group.group_id,
        selection,
        group.member_id if is_member else None,
        group.member_epoch if is_member else -1,
    )
    topics = []
    async for name, offsets in request.in_turns(_by_topic(fetched).items()):
        state = request.services.image.topic(name)
        if state is None and request.version >= _TOPIC_IDS_FROM:
            continue  # deleted meanwhile: it has no id any more, and its offsets go
        topics.append(
            _GroupTopic(
                name=name,
                topic_id=uuid_of(NO_TOPIC_ID if state is None else state.topic_id),
                partitions=[
                    _item(_GroupPartition, *one, ErrorCode.NONE)
                    async for one in request.in_turns(offsets)
                ],
            )
        )
    if fetched.error is ErrorCode.NONE:
        topics += [
            _GroupTopic(
                name=topic.name or "",
                topic_id=uuid_of(topic.topic_id or NO_TOPIC_ID),
                partitions=_refusals(_GroupPartition, topic, refusal),
            )
            async for topic, refusal in request.in_turns(selection.refused)
        ]
    return _Group(group_id=group.group_id, error_code=fetched.error, topics=topics)


async def _select(request: Request, topics: Iterable[Any] | None) -> _Selection:
    if topics is None:
        return _Selection(None, [])
    selection = _Selection([], [])
    assert selection.partitions is not None, selection
    async for topic in request.in_turns(topics):
        name = _name(request, topic)
        if isinstance(name, ErrorCode):
            selection.refused.append((topic, name))
        else:
            selection.partitions.extend(
                TopicPartition(name, PartitionIndex(index)) for index in topic.partition_indexes
            )
    return selection


def _name(request: Request, topic: Any) -> TopicName | ErrorCode:
    """The topic's name, whether it is there or not; by id it must be there."""
    if request.version >= _TOPIC_IDS_FROM:
        state = find_topic(request, None, topic.topic_id, Operation.DESCRIBE)
        return state.name if isinstance(state, TopicState) else state
    if not request.allows_topic(Operation.DESCRIBE, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return TopicName(topic.name)


async def _fetch(
    request: Request,
    group_id: str,
    selection: _Selection,
    member_id: str | None,
    member_epoch: int,
) -> FetchedOffsets:
    if not request.allows_group(Operation.DESCRIBE, group_id):
        return FetchedOffsets(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    fetch = FetchOffsets(
        group_id=GroupId(group_id),
        partitions=selection.partitions,
        member_id=None if member_id is None else MemberId(member_id),
        member_epoch=member_epoch,
    )
    try:
        fetched = await coordinator(request).fetch_offsets(fetch)
    except CoordinatorError as error:
        return FetchedOffsets(error=error.code)
    visible = {
        partition: committed
        async for partition, committed in request.in_turns(fetched.offsets.items())
        if request.sees(Operation.DESCRIBE, ResourceType.TOPIC, partition.topic)
    }
    return FetchedOffsets(error=fetched.error, offsets=visible)


def _by_topic(
    fetched: FetchedOffsets,
) -> dict[TopicName, list[tuple[PartitionIndex, CommittedOffset | None]]]:
    topics: dict[TopicName, list[tuple[PartitionIndex, CommittedOffset | None]]] = defaultdict(list)
    for partition, committed in fetched.offsets.items():
        topics[partition.topic].append((partition.partition, committed))
    return topics


def _refusals(item_type: Any, topic: Any, code: ErrorCode) -> list[Any]:
    return [_item(item_type, index, None, code) for index in topic.partition_indexes]


def _item(item_type: Any, index: int, committed: CommittedOffset | None, code: ErrorCode) -> Any:
    return item_type(
        partition_index=index,
        committed_offset=-1 if committed is None else committed.offset,
        committed_leader_epoch=-1 if committed is None else committed.leader_epoch,
        metadata="" if committed is None else committed.metadata,
        error_code=code,
    )
