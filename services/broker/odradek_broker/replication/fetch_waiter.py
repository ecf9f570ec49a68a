"""The purgatory of a fetch: asleep until enough has come, something broke, or the time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from odradek_broker.partition.effects import Role
from odradek_broker.replication.partition_host import PartitionHost


class FetchWaiter:
    """Watches the partitions of one fetch: `mark`, read, `wait` for what the reading lacked.

    It wakes when so many bytes came below the watermarks since `mark` as the fetch lacks: a fetch
    that wants a megabyte is not read anew for each kilobyte.
    """

    __slots__ = ("_hosts", "_marked_bytes", "_moved", "_roles", "_wake_at_bytes")

    def __init__(self, hosts: Sequence[PartitionHost]) -> None:
        self._hosts = hosts
        self._moved = asyncio.Event()
        self._marked_bytes = self._wake_at_bytes = 0
        self._roles: list[tuple[Role, int]] = []
        for host in hosts:
            host.watchers.add(self)

    def mark(self) -> None:
        """The fetch is about to be read: what comes from now on is new."""
        self._marked_bytes = self._visible()
        self._roles = self._present_roles()

    def on_partition_moved(self, host: PartitionHost) -> None:
        """There may be something new to read, or never again."""
        if self._visible() >= self._wake_at_bytes or self._present_roles() != self._roles:
            self._moved.set()

    async def wait(self, *, bytes_missing: int, timeout_s: float) -> None:
        """Until so much came since `mark`, something broke, or the time is over."""
        self._wake_at_bytes = self._marked_bytes + bytes_missing
        if self._visible() >= self._wake_at_bytes or self._present_roles() != self._roles:
            return
        self._moved.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._moved.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        """Wait no longer."""
        for host in self._hosts:
            host.watchers.discard(self)

    def _visible(self) -> int:
        return sum(host.visible_bytes for host in self._hosts)

    def _present_roles(self) -> list[tuple[Role, int]]:
        return [(host.replica.role, host.replica.leader_epoch) for host in self._hosts]
