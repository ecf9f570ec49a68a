"""Requests of groups at a coordinator that runs: what one of them says does not harm the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from odradek_broker.groups.messages import FetchOffsets
from odradek_broker.kafka_api.registry import Registry
from odradek_broker.kafka_api.services import Services
from odradek_protocol.identity import GroupId, TopicId
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import OffsetCommitRequest
from tests.unit.coordination.partitions_in_memory import PartitionsInMemory
from tests.unit.coordination.running import running, when_answered
from tests.unit.kafka.fake_broker import request, services

INT64_MAX = (1 << 63) - 1


@asynccontextmanager
async def coordinating() -> AsyncIterator[Services]:
    """A broker whose coordinator has loaded; there is a topic `orders`."""
    partitions = PartitionsInMemory()
    partitions.create("orders", TopicId(b"o" * 16), 2)
    served = services()
    async with running(partitions) as groups:
        served.groups = groups
        await when_answered(
            lambda: groups.fetch_offsets(FetchOffsets(group_id=GroupId("g"), partitions=None))
        )
        yield served


async def answered(served: Services, key: ApiKey, version: int, message: Any) -> Any:
    handler = Registry(served).find(key, version)
    assert handler is not None
    return await handler.handle(request(served, key, version, message))


def commit(offset: int, **says: Any) -> Any:
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata="", committed_leader_epoch=-1
    )
    return OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[topic(name="orders", partitions=[partition])],
        **says,
    )


@pytest.mark.parametrize("retention_ms", [1, INT64_MAX])
async def test_an_offset_may_be_kept_for_as_long_as_a_client_likes(retention_ms: int) -> None:
    async with coordinating() as served:
        for offset in (7, 8):
            message = commit(offset, retention_time_ms=retention_ms)
            told = await answered(served, ApiKey.OFFSET_COMMIT, 4, message)
            assert told.topics[0].partitions[0].error_code == ErrorCode.NONE
        fetched = await served.groups.fetch_offsets(
            FetchOffsets(group_id=GroupId("g"), partitions=None)
        )
        assert [one.offset for one in fetched.offsets.values()] == [8]
