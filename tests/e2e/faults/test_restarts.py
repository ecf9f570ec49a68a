"""How long clients wait during a controlled shutdown, a restart after a kill, and a first start."""

from __future__ import annotations

import asyncio
import signal
import statistics
import time

import pytest

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.e2e.faults.cluster_faults import (
    kill_at_once,
    leader_of,
    new_topic,
    restart,
    wait_for_full_isr,
)
from tests.e2e.faults.conftest import Report
from tests.e2e.faults.workload import PROBE, under_load, verify

SHUTDOWN_BAR_S = 0.3
RESTART_BAR_S = 2.0
START_BAR_S = 1.5
WAIT_S_MAX = 60.0  # so high that a slow machine does not exceed it
STOP_S_MAX = 30.0


async def shut_leader_down(cluster: EmbeddedCluster) -> float:
    """Run one round: the leader shuts down in a controlled way; return the longest gap in
    seconds.
    """
    async with Client(cluster.bootstrap) as client:
        topic = await new_topic(client)
        await wait_for_full_isr(client, topic)
        async with under_load(client, topic, partitions=3) as load:
            leader = cluster.brokers[await leader_of(client, topic)]
            load.begin_gap()
            leader.signal(signal.SIGTERM)
            is_gone = await asyncio.to_thread(leader.wait, STOP_S_MAX)
            assert is_gone, f"{leader.name} still runs {STOP_S_MAX:.0f} s after SIGTERM"
            assert leader.exit_status() == 0
            await load.progress(100)
            gap_s = load.longest_gap_s
            await restart([leader])
            await wait_for_full_isr(client, topic)
        await verify(client, topic, load)
        return gap_s


async def start_and_restart() -> tuple[float, float]:
    """Return the seconds from the start of a controller and a broker to the first acknowledgement, and the same after
    a kill.
    """
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1)) as cluster:
        began_s = time.monotonic()
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        async with Client(cluster.bootstrap) as client:
            topic = await new_topic(client, replicas=1, partitions=1)
            async with client.producer() as producer:
                await producer.send_and_wait(topic, PROBE, partition=0)
            start_s = time.monotonic() - began_s
            async with under_load(client, topic, partitions=1) as load:
                kill_at_once([cluster.brokers[1]])
                began_s = time.monotonic()
                cluster.brokers[1].start()
                await load.progress(1)
                restart_s = time.monotonic() - began_s
            await verify(client, topic, load)
    return start_s, restart_s


async def test_a_leader_that_shuts_down_hands_over_without_loss(
    cluster: EmbeddedCluster, report: Report
) -> None:
    gap_s = await shut_leader_down(cluster)
    report(gap_s=round(gap_s, 3), bar_s=SHUTDOWN_BAR_S)
    assert gap_s < WAIT_S_MAX


async def test_one_broker_serves_soon_after_its_start_and_after_a_kill(report: Report) -> None:
    start_s, restart_s = await start_and_restart()
    report(start_s=round(start_s, 3), bar_s=START_BAR_S)
    report(restart_s=round(restart_s, 3), bar_s=RESTART_BAR_S)
    assert max(start_s, restart_s) < WAIT_S_MAX


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_ten_shutdowns_of_leaders(cluster: EmbeddedCluster, report: Report) -> None:
    gaps_s = [round(await shut_leader_down(cluster), 3) for _ in range(10)]
    report(median_s=statistics.median(gaps_s), bar_s=SHUTDOWN_BAR_S, gaps_s=gaps_s)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_five_starts_and_restarts(report: Report) -> None:
    rounds = [await start_and_restart() for _ in range(5)]
    starts_s, restarts_s = ([round(s, 3) for s in column] for column in zip(*rounds, strict=True))
    report(median_s=statistics.median(starts_s), bar_s=START_BAR_S, starts_s=starts_s)
    report(median_s=statistics.median(restarts_s), bar_s=RESTART_BAR_S, restarts_s=restarts_s)
