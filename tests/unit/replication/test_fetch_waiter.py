"""A waiting fetch wakes when enough came, when something broke, and not before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from odradek_broker.partition.effects import Role
from odradek_broker.replication.fetch_waiter import FetchWaiter


class Replica:
    role = Role.LEADER
    leader_epoch = 1


class Host:
    """As much of a PartitionHost as a waiter sees."""

    def __init__(self) -> None:
        self.visible_bytes = 0
        self.watchers: set[Any] = set()
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
    waiter = FetchWaiter(hosts)
    waiter.mark()
    waiting = asyncio.ensure_future(waiter.wait(bytes_missing=100, timeout_s=10))
    await _settle()
    hosts[0].appears(60)
    await _settle()
    assert not waiting.done()
    hosts[1].appears(40)
    await asyncio.wait_for(waiting, 1)
    waiter.close()
    assert not hosts[0].watchers


async def test_what_came_while_it_read_is_not_missed(hosts: list[Any]) -> None:
    waiter = FetchWaiter(hosts)
    waiter.mark()
    hosts[0].appears(100)  # during a cold read
    await asyncio.wait_for(waiter.wait(bytes_missing=100, timeout_s=10), 1)


async def test_a_change_of_role_wakes_it(hosts: list[Any]) -> None:
    waiter = FetchWaiter(hosts)
    waiter.mark()
    waiting = asyncio.ensure_future(waiter.wait(bytes_missing=100, timeout_s=10))
    await _settle()
    hosts[1].replica.role = Role.FOLLOWER
    hosts[1].appears(0)
    await asyncio.wait_for(waiting, 1)


async def test_it_gives_up_at_the_end_of_its_time(hosts: list[Any]) -> None:
    waiter = FetchWaiter(hosts)
    waiter.mark()
    await asyncio.wait_for(waiter.wait(bytes_missing=100, timeout_s=0.01), 1)
