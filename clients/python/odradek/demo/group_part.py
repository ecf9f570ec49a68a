"""The demo's group: three members share the topic; one is killed, and the others take its partitions."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from dataclasses import dataclass

from odradek.admin.admin import Admin
from odradek.errors import OdradekError

GROUP = "demo"
MEMBERS = 3
_SETTLE_S = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome:
    """How the partitions were shared."""

    before: list[int]  # partitions a member, all alive
    after: list[int]  # one killed
    killed_pid: int
    seconds: float  # from the kill until all partitions were owned again

    @property
    def is_well(self) -> bool:
        """Everything was owned before and after."""
        return (
            len(self.before) == MEMBERS
            and len(self.after) == MEMBERS - 1
            and (sum(self.before) == sum(self.after) > 0)
        )


async def run_group(admin: Admin, bootstrap: str, topic: str, partitions: int) -> GroupOutcome:
    """Start the members as processes, wait until they share all, kill one, wait again."""
    members = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "odradek.cli.main", "consume", topic, "--group", GROUP),
            *("--bootstrap", bootstrap),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        for _ in range(MEMBERS)
    ]
    try:
        before = await _shares(admin, MEMBERS, partitions)
        members[0].send_signal(signal.SIGKILL)
        began_s = time.monotonic()
        after = await _shares(admin, MEMBERS - 1, partitions)
        seconds = time.monotonic() - began_s
    finally:
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                member.kill()
            await member.wait()
    return GroupOutcome(before=before, after=after, killed_pid=members[0].pid, seconds=seconds)


async def _shares(admin: Admin, members: int, partitions: int) -> list[int]:
    """Partitions a member, once so many members own all; what there is when that takes too long."""
    deadline_s = time.monotonic() + _SETTLE_S
    shares: list[int] = []
    while time.monotonic() < deadline_s:
        try:
            described = await admin.describe_group(GROUP)
            shares = sorted((len(m.assignment) for m in described.members), reverse=True)
        except OdradekError:
            shares = []  # nobody has joined yet, or the coordinator is moving
        if len(shares) == members and sum(shares) == partitions and min(shares) > 0:
            return shares
        await asyncio.sleep(0.2)
    return shares
