"""`odradek broker --processes N` runs one host's brokers under one supervisor; they are killed,
restarted and stopped under load.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster, free_ports
from tests.integration.sdk.test_failover import Load, verify

PATIENCE_S = 100.0
DERIVED_PORTS = (0, 1, 2, 10, 11, 12)
FIRST_ID, PROCESSES = 11, 2


class Host:
    """A host of two brokers; the cluster's own broker counts as another host."""

    def __init__(self, cluster: EmbeddedCluster, directory: Path) -> None:
        self.log_path = directory / "host.log"
        self.directory = directory / "data"
        *ports, self.status_port = sorted(free_ports(60))
        # Each broker has three ports, ten above those of the one before it.
        base = next(port for port in ports if {port + i for i in DERIVED_PORTS} <= {*ports})
        self._settings = {
            "node.id": FIRST_ID,
            "host.id": "b",
            "cluster.id": cluster.cluster_id,
            "log.dirs": self.directory,
            "controller.rpc.endpoints": f"1@{cluster.describe()['controllers']}",
            "listeners": f"GRPC://127.0.0.1:{base},REPLICATION://127.0.0.1:{base + 1}",
            "metrics.port": base + 2,
        }
        self.process: subprocess.Popen[str] | None = None
        self.pids: dict[int, int] = {}

    def start(self, *, is_awaited: bool = True) -> None:
        sets = (
            word for item in self._settings.items() for word in ("--set", "=".join(map(str, item)))
        )
        options = ("--processes", str(PROCESSES), "--status-port", str(self.status_port))
        with self.log_path.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "odradek.cli.main", "broker", *options, *sets],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        if is_awaited:
            self.read_ready_line()

    def read_ready_line(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        readable, *_ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert readable, f"waited for the brokers; log:\n{self.log_path.read_text()[-8_000:]}"
        ready = json.loads(self.process.stdout.readline())
        assert ready["event"] == "ready"
        self.process.stdout.close()
        self.pids = {broker["id"]: broker["pid"] for broker in ready["brokers"]}
        assert list(self.pids) == [FIRST_ID, FIRST_ID + 1]

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def events(self, name: str) -> list[dict[str, Any]]:
        events = (
            json.loads(line) for line in self.log_path.read_text().splitlines() if line[:1] == "{"
        )
        return [event for event in events if event["event"] == name]

    def is_ready(self) -> bool:
        url = f"http://127.0.0.1:{self.status_port}/readyz"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
        return False


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    plan = ClusterPlan(
        brokers=1, controllers=1, data_dir=tmp_path / "cluster", settings=("host.id=a",)
    )
    with EmbeddedCluster(plan) as running:
        running.start()
        running.wait_ready()
        yield running


@pytest.fixture
def host(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[Host]:
    directory = tmp_path / "host"
    directory.mkdir()
    host = Host(cluster, directory)
    host.start()
    yield host
    assert host.process is not None
    if host.process.poll() is None:
        host.process.terminate()
        host.process.wait(PATIENCE_S)


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition that other processes bring about."""

    def wait() -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up_s, f"waited for: {what}"
            time.sleep(0.05)

    await asyncio.to_thread(wait)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A process whose parent has not collected its status yet has ended, too.
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


async def test_a_host_is_killed_in_part_rolled_and_stopped_while_nothing_is_lost(
    cluster: EmbeddedCluster, host: Host
) -> None:
    async with Client(cluster.bootstrap) as client:
        described = await client.admin.describe_cluster()
        assert {b.broker_id: b.host for b in described.brokers} == {1: "a", 11: "b", 12: "b"}
        await client.admin.create_topic("kept", partitions=6, replication_factor=2)
        topic = await client.admin.describe_topic("kept")
        assert all(1 in p.replicas for p in topic.partitions), "one copy on each host"
        load = Load(client, "kept")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run())
            await load.progress(0.5, PATIENCE_S)

            os.kill(host.pids[11], signal.SIGKILL)
            await until(lambda: host.events("Broker process ended"), "the death was noticed")
            await until(host.is_ready, "the broker is in sync again")
            await load.progress(0.5, PATIENCE_S)

            before = len(host.events("Serving"))
            host.signal(signal.SIGHUP)
            await until(lambda: host.events("Completed rolling restart"), "both were restarted")
            assert host.is_ready()
            await load.progress(0.5, PATIENCE_S)
            load.is_over = True
        await verify(client, "kept", load)
    rolled = [event["broker_id"] for event in host.events("Restarted broker")]
    assert rolled == [11, 12]
    assert len(host.events("Serving")) == before + 2
    (ended,) = host.events("Broker process ended")
    assert (ended["broker_id"], ended["how"]) == (11, "was killed by SIGKILL")
    host.signal(signal.SIGTERM)
    assert host.process is not None
    assert await asyncio.to_thread(host.process.wait, PATIENCE_S) == 0
    stopped = [e["broker_id"] for e in host.events("Stopping") if e["broker_id"] in host.pids]
    assert stopped[-2:] == [12, 11], "one after the other, the last first"


async def test_a_killed_supervisor_leaves_no_orphans_and_a_second_one_finds_the_directories(
    cluster: EmbeddedCluster, host: Host
) -> None:
    async with Client(cluster.bootstrap) as client:
        await client.admin.create_topic("kept", partitions=4, replication_factor=2)
        async with client.producer() as producer:
            for number in range(100):
                await producer.send("kept", b"%d" % number)
    children = dict(host.pids)
    host.signal(signal.SIGKILL)
    assert host.process is not None
    host.process.wait(PATIENCE_S)
    # The second one does not wait for the children of the first, which hold the directories' locks.
    host.start()
    assert all(is_gone(pid) for pid in children.values())
    assert set(host.pids).isdisjoint(children.values())
    async with Client(cluster.bootstrap) as client:
        topic = await client.admin.describe_topic("kept")
        assert all(len(p.replicas) == 2 for p in topic.partitions)
        read: list[bytes] = []
        async with client.consumer("kept", auto_offset_reset="earliest") as consumer:
            while len(read) < 100:
                read += [record.value for record in await consumer.getmany(1000)]
    assert sorted(read, key=int) == [b"%d" % number for number in range(100)]
    assert sorted(path.name for path in host.directory.iterdir()) == ["broker-11", "broker-12"]


def test_a_host_refuses_what_none_of_its_brokers_can_use(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("one broker's\n")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "odradek.cli.main", "broker", "--processes", "2"),
            *("--set", f"log.dirs={tmp_path}", "--set", "node.id=1"),
            *("--set", "controller.rpc.endpoints=1@127.0.0.1:1"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 2
    assert "was started without --processes" in ended.stderr
    assert str(tmp_path / "broker-1") in ended.stderr
