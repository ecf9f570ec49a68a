"""A broker that uses all of its CPU is not fenced, and keeps its leaderships."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import pytest

from odradek import Client
from odradek.embedded import ChildProcess, ClusterPlan, EmbeddedCluster
from tests.e2e.faults.conftest import Report

PARTITIONS = 500
SATURATED_S = 60.0
PRODUCERS = 2
IDLE_SHARE_MAX = 0.2  # if all cores together were idle for longer, nothing was saturated
_TOPIC = "saturated"


def cpu_s(child: ChildProcess) -> float:
    """Return the CPU seconds that the process has used so far."""
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle_and_all_s() -> tuple[float, float]:
    """Return the idle seconds and the total seconds of all cores since the boot."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return float(ticks[3] + ticks[4]), float(sum(ticks))


def events(child: ChildProcess, event: str) -> list[str]:
    """Return the lines of the process's log for an event."""
    return [line for line in child.log_path.read_text().splitlines() if f'"{event}' in line]


async def produce_at_full_speed(bootstrap: str) -> list[dict[str, object]]:
    """Run the producers, and return what they printed at the end."""
    command = [sys.executable, "-m", "tests.e2e.faults.full_speed"]
    running = [
        await asyncio.create_subprocess_exec(
            *(*command, bootstrap, _TOPIC, str(PARTITIONS), str(SATURATED_S)),
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(PRODUCERS)
    ]
    done = await asyncio.gather(*(process.communicate() for process in running))
    return [json.loads(out) for out, _ in done]


async def leaders(client: Client) -> dict[int, tuple[int, int]]:
    """Return the leader and the leader epoch of each partition."""
    described = await client.admin.describe_topic(_TOPIC)
    return {p.partition: (p.leader_id, p.leader_epoch) for p in described.partitions}


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("brokers", "replicas"), [(1, 1), (3, 3)])
async def test_a_saturated_broker_is_never_fenced(
    report: Report, brokers: int, replicas: int
) -> None:
    plan = ClusterPlan(brokers=brokers, controllers=3)
    with EmbeddedCluster(plan) as cluster:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        async with Client(cluster.bootstrap) as client:
            await client.admin.create_topic(
                _TOPIC, partitions=PARTITIONS, replication_factor=replicas
            )
            before = await leaders(client)
            began_s = time.monotonic()
            cpu_before_s = {b: cpu_s(child) for b, child in cluster.brokers.items()}
            idle_before_s, all_before_s = idle_and_all_s()
            results = await produce_at_full_speed(cluster.bootstrap)
            took_s = time.monotonic() - began_s
            idle_s, all_s = idle_and_all_s()
            idle = (idle_s - idle_before_s) / (all_s - all_before_s)
            busy = {
                b: round((cpu_s(child) - cpu_before_s[b]) / took_s, 2)
                for b, child in cluster.brokers.items()
            }
            after = await leaders(client)
        fenced = [line for c in cluster.controllers.values() for line in events(c, "Fenced")]
        stalls = [
            line for b in cluster.brokers.values() for line in events(b, "The event loop stood")
        ]
        broken = [
            line
            for b in cluster.brokers.values()
            for line in events(b, "Replication stream from a leader broke")
        ]
    sent = sum(int(str(one["sent"])) for one in results)
    report(
        partitions=PARTITIONS,
        brokers=brokers,
        replicas=replicas,
        seconds=round(took_s, 1),
        records=sent,
        mb_per_s=round(sent / took_s / 1_000, 1),
        broker_cores=busy,
        idle=round(idle, 2),
        load=os.getloadavg()[0],
        loop_stalls=len(stalls),
        broken_streams=len(broken),
        fencings=len(fenced),
        bar_fencings=0,
    )
    assert [one["errors"] for one in results] == [{}] * PRODUCERS
    assert idle < IDLE_SHARE_MAX, "nothing was saturated"
    assert not fenced, fenced
    moved = {p: (before[p], after[p]) for p in before if before[p] != after[p]}
    assert not moved, f"leaderships moved: {moved}"
