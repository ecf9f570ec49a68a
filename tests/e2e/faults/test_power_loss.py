"""All machines lose power at once: records that were acknowledged with `durability=fsync` are still
there after the restart.

All controllers and brokers run on disks that lose unsynced bytes (fragile_disk.py). Each round has
a control: a topic with `durability=replicated`, which promises nothing when all copies lose power.
It must lose acknowledged records, otherwise the simulated power loss lost nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from odradek import Client, OdradekError
from odradek.embedded import ChildProcess, ClusterPlan, EmbeddedCluster
from tests.e2e.faults.cluster_faults import PARTITIONS, kill_at_once, restart, wait_for_full_isr
from tests.e2e.faults.conftest import Report
from tests.e2e.faults.fragile_disk import FragileDisks, PowerLoss
from tests.e2e.faults.workload import (
    SETTLE_S_MAX,
    Workload,
    faults_of,
    read_all,
    under_load,
    verify,
)

RECORDS_BETWEEN = 200  # records of each partition
CONTROL_RECORDS = 300
TOPICS_MAX = 60  # created in one round
TOPIC_PAUSE_S = 0.05
POLL_S = 0.1
IDLE_S_MAX = 3.0  # a process without a change for this long is killed at once


@asynccontextmanager
async def fragile_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lies: str = ""
) -> AsyncIterator[tuple[EmbeddedCluster, FragileDisks]]:
    """Yield three controllers and three brokers whose disks are `FragileDisks`."""
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
    """Create a topic with three replicas, and wait until all of them are in sync."""
    await client.admin.create_topic(
        name,
        partitions=PARTITIONS,
        replication_factor=3,
        configs={"min.insync.replicas": "2", "durability": durability},
    )
    await wait_for_full_isr(client, name)
    return name


async def fill(client: Client, topic: str) -> None:
    """Write the control records, and wait until all of them are acknowledged."""
    async with client.producer(acks="all") as producer:
        futures = [await producer.send(topic, b"%d" % n) for n in range(CONTROL_RECORDS)]
        await asyncio.gather(*futures)


def lose_power(
    cluster: EmbeddedCluster, disks: FragileDisks, chance: random.Random | None
) -> PowerLoss:
    """Kill all processes and cut the power of all machines."""
    kill_at_once(cluster.children())
    return disks.cut_power(chance)


async def lose_power_under_load(
    cluster: EmbeddedCluster, disks: FragileDisks, number: int, seed: int | None
) -> dict[str, object]:
    """Run one round, and return its figures.

    Every record that was acknowledged before or after the power loss must be there once, in order.
    """
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
        assert survived < CONTROL_RECORDS, (
            "the power loss lost no record of the control topic, so the round proves nothing"
        )
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
        # If the shim had missed a change, the files would differ from the journals.
        assert disks.differences() == []


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_five_power_losses_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    """The first and the last power loss lose all unsynced bytes; those in between keep a random
    part of them.
    """
    async with fragile_cluster(tmp_path, monkeypatch) as (cluster, disks):
        for number, seed in enumerate((None, 1, 2, 3, None)):
            report(round=number, **await lose_power_under_load(cluster, disks, number, seed))


@asynccontextmanager
async def making_topics(client: Client, prefix: str) -> AsyncIterator[set[str]]:
    """Create topics until the end of the `with` block; yield the set of those whose creation was
    acknowledged.
    """
    made: set[str] = set()
    is_over = asyncio.Event()

    async def make() -> None:
        for number in range(TOPICS_MAX):
            if is_over.is_set():
                return
            name = f"{prefix}-{number}"
            with contextlib.suppress(OdradekError):  # it is not known whether the topic was created
                await client.admin.create_topic(name, partitions=1, replication_factor=1)
                made.add(name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TOPIC_PAUSE_S):
                    await is_over.wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(make())
        try:
            yield made
        finally:
            is_over.set()


async def wait_for_topics(client: Client, names: set[str]) -> None:
    """Wait until a broker lists all these topics, once it has read the metadata.

    Raises:
        TimeoutError: some were not listed within `SETTLE_S_MAX`: they are lost.
    """
    deadline_s = time.monotonic() + SETTLE_S_MAX
    while missing := names - {topic.name for topic in await client.admin.list_topics()}:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{len(missing)} of {len(names)} created topics are lost")
        await asyncio.sleep(POLL_S)


async def kill_within_changes(
    victims: list[ChildProcess], disks: FragileDisks, chance: random.Random
) -> int:
    """Kill each process in the middle of a write, sync or rename; return how many made such a
    change.
    """
    for victim in victims:
        disks.kill_within(victim.pid, chance.randint(1, 30))
    found = 0
    for victim in victims:
        if await asyncio.to_thread(victim.wait, IDLE_S_MAX):
            found += 1
        else:  # the process writes nothing, because its quorum or its leaders have been killed
            kill_at_once([victim])
    return found


async def lose_power_within_changes(
    cluster: EmbeddedCluster, disks: FragileDisks, number: int, seed: int
) -> dict[str, object]:
    """Run one round: brokers and controllers are killed in the middle of changes of their files,
    then the power fails.

    In every other round, the killed processes restart before the power loss and find the files as
    they are in the page cache. What they report from these files must survive the power loss, too.
    """
    chance = random.Random(seed)
    children = cluster.children()
    come_back = number % 2 == 1
    async with Client(cluster.bootstrap) as client:
        kept = await create(client, f"kept-{number}", "fsync")
        async with (
            under_load(client, kept, partitions=PARTITIONS) as load,
            making_topics(client, f"made-{number}") as made,
        ):
            await load.progress(RECORDS_BETWEEN)
            victims = chance.sample(children, chance.randint(2, len(children)))
            killed_within = await kill_within_changes(victims, disks, chance)
            if come_back:
                await restart(victims)
                await load.progress(1)
            before = len(made)
            loss = lose_power(cluster, disks, chance if chance.random() < 0.5 else None)
            await restart(children)
            await load.progress(RECORDS_BETWEEN)
            await wait_for_full_isr(client, kept)
        await verify(client, kept, load)
        await wait_for_topics(client, made)
        await client.admin.delete_topics(made)
    return {
        "seed": seed,
        "victims": sorted(victim.name for victim in victims),
        "killed_within": killed_within,
        "came_back_first": come_back,
        "acknowledged": len(load.acknowledged),
        "topics_made_before": before,
        "topics_made": len(made),
        "unsynced_bytes": loss.unsynced_bytes,
        "unsynced_entries": loss.unsynced_entries,
    }


async def power_losses_within_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report, rounds: int
) -> None:
    killed_within = 0
    async with fragile_cluster(tmp_path, monkeypatch) as (cluster, disks):
        for number in range(rounds):
            figures = await lose_power_within_changes(cluster, disks, number, 100 + number)
            report(round=number, **figures)
            killed_within += cast(int, figures["killed_within"])
    assert killed_within >= rounds


@pytest.mark.timeout(300)
async def test_nothing_is_lost_when_processes_are_killed_within_writes_and_the_power_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    await power_losses_within_changes(tmp_path, monkeypatch, report, 2)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_twenty_power_losses_after_kills_within_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    await power_losses_within_changes(tmp_path, monkeypatch, report, 20)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_disk_that_lies_about_syncs_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    """With the planted bug, a sync of segments does nothing. The same checks must find the loss."""
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
