"""Consumer groups of the SDK with one real broker: joining, rebalancing, committing and leaving."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import pytest

import odradek.sync
from odradek import (
    Client,
    ConfigResource,
    ConfigResourceType,
    Consumer,
    GroupOptions,
    TopicPartition,
)
from odradek.errors import GroupInUse, InvalidRequest, MemberFenced, NotAssigned, UnknownGroup

WAIT_S = 60.0  # so high that a slow machine does not exceed it
SESSION_MS = 45_000
Names = Sequence[TopicPartition]


async def fill(client: Client, topic: str, *, partitions: int = 2, records: int = 20) -> None:
    """Write numbers to the partitions in turn.

    The group of the same name does not remove members that are silent for a moment, as they may be on a slow machine.
    """
    await client.admin.create_topic(topic, partitions=partitions, replication_factor=1)
    group = ConfigResource(type=ConfigResourceType.GROUP, name=topic)
    await client.admin.alter_configs(group, set={"consumer.session.timeout.ms": str(SESSION_MS)})
    async with client.producer() as producer:
        for number in range(records):
            await producer.send(topic, b"%d" % number, partition=number % partitions)


async def read(consumer: Consumer, count: int) -> list[bytes]:
    """Return this many values; it is an error if there are more."""
    values: list[bytes] = []
    async with asyncio.timeout(WAIT_S):
        while len(values) < count:
            values += [r.value for r in await consumer.getmany(max_records=count - len(values))]
    return values


async def reading_until(consumer: Consumer, is_so: Callable[[], bool]) -> list[bytes]:
    """Continue to read, as a program does, until the condition holds; return the values."""
    values: list[bytes] = []
    async with asyncio.timeout(WAIT_S):
        while not is_so():
            values += [r.value for r in await consumer.getmany(20)]
    return values


async def committed(client: Client, group: str) -> dict[tuple[str, int], int]:
    return {(n.topic, n.partition): o for n, o in (await client.admin.group_offsets(group)).items()}


async def test_members_that_subscribe_share_the_partitions(
    impatient_client: Client, topic: str
) -> None:
    client = impatient_client
    await fill(client, topic)
    async with (
        client.consumer(group=topic, auto_offset_reset="earliest") as first,
        client.consumer(group=topic, auto_offset_reset="earliest") as second,
    ):
        with pytest.raises(NotAssigned, match="no subscription and no assignment"):
            await first.getmany(0)
        with pytest.raises(InvalidRequest, match="assigns partitions to its members"):
            first.assign([(topic, 0)])
        with pytest.raises(InvalidRequest, match="is not the name of a topic"):
            first.subscribe([topic])  # type: ignore[arg-type]
        first.subscribe(topic)
        second.subscribe(topic)

        def is_shared() -> bool:
            return len(first.assignment()) == len(second.assignment()) == 1

        async with asyncio.TaskGroup() as both:
            one = both.create_task(reading_until(first, is_shared))
            two = both.create_task(reading_until(second, is_shared))
        assert set(first.assignment()).isdisjoint(second.assignment())
        values = one.result() + two.result()
        async with asyncio.timeout(WAIT_S):
            while len(set(values)) < 20:
                values += [r.value for r in await first.getmany(20)]
                values += [r.value for r in await second.getmany(20)]
        assert len(values) == 20, "read twice"


async def test_a_subscription_may_change(impatient_client: Client, topic: str) -> None:
    client, other = impatient_client, f"{topic}-other"
    await fill(client, topic, partitions=1)
    await fill(client, other, partitions=1)
    async with client.consumer(topic, group=topic, auto_offset_reset="earliest") as consumer:
        await read(consumer, 20)
        consumer.subscribe(other)
        await reading_until(consumer, lambda: consumer.assignment() == [(other, 0)])


async def test_a_pattern_takes_in_topics_to_come(impatient_client: Client, topic: str) -> None:
    client = impatient_client
    await fill(client, f"{topic}-a", partitions=1)
    options = GroupOptions(group=f"{topic}-a", pattern=f"{topic}-.*")
    async with client.consumer(group=options, auto_offset_reset="earliest") as consumer:
        await read(consumer, 20)
        await fill(client, f"{topic}-b", partitions=1)
        await read(consumer, 20)
        assert sorted(n.topic for n in consumer.assignment()) == [f"{topic}-a", f"{topic}-b"]


async def test_listeners_frame_what_is_handed_out(impatient_client: Client, topic: str) -> None:
    """No record of a partition is returned before `on_assign` has returned, and `on_revoke` is
    called when all of them are processed.
    """
    client = impatient_client
    await fill(client, topic, records=200)
    told: list[tuple[str, list[int]]] = []
    processed = 0
    may_begin = asyncio.Event()

    async def on_assign(names: Names) -> None:
        told.append(("assign", sorted(n.partition for n in names)))
        await may_begin.wait()

    async def on_revoke(names: Names) -> None:
        told.append(("revoke", sorted(n.partition for n in names)))
        assert processed == handed, "called while the program works on what it was handed"
        await first.commit()

    options = GroupOptions(group=topic, auto_commit=False, on_assign=on_assign, on_revoke=on_revoke)
    handed = 0
    async with client.consumer(topic, group=options, auto_offset_reset="earliest") as first:
        assert await first.getmany(300) == [], "on_assign has not ended"
        assert told == [("assign", [0, 1])]
        may_begin.set()
        async with (
            asyncio.timeout(WAIT_S),
            client.consumer(topic, group=topic, auto_offset_reset="earliest") as second,
        ):
            while len(told) < 2:
                handed += len(await first.getmany(20, max_records=10))
                await asyncio.sleep(0)
                processed = handed
                await second.getmany(1, max_records=1)
            (gone,) = told[1][1]
            assert told[1][0] == "revoke"
            async with asyncio.timeout(WAIT_S):
                while (topic, gone) not in second.assignment():
                    await first.getmany(20)
            assert first.assignment() == [(topic, 1 - gone)]
    assert told[-1] == ("revoke", [1 - gone]), "told of what it gives up when it leaves"


async def test_a_program_that_fails_reads_again_what_it_was_handed(
    impatient_client: Client, topic: str
) -> None:
    client = impatient_client
    await fill(client, topic, partitions=1)

    async def fail_at_the_second() -> None:
        async with client.consumer(topic, group=topic, auto_offset_reset="earliest") as consumer:
            await consumer.getmany(10_000, max_records=5)
            await consumer.getmany(10_000, max_records=5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_at_the_second()
    assert await committed(client, topic) == {(topic, 0): 5}
    async with client.consumer(topic, group=topic) as consumer:
        assert (await read(consumer, 1)) == [b"5"]
    assert await committed(client, topic) == {(topic, 0): 6}


async def test_and_so_without_await(impatient: str, impatient_client: Client, topic: str) -> None:
    await fill(impatient_client, topic, partitions=1)
    await asyncio.to_thread(_fail_and_commit_without_await, impatient, topic)


def _fail_and_commit_without_await(bootstrap: str, topic: str) -> None:
    told: list[str] = []
    with odradek.sync.Client(bootstrap) as client:

        def fail() -> None:
            with client.consumer(topic, group=topic, auto_offset_reset="earliest") as consumer:
                assert len(consumer.getmany(10_000, max_records=5)) == 5
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert client.admin.group_offsets(topic).get(TopicPartition(topic, 0), 0) == 0

        def on_revoke(names: Names) -> None:
            consumer.commit()
            told.append("revoked")

        options = GroupOptions(group=topic, auto_commit=False, on_revoke=on_revoke)
        with client.consumer(topic, group=options, auto_offset_reset="earliest") as consumer:
            assert [next(consumer).value for _ in range(3)] == [b"0", b"1", b"2"]
        assert told == ["revoked"]
        assert client.admin.group_offsets(topic) == {(topic, 0): 3}


async def test_a_commit_waits_for_the_group_to_let_the_member_in(
    impatient_client: Client, topic: str
) -> None:
    client = impatient_client
    await fill(client, topic, partitions=1)
    options = GroupOptions(group=topic, auto_commit=False)
    async with client.consumer(topic, group=options) as consumer:
        await consumer.commit({(topic, 0): 7})
        assert await consumer.committed([(topic, 0)]) == {(topic, 0): 7}
        with pytest.raises(ValueError, match="negative"):
            await consumer.commit({(topic, 0): -1})
    async with client.consumer(topic, group=options) as consumer:
        assert await read(consumer, 13) == [b"%d" % n for n in range(7, 20)]
        assert await consumer.lag() == {(topic, 0): 0}
        consumer.seek((topic, 0), 4)
        assert await consumer.lag() == {(topic, 0): 16}
        await consumer.commit({(topic, 0): 4})
        assert await consumer.committed() == {(topic, 0): 4}


async def test_a_static_member_that_comes_back_goes_on_without_a_rebalance(
    impatient_client: Client, topic: str
) -> None:
    client = impatient_client
    await fill(client, topic)
    told: list[str] = []
    stays = GroupOptions(
        group=topic, on_assign=lambda _: told.append("+"), on_revoke=lambda _: told.append("-")
    )
    comes_back = GroupOptions(group=topic, instance_id="one")
    async with client.consumer(topic, group=stays, auto_offset_reset="earliest") as other:
        async with client.consumer(topic, group=comes_back) as first:
            await reading_until(other, lambda: bool(first.assignment()) and "-" in told)
            mine = first.assignment()
        before = list(told)
        async with client.consumer(topic, group=comes_back) as second:
            await reading_until(other, lambda: bool(second.assignment()))
            assert second.assignment() == mine
        assert told == before


async def test_a_member_that_is_silent_loses_its_partitions_and_its_commits(
    impatient_client: Client, topic: str
) -> None:
    """`on_lost` is called, because the group removed the member while its event loop was
    blocked.
    """
    client = impatient_client
    await fill(client, topic, partitions=1)
    lost: list[TopicPartition] = []
    options = GroupOptions(group=topic, auto_commit=False, on_lost=lost.extend)
    async with client.consumer(topic, group=options, auto_offset_reset="earliest") as consumer:
        await read(consumer, 5)
        member = consumer._member
        assert member is not None
        member.member_epoch += 7  # what the coordinator makes of a member that it took out
        with pytest.raises(
            MemberFenced, match="another member reads the uncommitted records again"
        ):
            await consumer.commit()
        await reading_until(consumer, lambda: bool(lost))
        assert lost == [(topic, 0)]
        assert len(await read(consumer, 20)) == 20, "it is let in again, and begins anew"


async def test_groups_are_named_when_they_are_not_there_or_in_use(
    impatient_client: Client, topic: str
) -> None:
    client = impatient_client
    await fill(client, topic, partitions=1)
    told = (await client.admin.delete_groups(["nobody"]))["nobody"]
    assert isinstance(told, UnknownGroup), told
    async with client.consumer(topic, group=topic, auto_offset_reset="earliest") as consumer:
        await read(consumer, 1)
        told = (await client.admin.delete_groups([topic]))[topic]
        assert isinstance(told, GroupInUse), told
        with pytest.raises(GroupInUse) as refused:
            await client.admin.alter_group_offsets(topic, {(topic, 0): 0})
        for error in (told, refused.value):
            assert str(error) == (
                f"group {topic!r} has members; stop the members first;"
                f" `odradek group describe {topic}` lists them"
            )


async def test_progress_goes_on_while_members_come_and_go(
    impatient_client: Client, topic: str
) -> None:
    """Commits happen during rebalances: no record is lost, and no member stops."""
    client = impatient_client
    await fill(client, topic, partitions=4, records=1_000)
    seen: set[bytes] = set()
    is_over = asyncio.Event()

    async def work(consumer: Consumer) -> None:
        while not is_over.is_set():
            records = await consumer.getmany(50, max_records=20)
            seen.update(r.value for r in records)
            with contextlib.suppress(MemberFenced):  # read again by the next owner
                await consumer.commit()
            if len(seen) == 1_000:
                is_over.set()

    async def come_and_go() -> None:
        while not is_over.is_set():
            async with client.consumer(topic, group=options, auto_offset_reset="earliest") as one:
                for _ in range(5):
                    seen.update(r.value for r in await one.getmany(100, max_records=20))
                # Without it, no partition might make progress that always such a member gets.
                with contextlib.suppress(MemberFenced):
                    await one.commit()

    options = GroupOptions(group=topic, auto_commit=False)
    async with (
        asyncio.timeout(WAIT_S),
        client.consumer(topic, group=options, auto_offset_reset="earliest") as one,
        client.consumer(topic, group=options, auto_offset_reset="earliest") as two,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(work(one))
        tasks.create_task(work(two))
        tasks.create_task(come_and_go())
