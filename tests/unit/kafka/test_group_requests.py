"""Group requests at a running coordinator: an invalid part of one request does not affect its other
parts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from odradek_broker.access.authorizer import AclAuthorizer, Authorizer
from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import FetchOffsets
from odradek_broker.kafka.request import AT_ONCE_MAX
from odradek_broker.kafka.services import Services
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.identity import GroupId
from odradek_protocol.kafka.api_keys import ITEMS_MAX, ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    ConsumerGroupHeartbeatRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    uuid_of,
)
from odradek_protocol.primitives import Malformed
from tests.unit.kafka.fake_broker import TOPICS, answered, request, services
from tests.unit.replication.partitions_in_memory import PartitionsInMemory
from tests.unit.replication.running import running, when_answered
from tests.unit.security.acl_entries import entries_for

INT64_MAX = (1 << 63) - 1


@asynccontextmanager
async def coordinating(authorizer: Authorizer | None = None) -> AsyncIterator[Services]:
    """Yield a broker whose group coordinator has loaded; there are topics `orders` and
    `payments`.
    """
    partitions = PartitionsInMemory()
    for name, topic_id in TOPICS.items():
        partitions.create(name, topic_id, 2)
    served = services(authorizer)
    async with running(partitions, authorizer) as groups:
        served.groups, served.partitions = groups, partitions  # type: ignore[assignment]  # of it what they need
        await when_answered(
            lambda: groups.fetch_offsets(FetchOffsets(group_id=GroupId("g"), partitions=None))
        )
        yield served


def commit(offset: int, *, member_id: str = "", epoch: int = -1, **says: Any) -> Any:
    """Return a request that commits partition 0 of `orders`, unless `topics` says otherwise."""
    topics = says.pop("topics", [{"name": "orders", "indexes": [0]}])
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    return OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        topics=[
            topic(
                **{key: value for key, value in one.items() if key != "indexes"},
                partitions=[
                    topic.OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_metadata="",
                        committed_leader_epoch=-1,
                    )
                    for index in one["indexes"]
                ],
            )
            for one in topics
        ],
        **says,
    )


def fetch(topics: list[Any] | None) -> Any:
    """Return a request for offsets of the group; `topics` has each topic's fields and its
    `partition_indexes`.
    """
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    named = None if topics is None else [group.OffsetFetchRequestTopics(**one) for one in topics]
    return OffsetFetchRequest(groups=[group(group_id="g", topics=named)])


def codes(response: Any) -> list[tuple[Any, int, int]]:
    """Return (name or id, partition, error code) of each partition in a response to
    OffsetCommit.
    """
    return [
        (topic.name or topic.topic_id.bytes, one.partition_index, one.error_code)
        for topic in response.topics
        for one in topic.partitions
    ]


async def test_a_classic_member_keeps_its_place_while_its_group_loads() -> None:
    """aiokafka ends a consumer whose heartbeat gets COORDINATOR_LOAD_IN_PROGRESS, which Apache Kafka never returns."""
    partitions, served = PartitionsInMemory(), services(None)
    async with running(partitions) as groups:
        served.groups, served.partitions = groups, partitions  # type: ignore[assignment]  # as above
        with pytest.raises(CoordinatorError) as loading:
            groups.listings()
        assert loading.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        message = HeartbeatRequest(group_id="g", generation_id=7, member_id="m")
        beat = await answered(served, ApiKey.HEARTBEAT, 4, message)
        assert beat.error_code == ErrorCode.NONE


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


async def test_partitions_that_are_not_there_are_refused_before_the_member_is_judged() -> None:
    """Kafka does the same. If all partitions are refused, the group is not involved at all."""
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    async with coordinating() as served:
        named = [{"name": "orders", "indexes": [0, 9]}, {"name": "nowhere", "indexes": [0]}]
        message = commit(7, member_id="nobody", epoch=3, topics=named)
        assert codes(await answered(served, ApiKey.OFFSET_COMMIT, 9, message)) == [
            ("orders", 0, ErrorCode.UNKNOWN_MEMBER_ID),
            ("orders", 9, unknown),
            ("nowhere", 0, unknown),
        ]
        message = commit(7, member_id="nobody", epoch=3, topics=named[1:])
        response = await answered(served, ApiKey.OFFSET_COMMIT, 9, message)
        assert codes(response) == [("nowhere", 0, unknown)]


async def test_offsets_are_committed_and_fetched_by_topic_id_from_version_10_on() -> None:
    gone = b"g" * 16
    async with coordinating() as served:
        topics = [
            {"topic_id": uuid_of(TOPICS["orders"]), "indexes": [1, 9]},
            {"topic_id": uuid_of(gone), "indexes": [0]},
        ]
        message = commit(7, topics=topics)
        assert codes(await answered(served, ApiKey.OFFSET_COMMIT, 10, message)) == [
            (TOPICS["orders"], 1, ErrorCode.NONE),
            (TOPICS["orders"], 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (gone, 0, ErrorCode.UNKNOWN_TOPIC_ID),
        ]
        named = [
            {"topic_id": uuid_of(one), "partition_indexes": [1]} for one in (TOPICS["orders"], gone)
        ]
        for topics_wanted, expected in (
            (
                named,
                [
                    (TOPICS["orders"], 1, 7, ErrorCode.NONE),
                    (gone, 1, -1, ErrorCode.UNKNOWN_TOPIC_ID),
                ],
            ),
            (None, [(TOPICS["orders"], 1, 7, ErrorCode.NONE)]),
        ):
            message = fetch(topics_wanted)
            response = await answered(served, ApiKey.OFFSET_FETCH, 10, message)
            (group,) = response.groups
            assert group.error_code == ErrorCode.NONE
            assert [
                (topic.topic_id.bytes, one.partition_index, one.committed_offset, one.error_code)
                for topic in group.topics
                for one in topic.partitions
            ] == expected


async def test_who_may_not_know_of_a_topic_is_not_told_by_its_id_that_it_is_there() -> None:
    authorizer = AclAuthorizer()
    rights = [(Operation.READ, ResourceType.GROUP, "g")]
    authorizer.entries_changed(entries_for("User:alice", rights))
    async with coordinating(authorizer) as served:
        topics = [{"topic_id": uuid_of(TOPICS["orders"]), "indexes": [0]}]
        message = commit(7, topics=topics)
        assert codes(await answered(served, ApiKey.OFFSET_COMMIT, 10, message)) == [
            (TOPICS["orders"], 0, ErrorCode.UNKNOWN_TOPIC_ID)
        ]


async def test_a_pattern_gives_nobody_topics_that_they_may_not_know_of() -> None:
    """Kafka does the same since 4.0 (KAFKA-18813).

    The right to see a topic may change during the life of the group.
    """
    authorizer = AclAuthorizer()

    def may_describe(*topics: str) -> None:
        rights = [(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in topics]
        authorizer.entries_changed(
            entries_for("User:alice", [(Operation.READ, ResourceType.GROUP, "g"), *rights])
        )

    async def beat(epoch: int, **says: Any) -> tuple[int, set[bytes] | None]:
        message = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=epoch, **says
        )
        told = await answered(served, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, message)
        assert told.error_code == ErrorCode.NONE
        given = told.assignment
        named = None if given is None else {one.topic_id.bytes for one in given.topic_partitions}
        return told.member_epoch, named

    may_describe("orders")
    async with coordinating(authorizer) as served:
        joins = {"rebalance_timeout_ms": 1_000, "topic_partitions": []}
        epoch, given = await beat(0, subscribed_topic_regex=".*", **joins)
        assert given == {TOPICS["orders"]}
        may_describe("orders", "payments")
        served.partitions.image.advance(served.partitions.image.offset + 1, 1)
        epoch, given = await beat(epoch)
        assert given == set(TOPICS.values())
        may_describe()
        served.partitions.image.advance(served.partitions.image.offset + 1, 1)
        assert await beat(epoch) == (epoch, set())


async def test_a_pattern_matches_internal_topics_like_others() -> None:
    """Kafka does the same: to exclude them is up to the client."""
    async with coordinating() as served:
        message = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=0,
            subscribed_topic_regex=".*",
            rebalance_timeout_ms=1_000,
            topic_partitions=[],
        )
        response = await answered(served, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, message)
        topics = served.image.topics
        assert {
            topics[one.topic_id.bytes].name for one in response.assignment.topic_partitions
        } == {
            "__consumer_offsets",
            "orders",
            "payments",
        }


@pytest.mark.parametrize(
    ("key_type", "version", "code", "said"),
    [
        (1, 6, ErrorCode.UNSUPPORTED_VERSION, "does not support transactions: raise the feature"),
        (2, 6, ErrorCode.UNSUPPORTED_VERSION, "share groups are not supported"),
        (3, 6, ErrorCode.INVALID_REQUEST, "key type 3 is unknown"),
    ],
)
async def test_coordinators_of_what_is_not_supported_are_refused_by_saying_so(
    key_type: int, version: int, code: ErrorCode, said: str
) -> None:
    async with coordinating() as served:
        message = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["tx"])
        response = await answered(served, ApiKey.FIND_COORDINATOR, version, message)
        (found,) = response.coordinators
        assert found.error_code == code
        assert said in found.error_message


async def test_every_key_gets_a_coordinator_or_the_request_is_refused() -> None:
    async with coordinating() as served:
        keys = [f"g{n}" for n in range(ITEMS_MAX)]
        message = FindCoordinatorRequest(key_type=0, coordinator_keys=keys)
        response = await answered(served, ApiKey.FIND_COORDINATOR, 6, message)
        assert [coordinator.key for coordinator in response.coordinators] == keys
        message = FindCoordinatorRequest(key_type=0, coordinator_keys=[*keys, "more"])
        with pytest.raises(Malformed, match="more than 10000 items"):
            await answered(served, ApiKey.FIND_COORDINATOR, 6, message)


async def test_a_transactional_id_is_refused_by_saying_that_it_is_not_supported() -> None:
    async with coordinating() as served:
        message = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1)
        response = await answered(served, ApiKey.INIT_PRODUCER_ID, 5, message)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("durability", ["replicated", "fsync"])
def test_the_topic_of_offsets_is_created_as_durable_as_the_setting_says(durability: str) -> None:
    served = services(offsets_topic_durability=durability)
    assert served.groups.placement.configs["durability"] == durability


def test_commits_wait_for_no_disk_by_default() -> None:
    assert services().groups.placement.configs["durability"] == "replicated"


@pytest.mark.parametrize("count", [0, 1, AT_ONCE_MAX, AT_ONCE_MAX + 1])
async def test_a_few_items_take_no_turns_of_the_loop(count: int) -> None:
    made = request(services(), ApiKey.OFFSET_COMMIT, 7, None)
    assert [item async for item in made.in_turns(list(range(count)))] == list(range(count))
    assert (made._pace is None) is (count <= AT_ONCE_MAX)


async def test_offsets_of_partitions_that_are_not_there_are_not_deleted() -> None:
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    partition = topic.OffsetDeleteRequestPartition
    topics = [
        topic(name=name, partitions=[partition(partition_index=index) for index in (0, 9)])
        for name in ("orders", "nowhere")
    ]
    async with coordinating() as served:
        await answered(served, ApiKey.OFFSET_COMMIT, 7, commit(7))
        message = OffsetDeleteRequest(group_id="g", topics=topics)
        response = await answered(served, ApiKey.OFFSET_DELETE, 0, message)
        nameless = OffsetDeleteRequest(group_id="", topics=topics)
        refused = await answered(served, ApiKey.OFFSET_DELETE, 0, nameless)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = [[one.error_code for one in topic.partitions] for topic in response.topics]
    assert found == [[ErrorCode.NONE, unknown], [unknown, unknown]]
    assert refused.error_code == ErrorCode.INVALID_GROUP_ID
