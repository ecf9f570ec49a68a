"""The purgatory of a fetch: asleep until enough has come, something broke, or the time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from odradek_broker.partition.effects import Role
from odradek_broker.replication.partition_host import PartitionHost


class FetchWaiter:
    """Watches the partitions of one fetch: `mark`, read, `wait` for what the reading lacked.

    It wakes when as many bytes came below the watermarks since `mark` as the fetch lacks: a fetch
    that wants a megabyte is not read again for each kilobyte. A watermark that moves costs the same
    however many partitions are watched: only the partition that moved is looked at.
    """

    __slots__ = (
        "_bytes_came",
        "_bytes_missing",
        "_has_role_changed",
        "_hosts",
        "_moved",
        "_roles",
        "_visible",
    )

    def __init__(self, hosts: Sequence[PartitionHost]) -> None:
        self._hosts = hosts
        self._moved = asyncio.Event()
        self._bytes_missing = 0
        self.mark()
        for host in hosts:
            host.watchers[self] = None

    def mark(self) -> None:
        """The fetch is about to be read: what comes from now on is new."""
        self._bytes_came = 0
        self._has_role_changed = False
        self._visible = {host: host.visible_bytes for host in self._hosts}
        self._roles = {host: _role(host) for host in self._hosts}

    def on_partition_moved(self, host: PartitionHost) -> None:
        """There may be something new to read, or never again."""
        visible = host.visible_bytes
        self._bytes_came += visible - self._visible[host]
        self._visible[host] = visible
        if self._roles[host] != _role(host):
            self._has_role_changed = True
        if self._is_over:
            self._moved.set()

    async def wait(self, *, bytes_missing: int, timeout_s: float) -> None:
        """Until so much came since `mark`, something broke, or the time is over."""
        self._bytes_missing = bytes_missing
        if self._is_over:
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
            host.watchers.pop(self, None)

    @property
    def _is_over(self) -> bool:
        return self._has_role_changed or self._bytes_came >= self._bytes_missing


def _role(host: PartitionHost) -> tuple[Role, int]:
    return host.replica.role, host.replica.leader_epoch
