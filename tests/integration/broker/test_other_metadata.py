"""Controllers return with other metadata than a broker has followed: the broker refuses to follow
them, and keeps its logs.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from odradek import Client
from odradek.embedded import ChildProcess, ClusterPlan, EmbeddedCluster

WAIT_S = 60.0  # so high that a slow machine does not exceed it
RECORDS = 100


async def until_logged(child: ChildProcess, text: str) -> None:
    """Wait until a child has logged this text."""
    deadline_s = time.monotonic() + WAIT_S
    while text not in child.log_path.read_text(errors="replace"):
        assert time.monotonic() < deadline_s, f"no {text!r} in:\n{child.log_tail()}"
        await asyncio.sleep(0.05)


async def wrote(bootstrap: str) -> None:
    async with Client(bootstrap) as client:
        await client.admin.create_topic("precious", partitions=1, replication_factor=1)
        async with client.producer() as producer:
            for number in range(RECORDS):
                await producer.send_and_wait("precious", b"%d" % number)


def log_bytes(cluster: EmbeddedCluster) -> bytes:
    """Return the broker's log of the topic, wherever its directory is."""
    (segment,) = cluster.broker_data_dir(1).glob("*/00000000000000000000.log")
    return segment.read_bytes()


def lose_controller(cluster: EmbeddedCluster) -> Path:
    """Stop the controller, and move its data directory away."""
    controller = cluster.controllers[1]
    controller.signal(signal.SIGTERM)
    assert controller.wait(WAIT_S)
    saved = cluster.data_dir / "saved"
    (cluster.data_dir / "controller-1").rename(saved)
    return saved


def restore_controller(cluster: EmbeddedCluster, saved: Path) -> None:
    cluster.controllers[1].kill()
    shutil.rmtree(cluster.data_dir / "controller-1")
    saved.rename(cluster.data_dir / "controller-1")
    cluster.controllers[1].start()
    cluster.controllers[1].wait_ready(WAIT_S)


@pytest.fixture
def cluster() -> EmbeddedCluster:
    return EmbeddedCluster(ClusterPlan(brokers=1, controllers=1))


async def test_a_starting_broker_refuses_and_goes_on_with_the_restored_controllers(
    cluster: EmbeddedCluster,
) -> None:
    with cluster:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        await wrote(cluster.bootstrap)
        broker, controller = cluster.brokers[1], cluster.controllers[1]
        broker.signal(signal.SIGTERM)
        assert broker.wait(WAIT_S)
        before = log_bytes(cluster)
        saved = lose_controller(cluster)
        controller.start()
        broker.start()
        assert await asyncio.to_thread(broker.wait, WAIT_S), "it serves other metadata"
        assert broker.exit_status() == 1
        refusal = broker.log_tail().splitlines()[-1]
        assert "has followed the metadata log" in refusal
        assert "Restore the data directories of the controllers" in refusal
        assert "mpty" not in refusal, "the directory may hold the only copy"
        assert log_bytes(cluster) == before
        restore_controller(cluster, saved)
        broker.start()
        broker.wait_ready(WAIT_S)
        async with Client(cluster.bootstrap) as client:
            ends = await client.admin.list_offsets({("precious", 0): -1})
            assert [end.offset for end in ends.values()] == [RECORDS]


async def test_a_running_broker_stops_serving_and_serves_again_with_the_restored_controllers(
    cluster: EmbeddedCluster,
) -> None:
    with cluster:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        await wrote(cluster.bootstrap)
        broker, controller = cluster.brokers[1], cluster.controllers[1]
        before = log_bytes(cluster)
        saved = lose_controller(cluster)
        controller.start()
        await until_logged(broker, "Controller refused this broker's heartbeats")
        await until_logged(broker, "Controller refused to send metadata to this broker")
        assert broker.is_running
        assert log_bytes(cluster) == before
        await asyncio.to_thread(restore_controller, cluster, saved)
        async with Client(cluster.bootstrap) as client, client.producer() as producer:
            assert await producer.send_and_wait("precious", b"more")
        assert log_bytes(cluster).startswith(before)
        assert broker.is_running


async def test_a_broker_adopts_other_metadata_by_command_only(cluster: EmbeddedCluster) -> None:
    with cluster:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        await wrote(cluster.bootstrap)
        broker, controller = cluster.brokers[1], cluster.controllers[1]
        data_dir = str(cluster.broker_data_dir(1))
        running = adopt(data_dir, "0" * 32)
        assert running.returncode == 1
        assert "is in use by the process" in running.stderr
        broker.signal(signal.SIGTERM)
        assert broker.wait(WAIT_S)
        lose_controller(cluster)
        controller.start()
        broker.start()
        assert await asyncio.to_thread(broker.wait, WAIT_S)
        commands = re.search(r"storage adopt --incarnation ([0-9a-f]{32})", broker.log_tail())
        assert commands is not None, broker.log_tail()
        wrong = adopt(data_dir, "0" * 32)
        assert wrong.returncode == 0, wrong.stderr
        broker.start()
        assert await asyncio.to_thread(broker.wait, WAIT_S), "it took metadata nobody named"
        assert adopt(data_dir, commands[1]).returncode == 0
        broker.start()
        await asyncio.to_thread(broker.wait_ready, WAIT_S)
        assert log_bytes(cluster), "the logs of the lost metadata stay"


def adopt(data_dir: str, incarnation: str) -> subprocess.CompletedProcess[str]:
    """Run `odradek storage adopt`."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "odradek.cli.main", "storage", "adopt"),
            *("--data-dir", data_dir, "--incarnation", incarnation),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
