"""Runs Odradek as one side of the comparison: brokers and one controller with default settings, or one host's brokers
under one supervisor.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from odradek.embedded import ClusterPlan, EmbeddedCluster, free_ports


class OdradekCluster:
    """A cluster of Odradek with the interface of KafkaCluster."""

    def __init__(self, directory: Path, *, nodes: int, name: str = "odradek") -> None:
        self.name: Final = name
        settings = (f"min.insync.replicas={min(nodes, 2)}",)
        self._cluster = EmbeddedCluster(
            ClusterPlan(brokers=nodes, controllers=1, data_dir=directory, settings=settings)
        )
        self.bootstrap = self._cluster.kafka_bootstrap

    def start(self) -> None:
        """Start every process without waiting for it."""
        self._cluster.start()

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the brokers and the controller."""
        return [child.pid for child in self._cluster.children() if child.pid is not None]

    @property
    def broker_pids(self) -> list[int]:
        """Return the process ids of the brokers."""
        return [child.pid for child in self._cluster.brokers.values() if child.pid is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cluster.stop()


class OdradekHost:
    """One controller, and the brokers of `odradek broker --processes N`, with the interface of OdradekCluster."""

    def __init__(self, directory: Path, *, processes: int, name: str) -> None:
        self.name: Final = name
        self._directory = directory
        self._processes = processes
        self._controller = EmbeddedCluster(
            ClusterPlan(
                brokers=0,
                controllers=1,
                data_dir=directory / "controller",
                settings=("min.insync.replicas=1",),
            )
        )
        # Each further broker has the ports of the first broker plus 10, 20, ...
        ports = sorted(free_ports(60))
        wanted = [10 * i + port for i in range(processes) for port in range(4)]
        self._port = next(port for port in ports if {port + i for i in wanted} <= {*ports})
        self.bootstrap = ",".join(f"127.0.0.1:{self._port + 10 * i + 3}" for i in range(processes))
        self._supervisor: subprocess.Popen[str] | None = None
        self.broker_pids: list[int] = []

    def start(self) -> None:
        """Start the controller and the supervisor, and wait until all brokers are ready."""
        self._controller.start()
        self._controller.wait_ready()
        port = self._port
        settings = {
            "node.id": 1,
            "host.id": "bench",
            "cluster.id": self._controller.cluster_id,
            "log.dirs": self._directory / "brokers",
            "controller.rpc.endpoints": f"1@{self._controller.describe()['controllers']}",
            "listeners": f"GRPC://127.0.0.1:{port},REPLICATION://127.0.0.1:{port + 1},"
            f"KAFKA://127.0.0.1:{port + 3}",
            "metrics.port": port + 2,
        }
        words = [word for item in settings.items() for word in ("--set", "=".join(map(str, item)))]
        command = [sys.executable, "-m", "odradek.cli.main", "broker"]
        command += ["--processes", str(self._processes), *words]
        with (self._directory / "supervisor.log").open("a") as log:
            self._supervisor = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._supervisor.stdout is not None
        ready = json.loads(self._supervisor.stdout.readline())
        self.broker_pids = [broker["pid"] for broker in ready["brokers"]]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._supervisor is not None:
            self._supervisor.terminate()
            self._supervisor.wait()
        self._controller.stop()
