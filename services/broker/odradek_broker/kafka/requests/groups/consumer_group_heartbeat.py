"""ConsumerGroupHeartbeat: the whole of the consumer protocol (KIP-848)."""

from __future__ import annotations

import uuid
from typing import Any, Final

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import (
    Assignment,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
)
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.groups import coordinator, has_consumer_protocol, has_groups
from odradek_protocol.access import Operation
from odradek_protocol.identity import GroupId, MemberId, PartitionIndex, TopicId, TopicName
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import ConsumerGroupHeartbeatResponse, Message, uuid_of

_Assignment: Final = ConsumerGroupHeartbeatResponse.Assignment


@handles(ApiKey.CONSUMER_GROUP_HEARTBEAT, needs=has_groups)
async def consumer_group_heartbeat(request: Request) -> Message:
    """Join, stay, report, leave."""
    message = request.message
    refusal = await _refuse(request)
    if refusal is not ErrorCode.NONE:
        return _response(ConsumerHeartbeatAnswer(error=refusal))
    names, owned = message.subscribed_topic_names, message.topic_partitions
    beat = ConsumerHeartbeat(
        group_id=GroupId(message.group_id),
        member_id=MemberId(message.member_id or _new_member_id()),
        member_epoch=message.member_epoch,
        instance_id=message.instance_id,
        rack_id=message.rack_id,
        rebalance_timeout_ms=message.rebalance_timeout_ms,
        subscribed_topics=None if names is None else tuple(TopicName(name) for name in names),
        subscribed_regex=message.subscribed_topic_regex if request.version >= 1 else None,
        server_assignor=message.server_assignor,
        owned=None if owned is None else _owned(owned),
        client_id=request.client_id or "",
        client_host=f"/{request.session.host}",
        principal=request.session.principal,
    )
    try:
        return _response(await coordinator(request).consumer_heartbeat(beat))
    except CoordinatorError as error:
        return _response(ConsumerHeartbeatAnswer(error=error.code))


async def _refuse(request: Request) -> ErrorCode:
    message = request.message
    if not has_consumer_protocol(request):
        return ErrorCode.UNSUPPORTED_VERSION
    if not request.allows_group(Operation.READ, message.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    async for name in request.in_turns(message.subscribed_topic_names or ()):
        if not request.allows_topic(Operation.DESCRIBE, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not message.member_id and (request.version >= 1 or message.member_epoch != 0):
        return ErrorCode.INVALID_REQUEST  # from version 1 on, clients name themselves
    return ErrorCode.NONE


def _new_member_id() -> str:
    return str(uuid.uuid4())


def _owned(topics: list[Any]) -> Assignment:
    return {
        TopicId(bytes(one.topic_id)): frozenset(PartitionIndex(i) for i in one.partitions)
        for one in topics
        if one.partitions
    }


def _response(told: ConsumerHeartbeatAnswer) -> Message:
    return ConsumerGroupHeartbeatResponse(
        error_code=told.error,
        error_message=told.error_message,
        member_id=told.member_id,
        member_epoch=told.member_epoch,
        heartbeat_interval_ms=told.heartbeat_interval_ms,
        assignment=None
        if told.assignment is None
        else _Assignment(
            topic_partitions=[
                _Assignment.TopicPartitions(topic_id=uuid_of(topic_id), partitions=sorted(indexes))
                for topic_id, indexes in sorted(told.assignment.items())
            ]
        ),
    )
