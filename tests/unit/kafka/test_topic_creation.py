"""Automatic creation of topics: whether it happens, and with how many partitions and replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odradek_broker.cluster.topic_creation import TopicCreation
from odradek_broker.kafka.registry import Registry
from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import ALL_BROKERS, MetadataImage
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from tests.unit.kafka.fake_broker import request, services


class Refusing:
    """A controller that refuses every request, and records it."""

    def __init__(self) -> None:
        self.asked: list[pb.NewTopic] = []

    async def call(
        self, method: str, request: pb.CreateTopicsRequest, **_: Any
    ) -> pb.CreateTopicsResponse:
        self.asked += request.topics
        refused = pb.TopicResult(error_code=7)
        return pb.CreateTopicsResponse(topics=[refused] * len(request.topics), metadata_offset=-1)


class FixedImages:
    """Metadata that do not change."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image

    def watch_image(self, _watcher: Callable[[MetadataImage], None]) -> Callable[[], None]:
        return lambda: None


def creation_of(controller: Refusing, cluster: dict[str, str]) -> TopicCreation:
    image = MetadataImage()
    if cluster:
        image.configs[ALL_BROKERS] = cluster
    return TopicCreation(
        controllers=controller,  # type: ignore[arg-type]
        images=FixedImages(image),
    )


async def test_the_controller_chooses_the_counts_of_partitions_and_replicas() -> None:
    controller = Refusing()
    await creation_of(controller, {"num.partitions": "8"}).ensure(["t"])
    (created,) = controller.asked
    assert (created.partition_count, created.replication_factor) == (-1, -1)


@pytest.mark.parametrize(
    ("cluster", "is_enabled"),
    [
        ({}, True),
        ({"auto.create.topics.enable": "false"}, False),
        ({"auto.create.topics.enable": "true"}, True),
    ],
)
def test_the_cluster_decides_whether_topics_are_created(
    cluster: dict[str, str], is_enabled: bool
) -> None:
    assert creation_of(Refusing(), cluster).is_enabled is is_enabled


@pytest.mark.parametrize("has_assignment", [False, True])
async def test_a_config_without_a_value_is_refused(has_assignment: bool) -> None:
    topic_of = messages.CreateTopicsRequest.CreatableTopic
    assignment = topic_of.CreatableReplicaAssignment(partition_index=0, broker_ids=[1])
    topic = topic_of(
        name="new",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[assignment] if has_assignment else [],
        configs=[topic_of.CreatableTopicConfig(name="retention.ms", value=None)],
    )
    message = messages.CreateTopicsRequest(topics=[topic], timeout_ms=100, validate_only=False)
    served = services()
    handler = Registry(served).find(ApiKey.CREATE_TOPICS, 7)
    assert handler is not None
    response = await handler.handle(request(served, ApiKey.CREATE_TOPICS, 7, message))
    assert [one.error_code for one in response.topics] == [ErrorCode.INVALID_CONFIG]
