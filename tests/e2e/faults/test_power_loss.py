"""The power fails everywhere at once: what `durability=fsync` acknowledged is there when it comes back.

All controllers and brokers run on disks that forget what was not synced (fragile_disk.py). Each round has a control:
a topic of `durability=replicated`, which promises nothing when all copies lose power, must lose records that
were acknowledged; else the power loss was none.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.e2e.faults.cluster_faults import PARTITIONS, kill_at_once, restart, wait_for_full_isr
from tests.e2e.faults.conftest import Report
from tests.e2e.faults.fragile_disk import FragileDisks, PowerLoss
from tests.e2e.faults.workload import Workload, faults_of, read_all, under_load, verify

RECORDS_BETWEEN = 200  # a partition's
CONTROL_RECORDS = 300


@asynccontextmanager
async def fragile_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lies: str = ""
) -> AsyncIterator[tuple[EmbeddedCluster, FragileDisks]]:
    """Three controllers and three brokers whose disks are `FragileDisks`."""
    (tmp_path / "workspace").mkdir()
    with EmbeddedCluster(
        ClusterPlan(brokers=3, controllers=3, data_dir=tmp_path / "cluster")
    ) as cluster:
        disks = FragileDisks(cluster.data_dir, tmp_path / "workspace")
        disks.plug_in()
        for name, value in disks.environment(lies=lies).items():
            monkeypatch.setenv(name, value)
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        yield cluster, disks


async def create(client: Client, name: str, durability: str) -> str:
    """A topic with three replicas, all of them in sync."""
    await client.admin.create_topic(
        name,
        partitions=PARTITIONS,
        replication_factor=3,
        configs={"min.insync.replicas": "2", "durability": durability},
    )
    await wait_for_full_isr(client, name)
    return name


async def fill(client: Client, topic: str) -> None:
    """Control records, all of them acknowledged."""
    async with client.producer(acks="all") as producer:
        futures = [await producer.send(topic, b"%d" % n) for n in range(CONTROL_RECORDS)]
        await asyncio.gather(*futures)


def lose_power(
    cluster: EmbeddedCluster, disks: FragileDisks, chance: random.Random | None
) -> PowerLoss:
    """Everywhere at once."""
    kill_at_once(cluster.children())
    return disks.cut_power(chance)


async def lose_power_under_load(
    cluster: EmbeddedCluster, disks: FragileDisks, number: int, seed: int | None
) -> dict[str, object]:
    """One round: whatever was acknowledged before or after is there once, in order; figures of it."""
    chance = None if seed is None else random.Random(seed)
    async with Client(cluster.bootstrap) as client:
        kept = await create(client, f"kept-{number}", "fsync")
        lost = await create(client, f"lost-{number}", "replicated")
        async with under_load(client, kept, partitions=PARTITIONS) as load:
            await fill(client, lost)
            await load.progress(RECORDS_BETWEEN)
            load.begin_gap()
            before = len(load.acknowledged)
            loss = lose_power(cluster, disks, chance)
            await restart(cluster.children())
            await load.progress(RECORDS_BETWEEN)
            gap_s = load.longest_gap_s
            await wait_for_full_isr(client, kept)
        await verify(client, kept, load)
        await wait_for_full_isr(client, lost)
        survived = len(await read_all(client, lost, PARTITIONS))
    assert loss.unsynced_bytes > 0
    if chance is None:
        assert survived < CONTROL_RECORDS, "the power loss took nothing: this proves nothing"
    return {
        "seed": seed,
        "acknowledged_before": before,
        "acknowledged": len(load.acknowledged),
        "gap_s": round(gap_s, 2),
        "unsynced_bytes": loss.unsynced_bytes,
        "unsynced_entries": loss.unsynced_entries,
        "control_survived": survived,
    }


async def test_nothing_acknowledged_is_lost_when_the_power_fails_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    async with fragile_cluster(tmp_path, monkeypatch) as (cluster, disks):
        report(**await lose_power_under_load(cluster, disks, 0, None))
        for child in (*cluster.brokers.values(), *cluster.controllers.values()):
            assert await asyncio.to_thread(child.terminate, 30), f"{child.name} had to be killed"
        # Everything that the processes wrote went through the shim, or it would not be here
        assert disks.differences() == []


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_five_power_losses_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    """The first and the last lose all that was not synced, those between keep parts of it by chance."""
    async with fragile_cluster(tmp_path, monkeypatch) as (cluster, disks):
        for number, seed in enumerate((None, 1, 2, 3, None)):
            report(round=number, **await lose_power_under_load(cluster, disks, number, seed))


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_disk_that_lies_about_syncs_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    """The planted bug: a sync of segments does nothing. The same checks must find the loss."""
    async with fragile_cluster(tmp_path, monkeypatch, lies=".log") as (cluster, disks):
        async with Client(cluster.bootstrap) as client:
            topic = await create(client, "kept", "fsync")
            load = Workload(partitions=PARTITIONS, sent=CONTROL_RECORDS)
            async with client.producer(acks="all") as producer:
                futures = [
                    await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
                    for number in range(load.sent)
                ]
                await producer.flush()
            for number, future in enumerate(futures):
                load.note(number, future)
            assert len(load.acknowledged) == CONTROL_RECORDS
            lose_power(cluster, disks, None)
            await restart(cluster.children())
        async with Client(cluster.bootstrap) as client:
            await wait_for_full_isr(client, topic)
            read = await read_all(client, topic, PARTITIONS)
            faults = faults_of(load.acknowledged, load.sent, read)
        report(faults=len(faults), first=faults[:1])
        assert any("is lost" in fault for fault in faults)
