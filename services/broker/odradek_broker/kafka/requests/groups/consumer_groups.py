"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: the consumer protocol (KIP-848).

By a heartbeat, a member joins a group, stays in the group, reports the partitions that it owns, or leaves the group.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Iterable
from typing import Final, TypeAlias

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import (
    Assignment,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    GroupDescription,
    MemberDescription,
)
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Encoded, Request, at_once, encoded
from odradek_broker.kafka.requests.groups import (
    coordinator,
    describe,
    has_consumer_protocol,
    has_groups,
)
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.identity import GroupId, MemberId, PartitionIndex, TopicId, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.group_messages import (
    decode_consumer_heartbeat,
    encode_consumer_heartbeat_response,
)
from odradek_protocol.kafka.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    uuid_of,
)

_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1
_OwnedTopic = ConsumerGroupHeartbeatRequest.TopicPartitions
_Assigned = ConsumerGroupHeartbeatResponse.Assignment
_Described = ConsumerGroupDescribeResponse.DescribedGroup
_Member = _Described.Member
_DescribedAssignment = _Member.Assignment
_BeatResponse: TypeAlias = ConsumerGroupHeartbeatResponse | Encoded


@handles(
    ConsumerGroupHeartbeatRequest,
    decode=decode_consumer_heartbeat,
    needs=has_groups,
)
def consumer_group_heartbeat(
    request: Request[ConsumerGroupHeartbeatRequest],
) -> _BeatResponse | Awaitable[_BeatResponse]:
    """Handle a member's heartbeat. The response has the member's epoch, and the assignment if the assignment has
    changed.
    """
    if not has_consumer_protocol(request):
        return _refused(request, ErrorCode.UNSUPPORTED_VERSION)
    if not request.allows_group(Operation.READ, request.message.group_id):
        return _refused(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if request.message.subscribed_topic_names is not None:
        return _subscribe(request)
    return _beat(request)


async def _subscribe(request: Request[ConsumerGroupHeartbeatRequest]) -> _BeatResponse:
    """Handle a heartbeat with subscribed topics, of which there may be thousands."""
    async for name in request.in_turns(request.message.subscribed_topic_names or ()):
        if not request.allows_topic(Operation.DESCRIBE, name):
            return _refused(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    response = _beat(request)
    return await response if isinstance(response, Awaitable) else response


def _beat(
    request: Request[ConsumerGroupHeartbeatRequest],
) -> _BeatResponse | Awaitable[_BeatResponse]:
    message = request.message
    # From version 1 on, a client chooses its member id. In version 0, the broker chooses the member id and returns it
    # in the first response.
    if not message.member_id and (request.version >= 1 or message.member_epoch != 0):
        return _refused(request, ErrorCode.INVALID_REQUEST)
    names, owned = message.subscribed_topic_names, message.topic_partitions
    beat = ConsumerHeartbeat(
        group_id=GroupId(message.group_id),
        member_id=MemberId(message.member_id or str(uuid.uuid4())),
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

    def response_of(outcome: ConsumerHeartbeatAnswer | CoordinatorError) -> _BeatResponse:
        if isinstance(outcome, CoordinatorError):
            return _refused(request, outcome.code)
        return _heartbeat_response(request, outcome)

    try:
        return at_once(coordinator(request).consumer_heartbeat_soon(beat, response_of))
    except CoordinatorError as error:
        return response_of(error)


def _owned(topics: Iterable[_OwnedTopic]) -> Assignment:
    return {
        TopicId(bytes(topic.topic_id or b"")): frozenset(map(PartitionIndex, topic.partitions))
        for topic in topics
        if topic.partitions
    }


def _refused(request: AnyRequest, code: ErrorCode) -> _BeatResponse:
    return _heartbeat_response(request, ConsumerHeartbeatAnswer(error=code))


def _heartbeat_response(request: AnyRequest, outcome: ConsumerHeartbeatAnswer) -> _BeatResponse:
    if outcome.assignment is None and not request.services.quotas.counts_time:
        body = encode_consumer_heartbeat_response(
            request.version,
            outcome.error,
            outcome.error_message,
            outcome.member_id,
            outcome.member_epoch,
            outcome.heartbeat_interval_ms,
        )
        if body is not None:
            return encoded(body)
    return ConsumerGroupHeartbeatResponse(
        error_code=outcome.error,
        error_message=outcome.error_message,
        member_id=outcome.member_id,
        member_epoch=outcome.member_epoch,
        heartbeat_interval_ms=outcome.heartbeat_interval_ms,
        assignment=None
        if outcome.assignment is None
        else _Assigned(
            topic_partitions=[
                _Assigned.TopicPartitions(topic_id=uuid_of(topic_id), partitions=sorted(indexes))
                for topic_id, indexes in sorted(outcome.assignment.items())
            ]
        ),
    )


@handles(ConsumerGroupDescribeRequest, needs=has_groups)
async def consumer_group_describe(
    request: Request[ConsumerGroupDescribeRequest],
) -> ConsumerGroupDescribeResponse:
    """Describe groups with their current and target assignments. A group that is named twice is described once."""
    return ConsumerGroupDescribeResponse(
        groups=[
            await _describe(request, group_id)
            async for group_id in request.in_turns(dict.fromkeys(request.message.group_ids))
        ]
    )


async def _describe(request: Request[ConsumerGroupDescribeRequest], group_id: str) -> _Described:
    if not has_consumer_protocol(request):
        return _not_described(group_id, ErrorCode.UNSUPPORTED_VERSION, "")
    group = await describe(request, group_id, "consumer")
    if isinstance(group, tuple):
        return _not_described(group_id, *group)
    if not _sees_topics(request, group):
        text = "the group reads topics that the caller may not describe"
        return _not_described(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)
    described = _Described(
        error_code=ErrorCode.NONE,
        error_message=None,
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.protocol,
        members=[_member(request, member) async for member in request.in_turns(group.members)],
    )
    if request.message.include_authorized_operations:
        described.authorized_operations = request.operation_bits(ResourceType.GROUP, group_id)
    return described


def _sees_topics(request: AnyRequest, group: GroupDescription) -> bool:
    """Return whether the caller may describe every topic in the members' assignments and target assignments
    (KAFKA-18813).
    """
    topics = request.services.image.topics
    ids = {
        topic_id for member in group.members for topic_id in (*member.assignment, *member.target)
    }
    return all(
        request.allows_topic(Operation.DESCRIBE, topics[topic_id].name)
        for topic_id in ids
        if topic_id in topics
    )


def _not_described(group_id: str, code: ErrorCode, text: str) -> _Described:
    return _Described(
        error_code=code,
        error_message=text or code.name,
        group_id=group_id,
        group_state="Dead",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


def _member(request: AnyRequest, member: MemberDescription) -> _Member:
    return _Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscribed_topics),
        subscribed_topic_regex=member.subscribed_regex,
        assignment=_assignment(request, member.assignment),
        target_assignment=_assignment(request, member.target),
        member_type=_CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    )


def _assignment(request: AnyRequest, assignment: Assignment) -> _DescribedAssignment:
    topics = request.services.image.topics
    return _DescribedAssignment(
        topic_partitions=[
            _DescribedAssignment.TopicPartitions(
                topic_id=uuid_of(topic_id),
                topic_name=topics[topic_id].name,
                partitions=sorted(indexes),
            )
            for topic_id, indexes in sorted(assignment.items())
            if topic_id in topics
        ]
    )
