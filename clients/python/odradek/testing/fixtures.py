"""pytest fixtures for an in-memory cluster, and for a cluster of real processes.

To use them, put `pytest_plugins = ["odradek.testing.fixtures"]` into the top `conftest.py`. `odradek_memory` needs no
other package. `odradek_bootstrap` starts `odradek dev` once per test session, with one broker and one controller, and
needs the extra `odradek[server]`.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import pytest

from odradek.testing.memory_cluster import MemoryCluster

START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 15.0


class DevCluster:
    """A running `odradek dev`. `addresses` is the JSON that it printed when the cluster accepted writes."""

    def __init__(self, process: subprocess.Popen[bytes], addresses: dict[str, Any]) -> None:
        self.process = process
        self.addresses = addresses

    @property
    def bootstrap(self) -> str:
        """The gRPC addresses of the brokers, as HOST:PORT,..."""
        return str(self.addresses["grpc"])


def start_dev_cluster(
    data_dir: Path,
    *,
    brokers: int = 1,
    controllers: int = 1,
    settings: tuple[str, ...] = (),
) -> DevCluster:
    """Start `odradek dev`, and wait until the cluster accepts writes. Its output goes to data_dir/dev.log.

    Raises:
        RuntimeError: the process ended, or was not ready in time. The message has the end of its log.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    log_path = data_dir / "dev.log"
    command = [
        sys.executable, "-m", "odradek.cli.main", "dev", "--json", "--exit-with-parent",
        "--brokers", str(brokers), "--controllers", str(controllers), "--gateways", "0",
        "--data-dir", str(data_dir / "data"),
    ]  # fmt: skip
    for setting in settings:
        command += ["--set", setting]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=dict(os.environ)
        )
    assert process.stdout is not None
    line = _line(process.stdout, START_S_MAX)
    if not line:
        stop_dev_cluster(process)
        raise RuntimeError(
            f"`odradek dev` was not ready within {START_S_MAX} s:\n{log_path.read_text()[-4000:]}"
        )
    return DevCluster(process, json.loads(line))


def stop_dev_cluster(process: subprocess.Popen[bytes]) -> None:
    """Stop the cluster with all its processes: close its standard input, then send SIGTERM, and then SIGKILL if it is
    still running.
    """
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


@pytest.fixture
def odradek_memory() -> MemoryCluster:
    """Return a new in-memory cluster with one broker, which creates topics if a producer allows it."""
    return MemoryCluster(auto_create_topics=True)


@pytest.fixture(scope="session")
def odradek_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Yield a real cluster of one broker and one controller, which runs for the whole test session."""
    cluster = start_dev_cluster(tmp_path_factory.mktemp("odradek"))
    try:
        yield cluster
    finally:
        stop_dev_cluster(cluster.process)


@pytest.fixture
def odradek_bootstrap(odradek_cluster: DevCluster) -> str:
    """Return the bootstrap address of the real cluster of this session, for `Client`."""
    return odradek_cluster.bootstrap


def _line(source: IO[bytes], timeout_s: float) -> bytes:
    """Return one line, or b"" if no whole line arrives in time."""
    deadline_s = time.monotonic() + timeout_s
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline_s - time.monotonic())):
                return b""
            piece = os.read(source.fileno(), 4096)
            if not piece:
                return b""
            line += piece
    return line
