"""ConsumerGroupDescribe: groups of the consumer protocol with present and target assignments."""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.groups.messages import Assignment, GroupDescription, MemberDescription
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.groups import describe, has_consumer_protocol, has_groups
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import ConsumerGroupDescribeResponse, Message, uuid_of

_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1
_Group: Final = ConsumerGroupDescribeResponse.DescribedGroup
_Member: Final = _Group.Member
_Assignment: Final = _Member.Assignment


@handles(ApiKey.CONSUMER_GROUP_DESCRIBE, needs=has_groups)
async def consumer_group_describe(request: Request) -> Message:
    """Each group once, however often it is named."""
    return ConsumerGroupDescribeResponse(
        groups=[
            await _describe(request, one)
            async for one in request.in_turns(dict.fromkeys(request.message.group_ids))
        ]
    )


async def _describe(request: Request, group_id: str) -> Any:
    if not has_consumer_protocol(request):
        return _refused(group_id, ErrorCode.UNSUPPORTED_VERSION, "")
    group = await describe(request, group_id, "consumer")
    if isinstance(group, tuple):
        return _refused(group_id, *group)
    if not _sees_topics(request, group):
        text = "the group reads topics that may not be described"
        return _refused(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)
    described = _Group(
        error_code=ErrorCode.NONE,
        error_message=None,
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.protocol,
        members=[_member(request, one) async for one in request.in_turns(group.members)],
    )
    if request.message.include_authorized_operations:
        described.authorized_operations = request.operation_bits(ResourceType.GROUP, group_id)
    return described


def _sees_topics(request: Request, group: GroupDescription) -> bool:
    """Whether who asks may know of every topic that a member owns or shall own (KAFKA-18813)."""
    topics = request.services.image.topics
    ids = {topic_id for one in group.members for topic_id in (*one.assignment, *one.target)}
    return all(
        request.allows_topic(Operation.DESCRIBE, topics[topic_id].name)
        for topic_id in ids
        if topic_id in topics
    )


def _refused(group_id: str, code: ErrorCode, text: str) -> Any:
    return _Group(
        error_code=code,
        error_message=text or code.name,
        group_id=group_id,
        group_state="Dead",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


def _member(request: Request, one: MemberDescription) -> Any:
    return _Member(
        member_id=one.member_id,
        instance_id=one.instance_id,
        rack_id=one.rack_id,
        member_epoch=one.member_epoch,
        client_id=one.client_id,
        client_host=one.client_host,
        subscribed_topic_names=list(one.subscribed_topics),
        subscribed_topic_regex=one.subscribed_regex,
        assignment=_assignment(request, one.assignment),
        target_assignment=_assignment(request, one.target),
        member_type=_CLASSIC_MEMBER if one.is_classic else _CONSUMER_MEMBER,
    )


def _assignment(request: Request, assignment: Assignment) -> Any:
    topics = request.services.image.topics
    return _Assignment(
        topic_partitions=[
            _Assignment.TopicPartitions(
                topic_id=uuid_of(topic_id),
                topic_name=topics[topic_id].name,
                partitions=sorted(indexes),
            )
            for topic_id, indexes in sorted(assignment.items())
            if topic_id in topics
        ]
    )
