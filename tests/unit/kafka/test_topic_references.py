"""How requests refer to topics: by name or by id, once or twice, and by names that are empty."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    uuid_of,
)
from tests.unit.kafka.fake_broker import TOPICS, answered, services

ORDERS, PAYMENTS = uuid_of(TOPICS["orders"]), uuid_of(TOPICS["payments"])
NO_ID = uuid.UUID(int=0)


def deletion(*topics: tuple[str | None, uuid.UUID]) -> Any:
    state = DeleteTopicsRequest.DeleteTopicState
    return DeleteTopicsRequest(
        topics=[state(name=name, topic_id=an_id) for name, an_id in topics], timeout_ms=1000
    )


@pytest.mark.parametrize(
    ("topics", "codes"),
    [
        ([("orders", NO_ID)], [ErrorCode.NONE]),
        ([(None, ORDERS)], [ErrorCode.NONE]),
        ([("orders", NO_ID), ("orders", NO_ID)], [ErrorCode.INVALID_REQUEST]),
        ([(None, ORDERS), (None, ORDERS)], [ErrorCode.INVALID_REQUEST]),
        ([("orders", NO_ID), (None, ORDERS)], [ErrorCode.INVALID_REQUEST] * 2),
        ([("orders", ORDERS)], [ErrorCode.INVALID_REQUEST]),
        ([(None, NO_ID)], [ErrorCode.INVALID_REQUEST]),
        ([("", NO_ID)], [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
        ([("orders", NO_ID), ("payments", NO_ID)], [ErrorCode.NONE] * 2),
        (
            [("orders", NO_ID), ("payments", NO_ID), ("payments", NO_ID)],
            [ErrorCode.NONE, ErrorCode.INVALID_REQUEST],
        ),
    ],
)
async def test_a_topic_that_is_named_twice_is_not_deleted(
    topics: list[tuple[str | None, uuid.UUID]], codes: list[ErrorCode]
) -> None:
    served = services()
    response = await answered(served, ApiKey.DELETE_TOPICS, 6, deletion(*topics))
    assert [one.error_code for one in response.responses] == codes


@pytest.mark.parametrize(
    ("counts", "code"),
    [
        ([("orders", 3, None)], ErrorCode.NONE),
        ([("orders", 3, None), ("orders", 4, None)], ErrorCode.INVALID_REQUEST),
        ([("orders", 3, [])], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([("", 3, None)], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_a_topic_that_is_named_twice_does_not_grow(
    counts: list[tuple[str, int, Any]], code: ErrorCode
) -> None:
    """Nor does one with an empty list of assignments, which is not the same as none."""
    topic = CreatePartitionsRequest.CreatePartitionsTopic
    message = CreatePartitionsRequest(
        topics=[topic(name=n, count=count, assignments=given) for n, count, given in counts],
        timeout_ms=1000,
        validate_only=False,
    )
    response = await answered(services(), ApiKey.CREATE_PARTITIONS, 3, message)
    assert [one.error_code for one in response.results] == [code]


@pytest.mark.parametrize(
    ("name", "topic_id", "code"),
    [
        ("payments", ORDERS, ErrorCode.NONE),
        ("nowhere", ORDERS, ErrorCode.NONE),
        ("orders", uuid.UUID(int=7), ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
async def test_metadata_follow_the_id_and_not_the_name_beside_it(
    name: str, topic_id: uuid.UUID, code: ErrorCode
) -> None:
    served = services()
    topic = MetadataRequest.MetadataRequestTopic(name=name, topic_id=topic_id)
    message = MetadataRequest(topics=[topic], allow_auto_topic_creation=True)
    (found,) = (await answered(served, ApiKey.METADATA, 12, message)).topics
    assert (found.error_code, found.name) == (code, "orders" if code == ErrorCode.NONE else None)
    assert served.image.topic(name) is None or name != "nowhere"


@pytest.mark.parametrize(
    ("cursor", "codes"),
    [
        (None, [ErrorCode.NONE, ErrorCode.NONE]),
        (("payments", 0), [ErrorCode.NONE]),
        (("orders", -1), [ErrorCode.INVALID_REQUEST] * 2),
        (("a", 0), [ErrorCode.INVALID_REQUEST] * 2),
        (("z", 0), [ErrorCode.INVALID_REQUEST] * 2),
    ],
)
async def test_a_page_of_partitions_begins_at_a_topic_of_the_request(
    cursor: tuple[str, int] | None, codes: list[ErrorCode]
) -> None:
    named = DescribeTopicPartitionsRequest.TopicRequest
    at = None
    if cursor is not None:
        name, index = cursor
        at = DescribeTopicPartitionsRequest.Cursor(topic_name=name, partition_index=index)
    message = DescribeTopicPartitionsRequest(
        topics=[named(name=name) for name in TOPICS], response_partition_limit=10, cursor=at
    )
    response = await answered(services(), ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, message)
    assert [topic.error_code for topic in response.topics] == codes


async def test_a_topic_that_cannot_exist_is_not_described_as_unknown() -> None:
    message = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name="a b")],
        response_partition_limit=10,
        cursor=None,
    )
    (topic,) = (await answered(services(), ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, message)).topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_a_validated_topic_is_described_with_the_configs_that_it_would_have() -> None:
    topic = CreateTopicsRequest.CreatableTopic
    config = topic.CreatableTopicConfig(name="retention.ms", value="5")
    message = CreateTopicsRequest(
        topics=[
            topic(
                name="new",
                num_partitions=1,
                replication_factor=1,
                assignments=[],
                configs=[config],
            )
        ],
        timeout_ms=1000,
        validate_only=True,
    )
    (created,) = (await answered(services(), ApiKey.CREATE_TOPICS, 7, message)).topics
    values = {one.name: (one.value, one.config_source) for one in created.configs}
    assert values["retention.ms"] == ("5", 1)
