"""Consumer groups of `MemoryCluster`, with the SDK's own consumers, and the coordinator alone with
a simulated clock.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from odradek import Client, Consumer, GroupOptions, TopicPartition
from odradek.consumer.group_offsets import GroupOffsets
from odradek.errors import ClientClosed, GroupInUse, UnknownGroup
from odradek.testing import MemoryCluster
from odradek.testing.memory_groups import MemoryGroups, MemoryMember, PartitionId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import group_service_pb2 as pb
from tests.unit.sdk.numbered_records import fill, numbers, read

PARTITIONS = 6


@pytest.fixture
def topic(cluster: MemoryCluster) -> str:
    cluster.create_topic("t", partitions=PARTITIONS)
    return "t"


# --- the SDK's members ----------------------------------------------------------------------------


async def test_one_member_reads_all_and_the_next_goes_on_from_its_commit(
    client: Client, topic: str
) -> None:
    await fill(client, 20, partition=None)
    async with client.consumer(topic, group="g", auto_offset_reset="earliest") as consumer:
        assert sorted(numbers(await read(consumer, 20))) == list(range(20))
        await consumer.commit()
    await fill(client, 5, partition=3, first=20)
    async with client.consumer(topic, group="g", auto_offset_reset="earliest") as consumer:
        assert numbers(await read(consumer, 5)) == list(range(20, 25))
    assert await client.admin.delete_groups(["g"]) == {"g": None}


async def test_two_members_share_and_one_takes_over_when_the_other_leaves(
    client: Client, topic: str
) -> None:
    first = client.consumer(topic, group="g")
    second = client.consumer(topic, group="g")
    async with first:
        await until_owned(first, PARTITIONS)
        async with second:
            while not len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2:
                await first.getmany(20)
                await second.getmany(20)
            assert not set(first.assignment()) & set(second.assignment())
            described = await client.admin.describe_group("g")
            assert sorted(n for m in described.members for n in m.assignment) == [
                TopicPartition(topic, index) for index in range(PARTITIONS)
            ]
            told = (await client.admin.delete_groups(["g"]))["g"]
            assert isinstance(told, GroupInUse)
        await until_owned(first, PARTITIONS)
    with pytest.raises(UnknownGroup):
        await client.admin.describe_group("nobody")


async def test_a_group_reads_partitions_that_are_added(
    cluster: MemoryCluster, client: Client, topic: str
) -> None:
    async with client.consumer(topic, group="g") as consumer:
        await until_owned(consumer, PARTITIONS)
        cluster.add_partitions(topic, 2)
        await until_owned(consumer, PARTITIONS + 2)


async def test_a_consumer_that_on_revoke_closes_leaves_its_group(
    client: Client, topic: str
) -> None:
    async def close(_: Sequence[TopicPartition]) -> None:
        await consumer.close()

    consumer = client.consumer(topic, group=GroupOptions(group="g", on_revoke=close))
    await until_owned(consumer, PARTITIONS)
    async with client.consumer(topic, group="g") as other:
        with pytest.raises(ClientClosed):
            await read(consumer, 1)
        await until_owned(other, PARTITIONS)
        assert len((await client.admin.describe_group("g")).members) == 1


@pytest.fixture
def internal_topic(cluster: MemoryCluster, topic: str) -> str:
    cluster.create_topic("__consumer_offsets", partitions=2)
    return "__consumer_offsets"


async def test_a_pattern_does_not_select_internal_topics(
    client: Client, topic: str, internal_topic: str
) -> None:
    assigned: list[TopicPartition] = []
    options = GroupOptions(group="g", pattern=".*", on_assign=assigned.extend)
    await fill(client, 5, internal_topic)
    await fill(client, 5)
    async with client.consumer(group=options, auto_offset_reset="earliest") as consumer:
        records = await read(consumer, 5)
        assert {record.topic for record in records} == {topic}
        assert {name.topic for name in consumer.assignment()} == {topic}
        await consumer.commit()
        # The group has no further assignment for it: what it owns is what it shall own.
        described = await client.admin.describe_group("g")
        assert {name.topic for m in described.members for name in m.assignment} == {
            topic,
            internal_topic,
        }
    assert {name.topic for name in assigned} == {topic}
    assert {name.topic for name in await client.admin.group_offsets("g")} == {topic}


async def test_internal_topics_are_read_when_they_are_named_or_not_excluded(
    client: Client, topic: str, internal_topic: str
) -> None:
    everything = GroupOptions(group="a", pattern=".*", exclude_internal_topics=False)
    async with client.consumer(group=everything) as consumer:
        await until_owned(consumer, PARTITIONS + 2)
    async with client.consumer(group=GroupOptions(group="b", pattern=".*")) as consumer:
        await until_owned(consumer, PARTITIONS)
        consumer.subscribe(internal_topic)
        await until_owned(consumer, PARTITIONS + 2)


async def test_a_topic_that_is_named_during_a_take_over_starts_at_its_committed_offset(
    client: Client, topic: str, internal_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client, 5, internal_topic)
    async with client.consumer(internal_topic, group="g", auto_offset_reset="earliest") as before:
        await read(before, 5)
        await before.commit()
    consumer = client.consumer(
        group=GroupOptions(group="g", pattern=".*"), auto_offset_reset="earliest"
    )
    committed = GroupOffsets.committed

    async def named_meanwhile(
        offsets: GroupOffsets, names: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        found = await committed(offsets, names)
        monkeypatch.setattr(GroupOffsets, "committed", committed)
        consumer.subscribe(internal_topic)
        return found

    monkeypatch.setattr(GroupOffsets, "committed", named_meanwhile)
    async with consumer:
        records = await consumer.getmany(20)
        while len(consumer.assignment()) != PARTITIONS + 2:
            records += await consumer.getmany(20)
        assert records + await consumer.getmany(300) == []


async def until_owned(consumer: Consumer, count: int) -> None:
    while len(consumer.assignment()) != count:
        await consumer.getmany(20)


# --- the coordinator alone ------------------------------------------------------------------------


class Member:
    """A member that sends heartbeats, and takes over its assignment when `obey` is called."""

    def __init__(
        self,
        groups: MemoryGroups,
        member_id: str,
        *,
        instance_id: str | None = None,
        assignor: str | None = None,
    ) -> None:
        self.groups = groups
        self.member_id = member_id
        self.instance_id = instance_id
        self.assignor = assignor
        self.epoch = 0
        self.owned: set[PartitionId] = set()
        self.told: set[PartitionId] = set()

    def beat(self, now_s: float = 0.0, *, epoch: int | None = None) -> ErrorCode:
        request = pb.GroupHeartbeatRequest(
            group_id="g",
            member_id=self.member_id,
            member_epoch=self.epoch if epoch is None else epoch,
            has_owned=True,
            has_subscription=True,
            subscribed_topics=["t"],
            instance_id=self.instance_id,
            assignor=self.assignor,
        )
        for topic_id, index in self.owned:
            request.owned.add(topic_id=topic_id, partitions=[index])
        response = self.groups.heartbeat(request, now_s)
        if not response.error_code:
            self.epoch = response.member_epoch
            self.told = {(one.topic_id, i) for one in response.assignment for i in one.partitions}
        return ErrorCode(response.error_code)

    def obey(self) -> None:
        self.owned = set(self.told)

    def commit(self, offset: int, now_s: float = 0.0, *, epoch: int | None = None) -> ErrorCode:
        request = pb.CommitOffsetsRequest(
            group_id="g",
            member_id=self.member_id,
            member_epoch=self.epoch if epoch is None else epoch,
        )
        item = request.offsets.add(offset=offset)
        item.partition.topic = "t"
        return ErrorCode(self.groups.commit(request, now_s).error_code)


@pytest.fixture
def groups(cluster: MemoryCluster, topic: str) -> MemoryGroups:
    return MemoryGroups(cluster.topics, cluster.alive, session_s=10)


def committed(groups: MemoryGroups) -> list[int]:
    response = groups.fetch_offsets(pb.FetchOffsetsRequest(group_id="g"))
    return [one.offset for one in response.offsets]


def settle(members: Iterable[Member], now_s: float = 0.0) -> None:
    for _ in range(4):
        for member in members:
            assert member.beat(now_s) is ErrorCode.NONE
            member.obey()


def test_a_silent_member_is_taken_out_and_cannot_commit(groups: MemoryGroups) -> None:
    silent, other = Member(groups, "silent"), Member(groups, "other")
    settle([silent, other])
    assert len(silent.owned) == len(other.owned) == PARTITIONS // 2
    assert silent.commit(5) is ErrorCode.NONE
    settle([other], now_s=9)
    assert len(other.owned) == PARTITIONS // 2
    settle([other], now_s=11)
    assert len(other.owned) == PARTITIONS
    assert silent.commit(99, now_s=11) is ErrorCode.UNKNOWN_MEMBER_ID
    assert committed(groups) == [5]
    assert silent.beat(now_s=11) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_with_another_epoch_than_the_members_is_refused(groups: MemoryGroups) -> None:
    first, second = Member(groups, "first"), Member(groups, "second")
    settle([first])
    before = first.epoch
    settle([first, second])
    assert first.commit(7, epoch=before) is ErrorCode.STALE_MEMBER_EPOCH
    assert committed(groups) == []
    assert first.commit(7) is ErrorCode.NONE
    assert committed(groups) == [7]
    stranger = Member(groups, "")
    assert stranger.commit(0, epoch=-1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_gives_up_before_another_takes(groups: MemoryGroups) -> None:
    first, second = Member(groups, "first"), Member(groups, "second")
    settle([first])
    assert second.beat() is ErrorCode.NONE
    assert second.told == set(), "first owns all of it still"
    assert first.beat() is ErrorCode.NONE
    assert len(first.told) == PARTITIONS // 2
    assert second.beat() is ErrorCode.NONE
    assert second.told == set(), "first was told, but has not said that it obeyed"
    settle([first, second])
    assert len(second.owned) == PARTITIONS // 2


def test_a_member_that_gives_up_too_slowly_is_taken_out(groups: MemoryGroups) -> None:
    slow, other = Member(groups, "slow"), Member(groups, "other")
    groups.session_s = 3600
    settle([slow])
    other.beat()
    slow.beat(now_s=1)
    slow.beat(now_s=60)
    settle([other], now_s=62)
    assert len(other.owned) == PARTITIONS
    assert slow.beat(now_s=62) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_lost_response_does_not_fence_its_member(groups: MemoryGroups) -> None:
    first, second = Member(groups, "first"), Member(groups, "second")
    settle([first])
    epoch = first.epoch
    settle([first, second])
    assert first.beat(epoch=epoch) is ErrorCode.NONE
    assert first.beat(epoch=epoch + 17) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_static_member_finds_its_partitions_again(groups: MemoryGroups) -> None:
    before, other = Member(groups, "before", instance_id="i"), Member(groups, "other")
    settle([before, other])
    assert Member(groups, "twin", instance_id="i").beat() is ErrorCode.UNRELEASED_INSTANCE_ID
    assert before.beat(epoch=-2) is ErrorCode.NONE
    settle([other], now_s=5)
    assert len(other.owned) == PARTITIONS // 2
    after = Member(groups, "after", instance_id="i")
    settle([after], now_s=6)
    assert after.owned == before.owned


@pytest.mark.parametrize("assignor", ["range", "uniform"])
def test_assignors_share_evenly(groups: MemoryGroups, assignor: str) -> None:
    members = [Member(groups, f"m{number}", assignor=assignor) for number in range(4)]
    settle(members)
    assert sorted(len(member.owned) for member in members) == [1, 1, 2, 2]


def owned_twice(groups: MemoryGroups, seed: int) -> bool:
    """Run a random history of members that join and leave; return whether two members ever own one
    partition.
    """
    draw = random.Random(seed)
    members: list[Member] = []
    for step in range(120):
        action = draw.random()
        if action < 0.08 and len(members) < 5:
            members.append(Member(groups, f"m{step}"))
        elif action < 0.14 and members:
            members.pop(draw.randrange(len(members))).beat(epoch=-1)
        elif members:
            member = draw.choice(members)
            assert member.beat() is ErrorCode.NONE
            if draw.random() < 0.5:
                member.obey()
        owned = [name for member in members for name in member.owned]
        if len(owned) != len(set(owned)):
            return True
    settle(members)
    assert not members or sum(len(member.owned) for member in members) == PARTITIONS
    return False


@pytest.mark.parametrize("seed", range(10))
def test_no_partition_is_owned_by_two(groups: MemoryGroups, seed: int) -> None:
    assert not owned_twice(groups, seed)


def test_a_coordinator_that_frees_too_early_is_found(
    cluster: MemoryCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryMember, "held", property(lambda member: member.assigned))
    assert any(owned_twice(MemoryGroups(cluster.topics, cluster.alive), seed) for seed in range(10))
