"""The pytest fixtures for users of the SDK: a real cluster by `odradek dev`, and one in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from odradek import Client
from odradek.testing import MemoryCluster, fixtures

# what `pytest_plugins = ["odradek.testing.fixtures"]` does, which only a top conftest may say
odradek_memory = fixtures.odradek_memory
odradek_cluster = fixtures.odradek_cluster
odradek_bootstrap = fixtures.odradek_bootstrap


async def test_the_fixture_gives_a_real_broker(odradek_bootstrap: str) -> None:
    async with Client(odradek_bootstrap) as client:
        await client.admin.create_topic("t", partitions=1, replication_factor=1)
        async with client.producer() as producer:
            assert (await producer.send_and_wait("t", b"x")).offset == 0


async def test_the_cluster_in_memory_creates_topics_on_demand(
    odradek_memory: MemoryCluster,
) -> None:
    async with (
        odradek_memory.client() as client,
        client.producer(allow_auto_create_topics=True) as producer,
    ):
        assert (await producer.send_and_wait("new", b"x")).offset == 0


def test_stopping_leaves_no_process_behind(tmp_path: Path) -> None:
    cluster = fixtures.start_dev_cluster(tmp_path)
    pids = [cluster.process.pid, *cluster.addresses["pids"].values()]
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    fixtures.stop_dev_cluster(cluster.process)
    assert not [pid for pid in pids if _is_running(pid)]


def test_a_cluster_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"not ready[\s\S]*no\.such\.setting"):
        fixtures.start_dev_cluster(tmp_path, settings=("no.such.setting=1",))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return status != "Z"
