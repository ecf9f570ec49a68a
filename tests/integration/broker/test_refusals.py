"""A broker that cannot start prints an error that names the cause and the remedy."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from tests.integration.broker.broker_cluster import BrokerCluster


async def _run(*settings: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "odradek_broker",
        *(part for one in settings for part in ("--set", one)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):  # so high that a slow machine does not exceed it
        _, told = await process.communicate()
    assert process.returncode is not None
    return process.returncode, told.decode()


def _settings(directory: Path, **more: str) -> list[str]:
    values = {
        "node.id": "1",
        "cluster.id": "c",
        "log.dirs": str(directory),
        "controller.rpc.endpoints": "1@127.0.0.1:1",
        "listeners": "GRPC://127.0.0.1:0,REPLICATION://127.0.0.1:0",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return [f"{name}={value}" for name, value in values.items()]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"log_dirs": "/a,/b"}, "a broker has one data directory"),
        ({"num_partitons": "3"}, "did you mean num.partitions?"),
        ({"node_id": "x"}, "node.id='x' is not valid"),
        ({"listeners": "GRPC://127.0.0.1:0"}, "no REPLICATION listener"),
        ({"listeners": "GRPC://0.0.0.0:0,REPLICATION://127.0.0.1:0"}, "advertised.listeners"),
        (
            {"listeners": "GRPC://203.0.113.9:0,REPLICATION://127.0.0.1:0"},
            "--insecure",
        ),
        ({"cluster_id": ""}, "cluster.id is not set"),
        ({"ssl_key_location": "/k"}, "ssl.certificate.location"),
    ],
)
async def test_a_wrong_setting_is_named(tmp_path: Path, changes: dict[str, str], told: str) -> None:
    status, said = await _run(*_settings(tmp_path / "d", **changes))
    assert status != 0
    assert told in said
    assert "Traceback" not in said


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listeners = f"GRPC://127.0.0.1:{port},REPLICATION://127.0.0.1:0"
        status, said = await _run(*_settings(tmp_path / "d", listeners=listeners))
    assert status != 0
    assert f"port {port} on 127.0.0.1 is in use" in said
    assert "Traceback" not in said


async def test_a_directory_of_another_cluster_or_node_is_refused(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=1) as cluster:
        directory = cluster.brokers[1].directory
        status, said = await _run(*_settings(directory, cluster_id="test-cluster"))
        assert status != 0
        assert "is in use by the process" in said
    status, said = await _run(*_settings(directory, cluster_id="other"))
    assert status != 0
    assert "belongs to the cluster test-cluster" in said
    status, said = await _run(*_settings(directory, cluster_id="test-cluster", node_id="2"))
    assert status != 0
    assert "belongs to node 1" in said
    assert "Traceback" not in said


async def test_a_broker_of_another_cluster_is_refused_by_the_controller(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=1) as cluster:
        status, said = await _run(
            *_settings(
                tmp_path / "d",
                controller_rpc_endpoints=cluster.controller.endpoint,
                cluster_id="another-cluster",
                node_id="9",
            )
        )
    assert status != 0
    assert "INCONSISTENT_CLUSTER_ID" in said
    assert "Traceback" not in said
