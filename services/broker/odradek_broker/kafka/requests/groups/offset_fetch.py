"""OffsetFetch: committed offsets of one group or, from version 8 on, of several groups.

Version 10 identifies topics by id. A deleted topic has no committed offsets, so an unknown topic id is an error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import CommittedOffset, FetchedOffsets, FetchOffsets
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request, find_topic
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.identity import (
    NO_TOPIC_ID,
    GroupId,
    MemberId,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    uuid_of,
)
from odradek_protocol.metadata.image import TopicState

_STABLE_FROM: Final = 7
_BATCHED_FROM: Final = 8
_CONSUMER_PROTOCOL_FROM: Final = 9
_TOPIC_IDS_FROM: Final = 10
_GROUP_ERROR_FROM: Final = 2
_NamedGroup = OffsetFetchRequest.OffsetFetchRequestGroup
_Group = OffsetFetchResponse.OffsetFetchResponseGroup
_GroupTopic = _Group.OffsetFetchResponseTopics
_GroupPartition = _GroupTopic.OffsetFetchResponsePartitions
_Topic = OffsetFetchResponse.OffsetFetchResponseTopic
_Partition = _Topic.OffsetFetchResponsePartition


_NOTHING_COMMITTED: Final = CommittedOffset(offset=Offset(-1))


class _NamedTopic(NamedTuple):
    """A topic in a request. Versions before 10 contain its name, and later versions its id."""

    name: str
    topic_id: bytes
    partition_indexes: list[int]


class _Selection(NamedTuple):
    """The requested partitions of one group (None: all partitions), and the requested topics that are refused."""

    partitions: list[TopicPartition] | None
    refused: list[tuple[_NamedTopic, ErrorCode]]


@handles(OffsetFetchRequest, needs=has_groups)
async def offset_fetch(request: Request[OffsetFetchRequest]) -> OffsetFetchResponse:
    """Return the committed offsets of the requested partitions, or of all partitions that have a committed offset."""
    message = request.message
    if request.version >= _BATCHED_FROM:
        # Each group has one result, even if the request names it twice.
        groups = {group.group_id: group for group in message.groups}
        return OffsetFetchResponse(
            groups=[
                await _group(request, group, requires_stable=message.require_stable)
                async for group in request.in_turns(groups.values())
            ]
        )
    topics_named = (
        None
        if message.topics is None
        else (
            _NamedTopic(topic.name, NO_TOPIC_ID, topic.partition_indexes)
            for topic in message.topics
        )
    )
    selection = await _select(request, topics_named)
    fetched = await _fetch(
        request,
        message.group_id,
        selection,
        None,
        -1,
        requires_stable=request.version >= _STABLE_FROM and message.require_stable,
    )
    if fetched.error is not ErrorCode.NONE:
        offsets = dict.fromkeys(selection.partitions or ())
        fetched = FetchedOffsets(error=fetched.error, offsets=offsets)
    code = fetched.error if request.version < _GROUP_ERROR_FROM else ErrorCode.NONE
    topics = [
        _Topic(
            name=name,
            partitions=[
                _partition(index, committed, code or unstable)
                async for index, committed, unstable in request.in_turns(offsets)
            ],
        )
        async for name, offsets in request.in_turns(_by_topic(fetched).items())
    ]
    if fetched.error is ErrorCode.NONE:
        topics += [
            _Topic(
                name=topic.name,
                partitions=[
                    _partition(index, None, refusal)
                    async for index in request.in_turns(topic.partition_indexes)
                ],
            )
            async for topic, refusal in request.in_turns(selection.refused)
        ]
    return OffsetFetchResponse(error_code=fetched.error, topics=topics)


async def _group(request: AnyRequest, group: _NamedGroup, *, requires_stable: bool) -> _Group:
    is_member = request.version >= _CONSUMER_PROTOCOL_FROM and group.member_id is not None
    topics_named = (
        None
        if group.topics is None
        else (
            _NamedTopic(topic.name or "", topic.topic_id or NO_TOPIC_ID, topic.partition_indexes)
            for topic in group.topics
        )
    )
    selection = await _select(request, topics_named)
    fetched = await _fetch(
        request,
        group.group_id,
        selection,
        group.member_id if is_member else None,
        group.member_epoch if is_member else -1,
        requires_stable=requires_stable,
    )
    topics = []
    async for name, offsets in request.in_turns(_by_topic(fetched).items()):
        state = request.services.image.topic(name)
        if state is None and request.version >= _TOPIC_IDS_FROM:
            continue  # the topic was deleted, and its offsets will be deleted soon
        topics.append(
            _GroupTopic(
                name=name,
                topic_id=uuid_of(NO_TOPIC_ID if state is None else state.topic_id),
                partitions=[
                    _group_partition(*offset) async for offset in request.in_turns(offsets)
                ],
            )
        )
    if fetched.error is ErrorCode.NONE:
        topics += [
            _GroupTopic(
                name=topic.name,
                topic_id=uuid_of(topic.topic_id),
                partitions=[
                    _group_partition(index, None, refusal)
                    async for index in request.in_turns(topic.partition_indexes)
                ],
            )
            async for topic, refusal in request.in_turns(selection.refused)
        ]
    return _Group(group_id=group.group_id, error_code=fetched.error, topics=topics)


async def _select(request: AnyRequest, topics: Iterable[_NamedTopic] | None) -> _Selection:
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


def _name(request: AnyRequest, topic: _NamedTopic) -> TopicName | ErrorCode:
    """Return the topic's name, or an error code. A topic that the request identifies by name need not exist."""
    if request.version >= _TOPIC_IDS_FROM:
        state = find_topic(request, None, topic.topic_id, Operation.DESCRIBE)
        return state.name if isinstance(state, TopicState) else state
    if not request.allows_topic(Operation.DESCRIBE, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return TopicName(topic.name)


async def _fetch(
    request: AnyRequest,
    group_id: str,
    selection: _Selection,
    member_id: str | None,
    member_epoch: int,
    *,
    requires_stable: bool,
) -> FetchedOffsets:
    if not request.allows_group(Operation.DESCRIBE, group_id):
        return FetchedOffsets(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    fetch = FetchOffsets(
        group_id=GroupId(group_id),
        partitions=selection.partitions,
        member_id=None if member_id is None else MemberId(member_id),
        member_epoch=member_epoch,
        requires_stable=requires_stable,
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
    return FetchedOffsets(error=fetched.error, offsets=visible, unstable=fetched.unstable)


def _by_topic(
    fetched: FetchedOffsets,
) -> dict[TopicName, list[tuple[PartitionIndex, CommittedOffset | None, ErrorCode]]]:
    topics: dict[TopicName, list[tuple[PartitionIndex, CommittedOffset | None, ErrorCode]]]
    topics = defaultdict(list)
    for partition, committed in fetched.offsets.items():
        is_unstable = partition in fetched.unstable
        error = ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else ErrorCode.NONE
        topics[partition.topic].append(
            (partition.partition, None if is_unstable else committed, error)
        )
    return topics


def _partition(index: int, committed: CommittedOffset | None, code: ErrorCode) -> _Partition:
    offset = committed or _NOTHING_COMMITTED
    return _Partition(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=code,
    )


def _group_partition(
    index: int, committed: CommittedOffset | None, code: ErrorCode
) -> _GroupPartition:
    offset = committed or _NOTHING_COMMITTED
    return _GroupPartition(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=code,
    )
