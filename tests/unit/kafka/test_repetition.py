"""A name that a request repeats occurs once in the response; otherwise the response could be
thousands of times larger.
"""

from __future__ import annotations

from typing import Any

import pytest

from odradek_broker.groups.messages import (
    CommittedOffset,
    FetchedOffsets,
    GroupDescription,
    MemberDescription,
)
from odradek_broker.kafka.registry import Registry
from odradek_broker.kafka.request import Encoded
from odradek_protocol.identity import GroupId, MemberId, PartitionIndex, TopicName, TopicPartition
from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.response_encoding import encode_message
from odradek_protocol.metadata.records import ConfigResourceType
from tests.unit.kafka.fake_broker import AgreeableGroups, request, services

TIMES = 2_000
ANSWER_BYTES_MAX = 64 * 1024
_OFFSETS_OF = messages.OffsetFetchRequest.OffsetFetchRequestGroup
_CONFIGS_OF = messages.DescribeConfigsRequest.DescribeConfigsResource
_MEMBER = {"instance_id": None, "client_id": "c", "client_host": "h"}


class LargeGroups(AgreeableGroups):
    """A coordinator in which every group exists, with a member whose metadata has 4 KiB and a hundred offsets."""

    async def describe(self, group_id: GroupId) -> GroupDescription:
        return GroupDescription(
            error=ErrorCode.NONE,
            group_id=group_id,
            state="Stable",
            group_type="consumer" if group_id == "consumers" else "classic",
            members=(
                MemberDescription(member_id=MemberId("m" * 4096), metadata=bytes(4096), **_MEMBER),
            ),
        )

    async def fetch_offsets(self, request: Any) -> FetchedOffsets:
        partitions = [TopicPartition(TopicName("orders"), PartitionIndex(i)) for i in range(100)]
        return FetchedOffsets(
            error=ErrorCode.NONE, offsets={p: CommittedOffset(offset=1) for p in partitions}
        )


@pytest.mark.parametrize(
    ("key", "version", "message"),
    [
        (
            ApiKey.METADATA,
            12,
            messages.MetadataRequest(
                topics=[messages.MetadataRequest.MetadataRequestTopic(name="orders", topic_id=None)]
                * TIMES
            ),
        ),
        (
            ApiKey.DESCRIBE_CONFIGS,
            4,
            messages.DescribeConfigsRequest(
                resources=[
                    _CONFIGS_OF(
                        resource_type=ConfigResourceType.TOPIC,
                        resource_name="orders",
                        configuration_keys=None,
                    )
                ]
                * TIMES,
                include_synonyms=True,
                include_documentation=True,
            ),
        ),
        (ApiKey.DESCRIBE_GROUPS, 5, messages.DescribeGroupsRequest(groups=["g"] * TIMES)),
        (
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            1,
            messages.ConsumerGroupDescribeRequest(group_ids=["consumers"] * TIMES),
        ),
        (
            ApiKey.OFFSET_FETCH,
            9,
            messages.OffsetFetchRequest(
                groups=[_OFFSETS_OF(group_id="g", member_id=None, topics=None)] * TIMES
            ),
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else "",
)
async def test_what_is_named_again_and_again_is_told_once(
    key: ApiKey, version: int, message: Any
) -> None:
    served = services()
    parts: Any = {"partitions": served.partitions, "topic_creation": served.topic_creation}
    served.groups = LargeGroups(settings=served.settings, **parts)
    handler = Registry(served).find(key, version)
    assert handler is not None
    told: Any = handler.handle(request(served, key, version, message))
    if hasattr(told, "__await__"):
        told = await told
    size = told.size_bytes if isinstance(told, Encoded) else len(encode_message(told, version))
    assert 0 < size <= ANSWER_BYTES_MAX
