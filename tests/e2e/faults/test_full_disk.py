"""The disk of one broker fills up under load and then has space again: the broker does not restart,
and no record is lost.

The broker's data directory is a separate small tmpfs, which a file of another program fills.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.builder import BatchBuilder
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1.broker_service_pb2_grpc import BrokerServiceStub
from tests.e2e.faults.cluster_faults import leader_of, new_topic, wait_for_full_isr
from tests.e2e.faults.conftest import Report
from tests.e2e.faults.workload import PROBE, SETTLE_S_MAX, read_all, under_load, verify
from tests.tools import need

VICTIM = 1
DISK_BYTES = 48 << 20
LEFT_BYTES = 256 << 10
RECORDS_BETWEEN = 500  # records of each partition
EXIT_FATAL = 70  # exit status of a controller that cannot continue
GAP_S_MAX = 15.0  # so high that a slow machine does not exceed it
_POLL_S = 0.1


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return the root of a cluster in which one node has a small disk: broker `VICTIM`, or the node
    that the parameter names.
    """
    need("mounts")
    disk = tmp_path / "cluster" / getattr(request, "param", f"broker-{VICTIM}")
    disk.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.fail(f"{' '.join(command)}: {mounted.stderr}: a full disk needs one (CAP_SYS_ADMIN)")
    try:
        yield disk.parent
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@asynccontextmanager
async def cluster_on(
    root: Path, *, brokers: int = 3, controllers: int = 1
) -> AsyncIterator[EmbeddedCluster]:
    plan = ClusterPlan(brokers=brokers, controllers=controllers, data_dir=root)
    with EmbeddedCluster(plan) as cluster:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        yield cluster


def fill(disk: Path, left_bytes: int = LEFT_BYTES) -> Path:
    """Fill the disk except for a little space; return the file that fills it."""
    filler = disk / "filler"
    stats = os.statvfs(disk)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, stats.f_bavail * stats.f_frsize - left_bytes)
    return filler


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline_s = time.monotonic() + SETTLE_S_MAX
    while not await condition():
        assert time.monotonic() < deadline_s, f"not within {SETTLE_S_MAX:.0f} s: {what}"
        await asyncio.sleep(_POLL_S)


async def answer_to_large_record(endpoint: str, topic: str, partition: int) -> tuple[int, str]:
    """Send a record that does not fit on the disk, without the SDK; return error code and
    message.
    """
    builder = BatchBuilder()
    builder.append(None, PROBE + bytes(2 * LEFT_BYTES))
    request = pb.ProduceRequest(request_id=1, acks=1, timeout_ms=2_000)
    request.partitions.add(topic=topic, partition=partition, records=bytes(builder.build()))
    async with grpc.aio.insecure_channel(endpoint) as channel, asyncio.timeout(SETTLE_S_MAX):
        call = BrokerServiceStub(channel).Produce()
        await call.write(request)
        answer = await call.read()
        assert isinstance(answer, pb.ProduceResponse), answer
        return answer.partitions[0].error_code, answer.partitions[0].error_message


async def fill_and_heal(client: Client, cluster: EmbeddedCluster, report: Report) -> None:
    """Run one round: fill the disk and free it again."""
    victim, disk = cluster.brokers[VICTIM], cluster.broker_data_dir(VICTIM)
    endpoint = cluster.bootstrap.split(",")[VICTIM - 1]
    topic, alone = await new_topic(client), await new_topic(client, replicas=1)
    await wait_for_full_isr(client, topic)
    own = (await led_by(client, alone, VICTIM))[0]
    async with client.producer(acks="all") as producer:
        await producer.send_and_wait(alone, b"kept", partition=own)

    async def leads_nothing() -> bool:
        return not await led_by(client, topic, VICTIM)

    async with under_load(client, topic, partitions=3) as load:
        load.begin_gap()
        filler = fill(disk)
        await until(leads_nothing, "the full broker gives its leaderships away")
        await load.progress(RECORDS_BETWEEN)
        gap_s = load.longest_gap_s
        code, message = await answer_to_large_record(endpoint, alone, own)
        assert ErrorCode(code) is ErrorCode.KAFKA_STORAGE_ERROR
        assert "No space left" in message, message
        assert await leader_of(client, alone, own) == VICTIM
        read = [
            value for place, value in await read_all(client, alone, 3) if place.partition == own
        ]
        assert read == [b"kept"], "records that only the full broker has can be read"
        filler.unlink()
        await wait_for_full_isr(client, topic)
        await load.progress(RECORDS_BETWEEN)
    await verify(client, topic, load)
    async with client.producer(acks="all") as producer:
        await producer.send_and_wait(alone, b"again", partition=own)
    assert victim.is_running
    report(gap_s=round(gap_s, 2), acknowledged=len(load.acknowledged))
    assert gap_s < GAP_S_MAX


async def led_by(client: Client, topic: str, broker_id: int) -> list[int]:
    """Return the partitions that a broker leads."""
    described = await client.admin.describe_topic(topic)
    return [p.partition for p in described.partitions if p.leader_id == broker_id]


async def test_a_full_disk_moves_leaders_serves_reads_and_heals_without_a_restart(
    small_disk: Path, report: Report
) -> None:
    async with cluster_on(small_disk) as cluster:
        pid = cluster.brokers[VICTIM].pid
        async with Client(cluster.bootstrap) as client:
            await fill_and_heal(client, cluster, report)
        log = cluster.brokers[VICTIM].log_path.read_text()
        assert "Data directory is full" in log
        assert "Data directory has free space again" in log
        assert cluster.brokers[VICTIM].pid == pid


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_disk_that_is_full_five_times(small_disk: Path, report: Report) -> None:
    async with cluster_on(small_disk) as cluster, Client(cluster.bootstrap) as client:
        for _ in range(5):
            await fill_and_heal(client, cluster, report)


@pytest.mark.parametrize("small_disk", ["controller-1"], indirect=True)
async def test_a_controller_whose_disk_is_full_ends_and_the_others_go_on(small_disk: Path) -> None:
    """A controller that cannot write its log ends, and can be restarted only when the disk has
    space.
    """
    async with cluster_on(small_disk, brokers=1, controllers=3) as cluster:
        victim = cluster.controllers[1]
        async with Client(cluster.bootstrap) as client:
            filler = fill(small_disk / victim.name, left_bytes=1 << 12)
            number = 0

            async def has_ended() -> bool:
                nonlocal number
                number += 1
                await new_topic(client, replicas=1)
                return not victim.is_running

            await until(has_ended, "the controller without room ends")
            assert victim.wait(SETTLE_S_MAX)
            assert victim.exit_status() == EXIT_FATAL
            assert "No space left" in victim.log_path.read_text()
            await new_topic(client, replicas=1)
            filler.unlink()
            victim.start()
            await asyncio.to_thread(victim.wait_ready, SETTLE_S_MAX)
            described = await client.admin.describe_cluster()
            assert described.active_controller_id in cluster.controllers
