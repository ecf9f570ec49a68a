"""The registry of consumer instances: what happens when reading its topic fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from odradek.client import Client
from odradek.cluster.cluster import LinkState
from odradek.errors import BrokersUnavailable, InvalidTopic
from odradek.producer.producer import Producer
from odradek_gateway.errors import RestError
from odradek_gateway.rest.v2 import instance_registry
from odradek_gateway.rest.v2.instance_registry import InstanceRegistry

DEADLINE_S = 20.0


class Admin:
    """An admin client of a cluster with this many brokers; `made` has the replication factor of the
    created topic.
    """

    def __init__(self, brokers: int = 1, default_replicas: int = 1) -> None:
        self.brokers, self.default_replicas = brokers, default_replicas
        self.made: list[int] = []

    async def list_brokers(self) -> list[int]:
        return list(range(self.brokers))

    async def create_topic(
        self, _name: str, *, replication_factor: int = -1, validate_only: bool = False, **_: Any
    ) -> Any:
        replicas = self.default_replicas if replication_factor < 0 else replication_factor
        if replicas > self.brokers:
            raise InvalidTopic("fewer brokers than replicas")
        if not validate_only:
            self.made.append(replicas)
        return SimpleNamespace(replication_factor=replicas)


class Cluster:
    """A client whose consumers raise one error after the other, and then read an empty topic."""

    def __init__(self, *errors: Exception, admin: Admin | None = None) -> None:
        self.admin = admin or Admin()
        self.state = LinkState.CONNECTED
        self.was_read = asyncio.Event()
        self.lookups = 0  # of the topic's end
        self.fails_lookups = False
        self.is_waiting, self.may_return = asyncio.Event(), asyncio.Event()
        self.may_return.set()
        self._errors = list(errors)

    @asynccontextmanager
    async def _opened(self, is_reading: bool) -> AsyncIterator[Any]:
        if is_reading and self._errors:
            raise self._errors.pop(0)
        yield self

    def consumer(self, **options: Any) -> Any:
        return self._opened(bool(options))

    def assign(self, _: Any) -> None:
        pass

    def seek_to_beginning(self) -> None:
        pass

    async def end_offsets(self, names: Any) -> dict[Any, int]:
        self.lookups += 1
        if self.fails_lookups:
            raise BrokersUnavailable(tried=[], last_error=None, waited_s=0)
        return dict.fromkeys(names, 0)

    async def getmany(self, timeout_ms: int) -> list[Any]:
        await asyncio.sleep(0)
        self.is_waiting.set()
        await self.may_return.wait()
        self.is_waiting.clear()
        return []

    def positions(self) -> dict[Any, int]:
        self.was_read.set()
        return {}


def registry(
    cluster: Cluster,
    failures: asyncio.Queue[BaseException],
    clock_s: Callable[[], float] = time.monotonic,
) -> InstanceRegistry:
    return InstanceRegistry(
        cast("Client", cluster),
        cast("Producer", None),
        url="http://here",
        on_failure=failures.put_nowait,
        clock_s=clock_s,
    )


async def test_a_bug_while_it_is_read_is_told_and_not_swallowed() -> None:
    failures: asyncio.Queue[BaseException] = asyncio.Queue()
    bug = RuntimeError("a bug")
    read = registry(Cluster(bug), failures)
    async with asyncio.timeout(DEADLINE_S):
        starting = asyncio.create_task(read.start())
        assert await failures.get() is bug
        await asyncio.wait({starting})
        await read.close()


async def test_it_is_read_again_when_brokers_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_registry, "_READ_AGAIN_S", 0.01)
    failures: asyncio.Queue[BaseException] = asyncio.Queue()
    away = BrokersUnavailable(tried=[], last_error=None, waited_s=0)
    cluster = Cluster(away, away)
    read = registry(cluster, failures)
    async with asyncio.timeout(DEADLINE_S):
        await read.start()
        await cluster.was_read.wait()
        await read.close()
    assert failures.empty()


@pytest.mark.parametrize(
    ("brokers", "default_replicas", "replicas"), [(1, 1, 1), (2, 1, 2), (5, 1, 3), (5, 4, 4)]
)
async def test_its_topic_has_as_many_replicas_as_there_can_be(
    brokers: int, default_replicas: int, replicas: int
) -> None:
    admin = Admin(brokers, default_replicas)
    async with asyncio.timeout(DEADLINE_S):
        read = registry(Cluster(admin=admin), asyncio.Queue())
        await read.start()
        await read.close()
    assert admin.made == [replicas]


async def test_its_topic_is_not_made_while_the_clusters_brokers_are_still_starting() -> None:
    """Before, the topic kept a single replica for ever if the first instance was created before the
    second broker started.
    """
    admin = Admin(brokers=1, default_replicas=3)
    async with asyncio.timeout(DEADLINE_S):
        read = registry(Cluster(admin=admin), asyncio.Queue())
        with pytest.raises(RestError) as refused:
            await read.start()
        assert (refused.value.status, refused.value.error_code) == (503, 50003)
        admin.brokers = 3
        await read.start()
        await read.close()
    assert admin.made == [3]


@pytest.mark.parametrize("polls_again", [False, True], ids=["before", "after"])
async def test_it_catches_up_after_this_process_was_stopped(polls_again: bool) -> None:
    """A request may arrive before or after the first poll that follows the pause."""
    now_s = 0.0
    cluster = Cluster()
    async with asyncio.timeout(DEADLINE_S):
        read = registry(cluster, asyncio.Queue(), lambda: now_s)
        await read.start()
        for pause_s, lookups in ((4.0, 1), (6.0, 2), (4.0, 2)):
            cluster.may_return.clear()
            await cluster.is_waiting.wait()
            now_s += pause_s
            if polls_again:
                cluster.may_return.set()
                cluster.was_read.clear()
                await cluster.was_read.wait()
            await read.catch_up_after_pause()
            assert cluster.lookups == lookups
            cluster.may_return.set()
        await read.close()


async def test_requests_do_not_wait_one_after_the_other_for_brokers_that_are_away() -> None:
    now_s = 0.0
    cluster = Cluster()
    async with asyncio.timeout(DEADLINE_S):
        read = registry(cluster, asyncio.Queue(), lambda: now_s)
        await read.start()
        cluster.may_return.clear()
        cluster.fails_lookups = True
        now_s += 60.0
        for lookups, pause_s in ((2, 4.0), (2, 2.0), (3, 0.0)):
            await asyncio.gather(*(read.catch_up_after_pause() for _ in range(100)))
            assert cluster.lookups == lookups
            now_s += pause_s
        await read.close()


async def test_it_catches_up_after_the_cluster_was_out_of_reach() -> None:
    """A consumer without brokers returns no records, like one that has read all."""
    cluster = Cluster()
    async with asyncio.timeout(DEADLINE_S):
        read = registry(cluster, asyncio.Queue())
        await read.start()
        for state in (LinkState.DISCONNECTED, LinkState.CONNECTED):
            cluster.state = state
            for _ in range(2):  # the first read may have begun before
                cluster.was_read.clear()
                await cluster.was_read.wait()
        for _ in range(2):
            await read.catch_up_after_pause()
            assert cluster.lookups == 2
        await read.close()
