"""Responses of DescribeGroups and ConsumerGroupDescribe for groups that exist and for others."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from odradek_broker.access.authorizer import AclAuthorizer, Authorizer
from odradek_broker.groups.messages import GroupDescription, MemberDescription
from odradek_broker.kafka.registry import Registry
from odradek_protocol.access import OPERATIONS_OF, Operation, ResourceType
from odradek_protocol.identity import GroupId, MemberId, MetadataOffset, PartitionIndex
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from odradek_protocol.kafka.response_encoding import encode_message
from odradek_protocol.metadata.records import FeatureLevel
from tests.unit.kafka.fake_broker import TOPICS, AgreeableGroups, answered, request, services
from tests.unit.kafka.requests_to_everything import message_of
from tests.unit.security.acl_entries import entries_for

GROUP_BITS = sum(1 << one for one in OPERATIONS_OF[ResourceType.GROUP])
_NOT_THERE = GroupDescription(
    error=ErrorCode.GROUP_ID_NOT_FOUND, group_id=GroupId("g"), state="Dead"
)


class OneGroup(AgreeableGroups):
    told = _NOT_THERE

    async def describe(self, group_id: GroupId) -> GroupDescription:
        return self.told


async def described(
    key: ApiKey, version: int, told: GroupDescription, authorizer: Authorizer | None = None
) -> Any:
    served = services(authorizer)
    parts: Any = {"partitions": served.partitions, "topic_creation": served.topic_creation}
    groups = OneGroup(settings=served.settings, **parts)
    groups.told = told
    served.groups = groups
    asks, answers, names = (
        (ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, "group_ids")
        if key is ApiKey.CONSUMER_GROUP_DESCRIBE
        else (DescribeGroupsRequest, DescribeGroupsResponse, "groups")
    )
    message = asks(**{names: ["g"]}, include_authorized_operations=True)
    handler = Registry(served).find(key, version)
    assert handler is not None
    reply: Any = await handler.handle(request(served, key, version, message))
    return answers.decode(bytes(encode_message(reply, version)), version=version).groups[0]


@pytest.mark.parametrize("version", [0, 1])
async def test_a_consumer_group_has_its_own_assignor_and_the_callers_rights(version: int) -> None:
    told = GroupDescription(
        error=ErrorCode.NONE,
        group_id=GroupId("g"),
        state="Stable",
        group_type="consumer",
        protocol="range",
    )
    group = await described(ApiKey.CONSUMER_GROUP_DESCRIBE, version, told)
    assert (group.error_code, group.group_state, group.assignor_name) == (0, "Stable", "range")
    assert group.authorized_operations == GROUP_BITS


@pytest.mark.parametrize("part", ["assignment", "target"])
@pytest.mark.parametrize("sees_all", [True, False])
async def test_who_may_not_see_a_topic_is_not_told_that_a_group_reads_it(
    sees_all: bool, part: str
) -> None:
    """Kafka does the same since 4.0 (KAFKA-18813), because a group's description reveals the names of its topics."""
    seen = list(TOPICS) if sees_all else ["orders"]
    authorizer = AclAuthorizer()
    authorizer.entries_changed(
        entries_for(
            "User:alice",
            [
                (Operation.DESCRIBE, ResourceType.GROUP, "g"),
                *((Operation.DESCRIBE, ResourceType.TOPIC, name) for name in seen),
            ],
        )
    )
    member = MemberDescription(
        member_id=MemberId("m"), instance_id=None, client_id="c", client_host="h"
    )
    owned = {topic_id: frozenset({PartitionIndex(0)}) for topic_id in TOPICS.values()}
    told = GroupDescription(
        error=ErrorCode.NONE,
        group_id=GroupId("g"),
        state="Stable",
        group_type="consumer",
        members=(member, replace(member, **{part: owned})),
    )
    group = await described(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, told, authorizer)
    if sees_all:
        assert (group.error_code, len(group.members)) == (ErrorCode.NONE, 2)
    else:
        assert group.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert group.members == []
        assert "payments" not in group.error_message


@pytest.mark.parametrize(
    ("key", "version"), [(ApiKey.CONSUMER_GROUP_DESCRIBE, 1), (ApiKey.DESCRIBE_GROUPS, 6)]
)
async def test_a_group_that_is_not_there_is_named_in_the_error(key: ApiKey, version: int) -> None:
    group = await described(key, version, _NOT_THERE)
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert group.error_message == "Group g not found."


@pytest.mark.parametrize("version", [0, 5])
async def test_old_clients_are_told_that_it_is_dead(version: int) -> None:
    group = await described(ApiKey.DESCRIBE_GROUPS, version, _NOT_THERE)
    assert (group.error_code, group.group_state) == (ErrorCode.NONE, "Dead")


@pytest.mark.parametrize("key", [ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE])
async def test_a_cluster_may_do_without_the_consumer_protocol(key: ApiKey) -> None:
    """The protocol is off after `kafka-features downgrade --feature group.version=0`."""
    served = services()
    image = served.partitions.image
    image.replay(MetadataOffset(image.offset + 1), 1, FeatureLevel(name="group.version", level=0))
    told = Registry(served).find(ApiKey.API_VERSIONS, 4)
    assert told is not None
    reply = await answered(served, key, 1, message_of(key, 1))
    answer = reply.groups[0] if key is ApiKey.CONSUMER_GROUP_DESCRIBE else reply
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    asks = message_of(ApiKey.API_VERSIONS, 4)
    versions: Any = told.handle(request(served, ApiKey.API_VERSIONS, 4, asks))
    assert "group.version" in {one.name for one in versions.supported_features}
    assert "group.version" not in {one.name for one in versions.finalized_features}
