"""Topics that are deleted and created again under the same name, or get partitions, while they are read: none of their
records may be passed over.
"""

from __future__ import annotations

import asyncio

import pytest

from odradek import Client, Consumer
from odradek.cluster.cluster import LinkState
from odradek.consumer.fetch_planner import ResetPolicy
from odradek.consumer.options import GroupOptions
from odradek.errors import NotAssigned, OdradekError, OffsetOutOfRange, UnknownTopic
from odradek.testing import MemoryCluster
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.builder import BatchBuilder

OLD, NEW = 10, 20


def write(cluster: MemoryCluster, topic: str, partition: int, values: range) -> None:
    """Append records at once, before any client can read a part of them."""
    builder = BatchBuilder(1 << 20)
    for value in values:
        assert builder.append(None, b"%d" % value, None, 1_700_000_000_000)
    code, _ = cluster.log(topic, partition).append(builder.build(), 0)
    assert code == ErrorCode.NONE
    cluster.wake()


async def read_all(consumer: Consumer, wanted: range) -> set[int]:
    """Read until all wanted values were returned. The values that were read are returned."""
    values: set[int] = set()
    async with asyncio.timeout(10):
        while not values.issuperset(wanted):
            values.update(int(record.value) for record in await consumer.getmany())
    return values


def recreate(cluster: MemoryCluster, topic: str, values: range) -> None:
    cluster.delete_topic(topic)
    cluster.create_topic(topic)
    write(cluster, topic, 0, values)


async def started(client: Client, how: str, reset: ResetPolicy) -> Consumer:
    """Return a consumer that reads the topic "t" from its beginning."""
    if how == "group":
        await client.admin.alter_group_offsets("g", {("t", 0): 0})
        return client.consumer("t", group="g", auto_offset_reset=reset)
    consumer = client.consumer(auto_offset_reset=reset)
    if how == "subscribe":
        consumer.subscribe("t")
        consumer.seek_to_beginning()
    else:
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 0)
    return consumer


@pytest.mark.parametrize("new", [NEW, OLD // 2])
@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("how", ["subscribe", "assign", "group"])
async def test_a_topic_that_is_created_again_is_read_from_its_beginning(
    cluster: MemoryCluster, client: Client, how: str, reset: ResetPolicy, new: int
) -> None:
    cluster.create_topic("t")
    write(cluster, "t", 0, range(OLD))
    async with await started(client, how, reset) as consumer:
        await read_all(consumer, range(OLD))
        recreate(cluster, "t", range(100, 100 + new))
        assert await read_all(consumer, range(100, 100 + new)) == set(range(100, 100 + new))


async def test_a_topic_that_is_missing_for_a_while_is_read_from_its_beginning(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    async with client.consumer("t", auto_offset_reset="latest") as consumer:
        await consumer.position(("t", 0))
        cluster.delete_topic("t")
        while consumer.assignment():
            assert await consumer.getmany(timeout_ms=10) == []
        cluster.create_topic("t")
        write(cluster, "t", 0, range(NEW))
        assert await read_all(consumer, range(NEW)) == set(range(NEW))


async def test_without_a_reset_policy_a_topic_that_is_created_again_is_an_error(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    write(cluster, "t", 0, range(OLD))
    async with await started(client, "assign", "error") as consumer:
        await read_all(consumer, range(OLD))
        recreate(cluster, "t", range(100, 100 + NEW))
        with pytest.raises(OffsetOutOfRange):
            await read_all(consumer, range(100, 100 + NEW + 1))  # one more than there are
        consumer.seek_to_beginning()
        assert set(range(100, 100 + NEW)) <= await read_all(consumer, range(100, 100 + NEW))


async def test_the_group_has_no_offset_of_the_old_topic_for_the_new_one(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    write(cluster, "t", 0, range(OLD))
    group = GroupOptions(group="g", auto_commit=False)
    async with client.consumer("t", group=group, auto_offset_reset="earliest") as consumer:
        await read_all(consumer, range(OLD))
        recreate(cluster, "t", range(NEW))
        with pytest.raises(UnknownTopic):
            await consumer.commit({("t", 0): OLD})
        assert await client.admin.group_offsets("g") == {}
        await read_all(consumer, range(NEW))
        await consumer.commit()
        assert await client.admin.group_offsets("g") == {("t", 0): NEW}


@pytest.mark.parametrize("members", [1, 2])
async def test_a_group_reads_a_partition_that_is_added_from_its_beginning(
    cluster: MemoryCluster, client: Client, members: int
) -> None:
    """This holds with auto_offset_reset=latest, too, because its records are newer than the subscription. Of two
    members, one has no partition before.
    """
    cluster.create_topic("t")
    group = [client.consumer("t", group="g", auto_offset_reset="latest") for _ in range(members)]
    async with asyncio.TaskGroup() as tasks:
        for consumer in group:
            tasks.create_task(consumer.commit({}))  # returns when the group has let the member in
    await group[0].getmany(timeout_ms=200)
    cluster.add_partitions("t", 1)
    write(cluster, "t", 1, range(NEW))
    reads = [asyncio.create_task(read_all(consumer, range(NEW))) for consumer in group]
    try:
        done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        assert next(iter(done)).result() == set(range(NEW))
    finally:
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        for consumer in group:
            await consumer.close()


async def test_one_unknown_partition_does_not_void_the_commit_of_the_others(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    with pytest.raises(UnknownTopic):
        await client.admin.alter_group_offsets("g", {("t", 0): 3, ("t", 9): 4})
    assert await client.admin.group_offsets("g") == {("t", 0): 3}


async def test_the_position_of_a_partition_that_is_given_up_is_an_error(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t")
    for broker_id in cluster.endpoints:
        cluster.kill(broker_id, elect=False)
    async with client.consumer() as consumer:
        consumer.assign([("t", 0)])
        position = asyncio.create_task(consumer.position(("t", 0)))
        await asyncio.sleep(0)
        consumer.assign([])
        cluster.start(1)
        with pytest.raises(NotAssigned):
            await position


async def test_a_consumer_that_does_not_find_its_topics_closes_its_connections(
    cluster: MemoryCluster,
) -> None:
    consumer = Consumer("missing", bootstrap=cluster.bootstrap, request_timeout_ms=1)
    with pytest.raises(OdradekError):
        await consumer.__aenter__()
    assert consumer._cluster.state is LinkState.CLOSED
