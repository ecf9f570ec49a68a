"""A broker without free file descriptors serves the partitions that it can, and all of them once descriptors are
free again.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from pathlib import Path

import grpc.aio
import pytest

from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import admin_service_pb2, admin_service_pb2_grpc
from tests.integration.broker.broker_cluster import BrokerCluster, batch, record_values

LIMIT = 300
SPARE = 12  # fewer than a quarter of the limit, which is left to everything but new partitions
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prlimit is Linux's")


def limit_files(cluster: BrokerCluster, limit: int) -> None:
    process = cluster.brokers[1].process
    assert process is not None
    hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, hard))


def files_open(pid: int) -> int:
    """Return how many descriptors a process has."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def produced(cluster: BrokerCluster, topic: str, value: int, *, partition: int = 0) -> None:
    """Produce until the record is accepted; all errors until then must be retriable."""
    async with asyncio.timeout(60):
        while True:
            result = await cluster.produce(
                topic, batch([b"%d" % value]), partition=partition, via=1
            )
            if result.error_code == 0:
                return
            assert ErrorCode(result.error_code).retriable, result
            await asyncio.sleep(0.05)


async def test_connections_that_take_all_descriptors_end_nothing(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=1) as cluster:
        await cluster.create_topic("written", segment_bytes="2000")
        await cluster.create_topic("synced", durability="fsync", segment_bytes="2000")
        await produced(cluster, "written", 0)
        await produced(cluster, "synced", 0)
        limit_files(cluster, LIMIT)
        host, port = cluster.brokers[1].endpoint.split(":")
        crowd: list[asyncio.StreamWriter] = []
        for _ in range(2 * LIMIT):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port))
                crowd.append(writer)
        for value in range(1, 60):  # rolls, syncs and their directories need descriptors
            for topic in ("written", "synced"):
                result = await cluster.produce(topic, batch([b"%d" % value]), via=1)
                assert result.error_code == 0 or ErrorCode(result.error_code).retriable, result
        for writer in crowd:
            writer.close()
        await produced(cluster, "written", 100)
        await produced(cluster, "synced", 100)
        for topic in ("written", "synced"):
            result = await cluster.produce(topic, batch([b"101"]), via=1)
            values = record_values(await cluster.read(topic, end=result.base_offset + 1))
            assert values[0] == 0
            assert values[-2:] == [100, 101]
            assert sorted(values) == values, "what was taken is there once, in order"
        assert "data directory is offline" not in cluster.brokers[1].log_path.read_text()
        await cluster.create_topic("after")
        await produced(cluster, "after", 0)


async def test_a_broker_holds_more_partitions_than_it_may_have_files_open(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=1) as cluster:
        limit_files(cluster, LIMIT)
        await cluster.create_topic("wide", partitions=2 * LIMIT)
        for value in range(2):
            for partition in range(0, 2 * LIMIT, 3):
                await produced(cluster, "wide", value, partition=partition)
        for partition in (0, LIMIT, 2 * LIMIT - 3):
            read = await cluster.read("wide", partition=partition, end=2)
            assert record_values(read) == [0, 1]
        log = cluster.brokers[1].log_path.read_text()
        assert "too few file descriptors" not in log
        assert "data directory is offline" not in log


async def test_partitions_that_find_no_descriptor_wait_and_the_others_are_served(
    tmp_path: Path,
) -> None:
    async with BrokerCluster(tmp_path, brokers=1) as cluster:
        await cluster.create_topic("first")
        await produced(cluster, "first", 0)
        process = cluster.brokers[1].process
        assert process is not None
        in_use = files_open(process.pid)
        limit_files(cluster, in_use + SPARE)
        await cluster.create_topic("wide", partitions=4)
        await cluster.until(
            lambda: "too few file descriptors" in cluster.brokers[1].log_path.read_text()
        )
        await produced(cluster, "first", 1)
        async with grpc.aio.insecure_channel(cluster.brokers[1].endpoint) as channel:
            stub = admin_service_pb2_grpc.AdminServiceStub(channel)
            request = admin_service_pb2.DescribeLogDirsRequest(include_partitions=True)
            described = await stub.DescribeLogDirs(request)  # a connection finds a descriptor
        (directory,) = described.brokers[0].log_dirs
        assert directory.offline_reason == ""
        assert [entry.partition.topic for entry in directory.partitions] == ["first"]
        limit_files(cluster, 4 * LIMIT)
        await produced(cluster, "wide", 7, partition=3)
        assert record_values(await cluster.read("wide", partition=3, end=1)) == [7]
        assert "data directory is offline" not in cluster.brokers[1].log_path.read_text()
