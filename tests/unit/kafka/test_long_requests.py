"""A request that names thousands of things is answered in turns with those of everybody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from odradek_broker.kafka_api.registry import Registry
from odradek_broker.kafka_api.turns import AT_ONCE
from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import ApiKey
from tests.unit.kafka.fake_broker import request
from tests.unit.kafka.test_group_requests import coordinating

COUNT = 20 * AT_ONCE
NAMES = [f"name-{number}" for number in range(COUNT)]
_OFFSETS_OF = messages.OffsetFetchRequest.OffsetFetchRequestGroup
_TIMES_OF = messages.ListOffsetsRequest.ListOffsetsTopic
_TOPIC = messages.MetadataRequest.MetadataRequestTopic


@pytest.mark.parametrize(
    ("key", "version", "message"),
    [
        (ApiKey.DESCRIBE_GROUPS, 6, messages.DescribeGroupsRequest(groups=NAMES)),
        (
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            1,
            messages.ConsumerGroupDescribeRequest(group_ids=NAMES),
        ),
        (ApiKey.DELETE_GROUPS, 2, messages.DeleteGroupsRequest(groups_names=NAMES)),
        (
            ApiKey.OFFSET_FETCH,
            9,
            messages.OffsetFetchRequest(
                groups=[_OFFSETS_OF(group_id=one, member_id=None, topics=None) for one in NAMES]
            ),
        ),
        (
            ApiKey.FIND_COORDINATOR,
            4,
            messages.FindCoordinatorRequest(key_type=0, coordinator_keys=NAMES),
        ),
        (
            ApiKey.LIST_OFFSETS,
            7,
            messages.ListOffsetsRequest(
                topics=[
                    _TIMES_OF(
                        name="orders",
                        partitions=[
                            _TIMES_OF.ListOffsetsPartition(partition_index=one, timestamp=-1)
                            for one in range(COUNT)
                        ],
                    )
                ]
            ),
        ),
        (
            ApiKey.METADATA,
            12,
            messages.MetadataRequest(
                topics=[_TOPIC(name=one, topic_id=None) for one in NAMES],
                allow_auto_topic_creation=False,
            ),
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else "",
)
async def test_others_have_their_turns(key: ApiKey, version: int, message: Any) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with coordinating() as served:
        handler = Registry(served).find(key, version)
        assert handler is not None
        counting = asyncio.create_task(others())
        reply: Any = await handler.handle(request(served, key, version, message))
        counting.cancel()
    assert reply is not None
    assert turns >= COUNT // AT_ONCE
