"""Processes are killed (SIGKILL) under acks=all load: how long acknowledgements pause, and that no
acknowledged record is lost.

A gap is the time between two acknowledgements of one partition; the longest gap of all partitions
counts, so partitions that continue under another leader do not hide it.
"""

from __future__ import annotations

import statistics

import pytest

from odradek import Client
from odradek.embedded import EmbeddedCluster
from tests.e2e.faults.cluster_faults import (
    active_controller,
    kill_at_once,
    leader_of,
    new_topic,
    resident_mb,
    restart,
    wait_for_full_isr,
)
from tests.e2e.faults.conftest import Report
from tests.e2e.faults.workload import under_load, verify

LEADER_BAR_S = 1.5
LEADER_AND_CONTROLLER_BAR_S = 2.5
GAP_S_MAX = 10.0  # so high that a slow machine does not exceed it
RSS_BAR_MB = 250
RSS_MB_MAX = 400
RECORDS_BETWEEN = 300  # records of each partition, before the killed processes restart


async def kill_leader(cluster: EmbeddedCluster, *, with_controller: bool) -> float:
    """Run one round: kill the leader; return the longest gap in seconds."""
    async with Client(cluster.bootstrap) as client:
        topic = await new_topic(client)
        await wait_for_full_isr(client, topic)
        async with under_load(client, topic, partitions=3) as load:
            victims = [cluster.brokers[await leader_of(client, topic)]]
            if with_controller:
                victims.append(await active_controller(client, cluster))
            load.begin_gap()
            kill_at_once(victims)
            await load.progress(RECORDS_BETWEEN)
            gap_s = load.longest_gap_s
            await restart(victims)
            await wait_for_full_isr(client, topic)
        await verify(client, topic, load)
        return gap_s


async def kill_everything(cluster: EmbeddedCluster) -> float:
    """Run one round: kill and restart all processes; return the longest gap in seconds, from before
    the kill to after the restart.
    """
    async with Client(cluster.bootstrap) as client:
        topic = await new_topic(client)
        await wait_for_full_isr(client, topic)
        async with under_load(client, topic, partitions=3) as load:
            load.begin_gap()
            kill_at_once(cluster.children())
            await restart(cluster.children())
            await load.progress(RECORDS_BETWEEN)
            gap_s = load.longest_gap_s
            await wait_for_full_isr(client, topic)
        await verify(client, topic, load)
        return gap_s


async def test_a_killed_leader_costs_a_pause_and_no_record(
    cluster: EmbeddedCluster, report: Report
) -> None:
    gap_s = await kill_leader(cluster, with_controller=False)
    report(gap_s=round(gap_s, 3), bar_s=LEADER_BAR_S)
    assert gap_s < GAP_S_MAX
    resident = {broker.name: round(resident_mb(broker)) for broker in cluster.brokers.values()}
    report(resident_mb=resident, bar_mb=RSS_BAR_MB)
    assert max(resident.values()) < RSS_MB_MAX


async def test_leader_and_controller_killed_together_cost_a_pause_and_no_record(
    cluster: EmbeddedCluster, report: Report
) -> None:
    gap_s = await kill_leader(cluster, with_controller=True)
    report(gap_s=round(gap_s, 3), bar_s=LEADER_AND_CONTROLLER_BAR_S)
    assert gap_s < GAP_S_MAX


async def test_nothing_acknowledged_is_lost_when_every_process_is_killed(
    cluster: EmbeddedCluster, report: Report
) -> None:
    report(gap_s=round(await kill_everything(cluster), 3))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("with_controller", "bar_s"), [(False, LEADER_BAR_S), (True, LEADER_AND_CONTROLLER_BAR_S)]
)
async def test_ten_killed_leaders(
    cluster: EmbeddedCluster, report: Report, with_controller: bool, bar_s: float
) -> None:
    gaps_s = [
        round(await kill_leader(cluster, with_controller=with_controller), 3) for _ in range(10)
    ]
    report(median_s=statistics.median(gaps_s), bar_s=bar_s, gaps_s=gaps_s)
    assert max(gaps_s) < GAP_S_MAX


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_twenty_times_every_process_is_killed(
    cluster: EmbeddedCluster, report: Report
) -> None:
    gaps_s = [round(await kill_everything(cluster), 3) for _ in range(20)]
    report(median_s=statistics.median(gaps_s), gaps_s=gaps_s)
