"""The purgatory of a fetch: asleep until one of its partitions moves, or the time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from odradek_broker.replication.partition_host import PartitionHost


class FetchWaiter:
    """A fetch that waits for any of its partitions to move."""

    __slots__ = ("_hosts", "_moved")

    def __init__(self, hosts: Sequence[PartitionHost]) -> None:
        self._hosts = hosts
        self._moved = asyncio.Event()
        for host in hosts:
            host.watchers.add(self)

    def on_partition_moved(self, host: PartitionHost) -> None:
        """There may be something new to read."""
        self._moved.set()

    async def wait(self, timeout_s: float) -> None:
        """Until something moved, or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._moved.wait()
        except TimeoutError:
            return
        self._moved.clear()

    def close(self) -> None:
        """Wait no longer."""
        for host in self._hosts:
            host.watchers.discard(self)
