"""Chooses the process to kill, and waits until the cluster has recovered."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from odradek import Client
from odradek.embedded import ChildProcess, EmbeddedCluster
from tests.e2e.faults.workload import SETTLE_S_MAX

PARTITIONS = 3
_POLL_S = 0.1


async def new_topic(client: Client, *, replicas: int = 3, partitions: int = PARTITIONS) -> str:
    """Create a new topic, which survives the loss of all but a majority of its replicas."""
    name = f"faults-{uuid.uuid4().hex[:12]}"
    await client.admin.create_topic(
        name,
        partitions=partitions,
        replication_factor=replicas,
        configs={"min.insync.replicas": str(replicas // 2 + 1)},
    )
    return name


async def leader_of(client: Client, topic: str, partition: int = 0) -> int:
    """Return the id of the broker that leads the partition."""
    described = await client.admin.describe_topic(topic)
    return next(p.leader_id for p in described.partitions if p.partition == partition)


async def active_controller(client: Client, cluster: EmbeddedCluster) -> ChildProcess:
    """Return the process of the active controller."""
    described = await client.admin.describe_cluster()
    return cluster.controllers[described.active_controller_id]


def kill_at_once(victims: Sequence[ChildProcess]) -> None:
    """Send SIGKILL to all processes, then wait until all have ended."""
    for victim in victims:
        victim.signal(signal.SIGKILL)
    for victim in victims:
        assert victim.wait(10), f"{victim.name} is still there 10 s after SIGKILL"


async def restart(victims: Sequence[ChildProcess]) -> None:
    """Start all processes, then wait until all are ready."""
    for victim in victims:
        victim.start()
    for victim in victims:
        await asyncio.to_thread(victim.wait_ready, SETTLE_S_MAX)


async def wait_for_full_isr(client: Client, topic: str) -> None:
    """Wait until every replica of the topic is in sync.

    Raises:
        TimeoutError: they were not in sync within `SETTLE_S_MAX`.
    """
    deadline_s = time.monotonic() + SETTLE_S_MAX
    while True:
        described = await client.admin.describe_topic(topic)
        if all(len(p.isr) == len(p.replicas) for p in described.partitions):
            return
        if time.monotonic() > deadline_s:
            in_sync = {p.partition: p.isr for p in described.partitions}
            raise TimeoutError(f"replicas of {topic} are not in sync: {in_sync}")
        await asyncio.sleep(_POLL_S)


def resident_mb(child: ChildProcess) -> float:
    """Return the resident memory of a running process, in 10^6 bytes."""
    status = Path(f"/proc/{child.pid}/status").read_text()
    kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return kib * 1024 / 1e6
