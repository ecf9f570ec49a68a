"""A waiting fetch wakes when enough bytes are readable or an error occurs, and not before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from odradek_broker.partition.effects import Role
from odradek_broker.replication.local_partitions import FetchWaiter

WAIT_S_MAX = 30.0


class Replica:
    def __init__(self) -> None:
        self.role = Role.LEADER
        self.leader_epoch = 1


class Host:
    """The part of a PartitionHost that a waiting fetch uses."""

    def __init__(self) -> None:
        self.visible_bytes = 0
        self.watchers: dict[Any, None] = {}
        self.replica = Replica()

    def appears(self, size_bytes: int) -> None:
        self.visible_bytes += size_bytes
        for watcher in tuple(self.watchers):
            watcher.on_partition_moved(self)


async def _settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture
def hosts() -> list[Any]:
    return [Host(), Host()]


async def test_it_sleeps_until_enough_came_to_all_partitions_together(hosts: list[Any]) -> None:
    waiter = FetchWaiter(hosts, is_committed_only=False)
    waiter.mark()
    waiting = asyncio.ensure_future(waiter.wait(bytes_missing=100, timeout_s=600))
    await _settle()
    hosts[0].appears(60)
    await _settle()
    assert not waiting.done()
    hosts[1].appears(40)
    await asyncio.wait_for(waiting, WAIT_S_MAX)
    waiter.close()
    assert not hosts[0].watchers


async def test_what_came_while_it_read_is_not_missed(hosts: list[Any]) -> None:
    waiter = FetchWaiter(hosts, is_committed_only=False)
    waiter.mark()
    hosts[0].appears(100)  # during a cold read
    await asyncio.wait_for(waiter.wait(bytes_missing=100, timeout_s=600), WAIT_S_MAX)


async def test_a_change_of_role_wakes_it(hosts: list[Any]) -> None:
    waiter = FetchWaiter(hosts, is_committed_only=False)
    waiter.mark()
    waiting = asyncio.ensure_future(waiter.wait(bytes_missing=100, timeout_s=600))
    await _settle()
    hosts[1].replica.role = Role.FOLLOWER
    hosts[1].appears(0)
    await asyncio.wait_for(waiting, WAIT_S_MAX)


class CountedHost(Host):
    """A host that counts how often a waiting fetch reads its state."""

    def __init__(self) -> None:
        self.looks = 0
        super().__init__()

    @property
    def visible_bytes(self) -> int:
        self.looks += 1
        return self._visible_bytes

    @visible_bytes.setter
    def visible_bytes(self, size_bytes: int) -> None:
        self._visible_bytes = size_bytes


async def test_a_watermark_that_moves_costs_the_same_with_many_partitions() -> None:
    many: list[Any] = [CountedHost() for _ in range(1_000)]
    waiter = FetchWaiter(many, is_committed_only=False)
    waiter.mark()
    waiting = asyncio.ensure_future(waiter.wait(bytes_missing=100, timeout_s=600))
    await _settle()
    before = sum(host.looks for host in many)
    many[0].appears(60)
    assert sum(host.looks for host in many) - before <= 3, "other partitions were looked at"
    many[0].appears(40)
    await asyncio.wait_for(waiting, WAIT_S_MAX)


async def test_what_came_before_the_mark_does_not_count(hosts: list[Any]) -> None:
    waiter = FetchWaiter(hosts, is_committed_only=False)
    hosts[0].appears(100)
    hosts[1].replica.role = Role.FOLLOWER
    waiter.mark()
    waiting = asyncio.ensure_future(waiter.wait(bytes_missing=100, timeout_s=600))
    await _settle()
    hosts[0].appears(99)
    await _settle()
    assert not waiting.done()
    hosts[0].appears(1)
    await asyncio.wait_for(waiting, WAIT_S_MAX)


async def test_it_gives_up_at_the_end_of_its_time(hosts: list[Any]) -> None:
    waiter = FetchWaiter(hosts, is_committed_only=False)
    waiter.mark()
    await asyncio.wait_for(waiter.wait(bytes_missing=100, timeout_s=0.01), WAIT_S_MAX)
