"""A client that changes metadata reads its own change at the same broker, without waiting for other changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from odradek_broker.cluster import metadata_changes
from odradek_broker.cluster.controller_client import NoController
from odradek_broker.cluster.topic_creation import TopicCreation
from odradek_broker.kafka import forwarding
from odradek_protocol.identity import MetadataOffset, TopicId
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import Topic
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.rpc.v1 import controller_service_pb2 as controller_pb
from tests.unit.kafka.fake_broker import request, services


class Images:
    """Metadata that the test advances entry by entry."""

    def __init__(self, offset: int = 10) -> None:
        self.image = MetadataImage()
        self._watchers: set[Callable[[MetadataImage], None]] = set()
        self.advance(offset)

    def advance(self, offset: int) -> None:
        self.image.advance(MetadataOffset(offset), 1)
        for watcher in tuple(self._watchers):
            watcher(self.image)

    def watch_image(self, watcher: Callable[[MetadataImage], None]) -> Callable[[], None]:
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    @property
    def is_watched(self) -> bool:
        return bool(self._watchers)


class Controllers:
    """A controller whose responses the test sets, by method."""

    active = None

    def __init__(self, **responses: Any) -> None:
        self.responses = responses
        self.calls: list[str] = []

    async def call(self, method: str, message: Any, **_: Any) -> Any:
        self.calls.append(method)
        if method not in self.responses:
            raise NoController(method)
        return self.responses[method]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_concurrent_change_does_not_end_the_wait() -> None:
    images = Images(offset=10)
    served = services()
    served.partitions = images  # type: ignore[assignment]
    served.controllers = Controllers(
        ElectLeaders=pb.ElectLeadersResponse(partitions=[pb.PartitionResult()], metadata_offset=12)
    )
    asked = request(served, ApiKey.ELECT_LEADERS, 2, None)
    changing = asyncio.create_task(
        forwarding.change(asked, "ElectLeaders", pb.ElectLeadersRequest(), pb.ElectLeadersResponse)
    )
    await settle()
    images.advance(11)  # another client's change
    await settle()
    assert not changing.done()
    images.advance(12)
    assert (await changing).metadata_offset == 12
    assert not images.is_watched


async def test_what_the_image_shows_already_is_not_waited_for() -> None:
    """A response without items, or to a request that changed nothing, names a log entry that
    brokers usually have.
    """
    images = Images(offset=10)
    controllers = Controllers(UpdateFeatures=pb.UpdateFeaturesResponse(metadata_offset=10))
    changing = metadata_changes.change(
        controllers, images, "UpdateFeatures", pb.UpdateFeaturesRequest(), timeout_s=10
    )
    with pytest.raises(StopIteration) as ended:  # it never waits: one step runs it to its end
        changing.send(None)
    assert ended.value.value.metadata_offset == 10


async def test_a_broker_that_lags_responds_within_its_bound() -> None:
    images = Images(offset=10)
    assert not await metadata_changes.at_least(images, 12, timeout_s=0)
    controllers = Controllers(DeleteTopics=pb.DeleteTopicsResponse(metadata_offset=12))
    response = await metadata_changes.change(
        controllers, images, "DeleteTopics", pb.DeleteTopicsRequest(), timeout_s=0
    )
    assert response.metadata_offset == 12, "another broker can still be asked to wait for it"
    assert not images.is_watched


async def test_an_older_controller_is_asked_what_it_has_committed() -> None:
    images = Images(offset=10)
    controllers = Controllers(
        AlterConfigs=pb.AlterConfigsResponse(),
        DescribeQuorum=controller_pb.DescribeQuorumResponse(commit_offset=13),
    )
    changing = asyncio.create_task(
        metadata_changes.change(
            controllers, images, "AlterConfigs", pb.AlterConfigsRequest(), timeout_s=10
        )
    )
    await settle()
    images.advance(11)
    await settle()
    assert not changing.done()
    images.advance(12)
    assert (await changing).metadata_offset == 12


async def test_a_change_is_reported_although_its_offset_cannot_be_learned() -> None:
    controllers = Controllers(AlterConfigs=pb.AlterConfigsResponse())
    response = await metadata_changes.change(
        controllers, Images(), "AlterConfigs", pb.AlterConfigsRequest(), timeout_s=10
    )
    assert response.metadata_offset == 0
    assert controllers.calls == ["AlterConfigs", "DescribeQuorum"]


async def test_a_topic_that_another_broker_has_just_created_is_waited_for() -> None:
    images = Images(offset=10)
    exists = pb.TopicResult(name="t", error_code=ErrorCode.TOPIC_ALREADY_EXISTS)
    creation = TopicCreation(
        controllers=Controllers(  # type: ignore[arg-type]
            CreateTopics=pb.CreateTopicsResponse(topics=[exists], metadata_offset=12)
        ),
        images=images,
    )
    ensuring = asyncio.create_task(creation.ensure(["t"]))
    await settle()
    images.advance(11)
    await settle()
    assert not ensuring.done()
    record = Topic(topic_id=TopicId(bytes(16)), name="t")
    images.image.replay(MetadataOffset(12), 1, record)
    images.advance(12)
    assert not await ensuring
