"""Runs a group coordinator over partitions in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from odradek_broker.access.authorizer import Authorizer
from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.settings import BrokerSettings
from odradek_protocol.identity import PartitionIndex
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.topic_names import OFFSETS_TOPIC
from odradek_runtime.clock import SYSTEM_CLOCK, Clock
from tests.unit.replication.partitions_in_memory import EPOCH, PartitionsInMemory

T = TypeVar("T")
WAIT_S = 30
SETTINGS = BrokerSettings(node_id=1, log_dir="nowhere", controllers="101@nowhere:1")


@asynccontextmanager
async def running(
    partitions: PartitionsInMemory,
    authorizer: Authorizer | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> AsyncIterator[GroupCoordinator]:
    """Yield a group coordinator that leads the only partition of `__consumer_offsets` and has
    loaded it.
    """
    coordinator = GroupCoordinator(
        settings=SETTINGS,
        partitions=partitions,  # type: ignore[arg-type]  # of LocalPartitions what it needs
        topic_creation=None,  # type: ignore[arg-type]  # the topic is there
        authorizer=authorizer,
        clock=clock,
    )
    task = asyncio.create_task(coordinator.run())
    watcher = await partitions.watchers.get()
    watcher.on_leader(OFFSETS_TOPIC, PartitionIndex(0), EPOCH)
    try:
        yield coordinator
    finally:
        task.cancel()
        await asyncio.wait([task])


async def when_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request until the coordinator is loaded, and return the response."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await ask()
            except CoordinatorError as error:
                if error.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    raise
                await asyncio.sleep(0)
