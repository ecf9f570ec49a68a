"""The admin client, tested against a cluster in memory."""

from __future__ import annotations

import pytest

from odradek import Client, ConfigResource, ConfigResourceType, NewTopic
from odradek.admin.access import ScramMechanism, salted_password
from odradek.errors import (
    BrokersUnavailable,
    InvalidConfig,
    InvalidTopic,
    OffsetOutOfRange,
    TopicExists,
    UnknownTopic,
    UnsupportedOperation,
)
from odradek.testing import MemoryCluster


async def test_topics_are_created_described_listed_grown_and_deleted(client: Client) -> None:
    admin = client.admin
    created = await admin.create_topic("a", partitions=2, configs={"retention.ms": "5"})
    assert (created.partitions, len(created.topic_id)) == (2, 16)
    described = await admin.describe_topic("a")
    assert described.topic_id == created.topic_id
    assert [p.leader_id for p in described.partitions] == [1, 2]
    assert described.partitions[0].replicas == described.partitions[0].isr == (1, 2, 3)
    await admin.add_partitions("a", 5)
    assert len((await admin.describe_topic("a")).partitions) == 5
    await admin.create_topic("b")
    assert [topic.name for topic in await admin.list_topics()] == ["a", "b"]
    await admin.delete_topic("a")
    with pytest.raises(UnknownTopic, match="'a' does not exist"):
        await admin.describe_topic("a")


@pytest.mark.parametrize(
    ("name", "arguments", "error", "words"),
    [
        ("there", {}, TopicExists, "topic 'there': the topic already exists"),
        ("no/slash", {}, InvalidTopic, "ASCII letters"),
        ("x", {"replication_factor": 9}, InvalidTopic, "there are only 3"),
        (
            "x",
            {"configs": {"retention.years": "1"}},
            InvalidConfig,
            "no topic config retention.years",
        ),
    ],
)
async def test_refusals_name_the_thing_and_the_way_out(
    cluster: MemoryCluster, client: Client, name: str, arguments: dict, error: type, words: str
) -> None:
    cluster.create_topic("there")
    with pytest.raises(error, match=words):
        await client.admin.create_topic(name, **arguments)


async def test_calls_about_several_tell_each_ones_outcome(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("b")
    outcomes = await client.admin.create_topics([NewTopic(name=n, partitions=1) for n in "abc"])
    assert [o.error is None for o in outcomes] == [True, False, True]
    deleted = await client.admin.delete_topics(["a", "nowhere"])
    assert [type(o.error) for o in deleted] == [type(None), UnknownTopic]


async def test_validating_changes_nothing(cluster: MemoryCluster, client: Client) -> None:
    await client.admin.create_topic("a", partitions=1, validate_only=True)
    assert cluster.topics == {}


@pytest.mark.parametrize(
    ("name", "value", "is_good"),
    [
        ("min.compaction.lag.ms", "5", True),
        ("durability", "fsync", True),
        ("retention.ms", "soon", False),
        ("max.message.bytes", "-7", False),
        ("cleanup.policy", "shred", False),
    ],
)
async def test_the_cluster_in_memory_takes_the_configs_that_brokers_take(
    client: Client, name: str, value: str, is_good: bool
) -> None:
    admin = client.admin
    await admin.create_topic("t", partitions=1)
    if is_good:
        await admin.alter_topic_configs("t", set={name: value})
        assert (await admin.describe_topic_configs("t"))[name].value == value
        return
    with pytest.raises(InvalidConfig, match=name):
        await admin.alter_topic_configs("t", set={name: value})
    with pytest.raises(InvalidConfig, match=name):
        await admin.create_topic("u", partitions=1, configs={name: value})
    assert [topic.name for topic in await admin.list_topics()] == ["t"]


async def test_configs_are_told_with_their_source_set_and_deleted(client: Client) -> None:
    admin = client.admin
    await admin.create_topic("t", partitions=1, configs={"retention.ms": "5"})
    await admin.alter_topic_configs("t", set={"segment.bytes": "1048576"}, delete=["retention.ms"])
    configs = await admin.describe_topic_configs("t")
    assert (configs["segment.bytes"].value, configs["segment.bytes"].source.name) == (
        "1048576",
        "TOPIC",
    )
    assert configs["retention.ms"].source.name == "BUILT_IN"
    resource = ConfigResource(type=ConfigResourceType.TOPIC, name="t")
    assert list(await admin.describe_configs(resource, ["segment.bytes"])) == ["segment.bytes"]
    with pytest.raises(InvalidConfig, match=r"topic 't'.*nonsense"):
        await admin.alter_configs(resource, set={"nonsense": "1"})


async def test_records_are_deleted_up_to_an_offset(client: Client) -> None:
    await client.admin.create_topic("t", partitions=1)
    async with client.producer() as producer:
        await producer.send_many("t", [b"x"] * 10)
    (outcome,) = await client.admin.delete_records({("t", 0): -1})
    assert (outcome.offset, outcome.error) == (10, None)
    (outcome,) = await client.admin.delete_records({("t", 0): 99})
    assert isinstance(outcome.error, OffsetOutOfRange)
    assert (await client.admin.list_offsets({("t", 0): -2}))[("t", 0)].offset == 10  # type: ignore[index]


async def test_an_election_of_no_partitions_elects_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t", partitions=3)
    assert await client.admin.elect_leaders([]) == []
    assert await client.admin.elect_leaders(iter(()), unclean=True) == []
    assert len(await client.admin.elect_leaders()) == 3


async def test_the_cluster_and_its_brokers(cluster: MemoryCluster, client: Client) -> None:
    cluster.kill(2)
    described = await client.admin.describe_cluster()
    assert described.cluster_id == cluster.cluster_id
    assert [(b.broker_id, b.is_fenced) for b in described.brokers] == [
        (1, False), (2, True), (3, False),
    ]  # fmt: skip
    assert [b.broker_id for b in await client.admin.list_brokers()] == [1, 3]


async def test_any_broker_does_and_none_is_an_error(cluster: MemoryCluster, client: Client) -> None:
    cluster.kill(1)
    cluster.kill(3)
    assert (await client.admin.describe_cluster()).active_controller_id == 1
    cluster.kill(2)
    client.admin._timeout_s = 0.2
    with pytest.raises(BrokersUnavailable):
        await client.admin.describe_cluster()


async def test_what_a_broker_does_not_offer_is_said(client: Client) -> None:
    with pytest.raises(UnsupportedOperation, match="does not support DescribeQuotas"):
        await client.admin.describe_quotas()


def test_passwords_leave_this_process_salted_and_hashed_only() -> None:
    salt, hashed = salted_password(ScramMechanism.SCRAM_SHA_256, "secret", 4096)
    other_salt, other = salted_password(ScramMechanism.SCRAM_SHA_256, "secret", 4096)
    assert (len(salt), len(hashed)) == (32, 32)
    assert salt != other_salt
    assert hashed != other
