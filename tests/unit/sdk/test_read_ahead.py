"""Records that iteration has decoded are withdrawn when a group revokes their partition."""

from __future__ import annotations

from odradek import Client, TopicPartition
from odradek.testing import MemoryCluster
from tests.unit.sdk.numbered_records import fill

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_what_is_revoked_in_the_middle_of_an_iteration_is_not_handed_out(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t", 2)
    await fill(client, 20, partition=0)
    await fill(client, 20, partition=1, first=100)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        ahead = consumer._ahead
        ahead.decode(
            [record for _ in range(2) for record in await consumer.getmany(5_000, max_records=20)]
        )
        first = await anext(consumer)
        gone = TopicPartition(str(first.topic), first.partition)
        stays = T1 if gone == T0 else T0
        ahead.suspend([gone])
        assert ahead.position(gone) == first.offset + 1, "of the first that was not handed out"
        handed = [record for _ in range(20) if (record := consumer.next_decoded())]
        assert {record.partition for record in handed} == {stays.partition}
        assert [record.offset for record in handed] == list(range(20))
        assert await consumer.getmany(50) == [], "it is held"
        ahead.release([gone])
        again = await consumer.getmany(5_000)
        assert [record.offset for record in again] == list(range(1, 20))


async def test_what_the_user_paused_stays_so_when_the_group_releases_it(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.create_topic("t", 1)
    await fill(client, 10)
    async with client.consumer("t", auto_offset_reset="earliest") as consumer:
        await consumer.position(T0)
        consumer._ahead.suspend([T0])
        consumer.pause(T0)
        consumer._ahead.release([T0])
        assert await consumer.getmany(50) == []
        consumer.resume(T0)
        assert len(await consumer.getmany(5_000)) == 10
