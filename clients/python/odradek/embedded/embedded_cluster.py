"""Controllers, brokers and gateways of one cluster as child processes on loopback.

Ports are chosen before anything starts and kept over restarts, so that a process that was killed
comes back where its peers and clients look for it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from odradek.embedded.child_process import ChildProcess, ChildProcessFailed
from odradek.embedded.free_ports import free_ports, hold_if_all_free
from odradek.extras import what_is_missing

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_ALSO_OF_CONTROLLERS = frozenset(
    {
        "auto.create.topics.enable",
        "auto.leader.rebalance.enable",
        "broker.session.timeout.ms",
        "broker.stream.grace.ms",
        "default.replication.factor",
        "leader.imbalance.check.interval.seconds",
        "leader.imbalance.per.broker.percentage",
        "log.level",
        "min.insync.replicas",
        "num.partitions",
        "unclean.leader.election.enable",
        "unclean.recovery.wait.ms",
    }
)
_ONLY_OF_CONTROLLERS = frozenset(
    {
        "broker.stream.grace.ms",
        "controller.quorum.election.timeout.ms",
        "metadata.log.max.entries.between.snapshots",
    }
)
_PORTS_A_CONTROLLER = 3  # Raft peers, controller service, metrics
_PORTS_A_BROKER = 4  # Kafka, gRPC, replication, metrics
_PORTS_HOLDER = 9089


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What to start."""

    brokers: int = 3
    controllers: int = 3
    gateways: int = 0
    data_dir: Path | None = None  # None: a temporary directory, removed at the end
    base_port: int = 0  # 0: free ports
    prefers_usual_ports: bool = False
    """Whether to listen where clients look first (9090, 9092, 8082), if all of these ports are free."""
    settings: tuple[str, ...] = ()  # NAME=VALUE of any broker setting


class EmbeddedCluster:
    """Starts the plan's processes, tells where they listen, kills and restarts single ones, stops all."""

    def __init__(self, plan: ClusterPlan) -> None:
        if missing := what_is_missing("a cluster", "server"):
            raise ChildProcessFailed(missing)
        self.plan = plan
        usual = _usual_ports(plan)
        self.has_usual_ports = plan.prefers_usual_ports and hold_if_all_free(usual, _PORTS_HOLDER)
        ports = iter(
            usual
            if self.has_usual_ports
            else free_ports(
                plan.controllers * _PORTS_A_CONTROLLER
                + plan.brokers * _PORTS_A_BROKER
                + plan.gateways,
                base_port=plan.base_port,
            )
        )
        self.is_temporary = plan.data_dir is None
        self.data_dir = (
            Path(tempfile.mkdtemp(prefix="odradek-")) if plan.data_dir is None else plan.data_dir
        )
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.cluster_id = self._stored_cluster_id()
        self._controller_ports = {i: _take(ports, 3) for i in range(1, plan.controllers + 1)}
        self._broker_ports = {i: _take(ports, 4) for i in range(1, plan.brokers + 1)}
        self._gateway_ports = {i: next(ports) for i in range(1, plan.gateways + 1)}
        self.controllers = {i: self._controller(i) for i in self._controller_ports}
        self.brokers = {i: self._broker(i) for i in self._broker_ports}
        self.gateways = {i: self._gateway(i) for i in self._gateway_ports}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def children(self) -> list[ChildProcess]:
        """All processes, controllers first."""
        return [*self.controllers.values(), *self.brokers.values(), *self.gateways.values()]

    def start(self) -> None:
        """Start every process; does not wait."""
        for child in self.children():
            child.start()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every process serves.

        Raises:
            ChildProcessFailed: one ended, or does not serve in time.
        """
        deadline = time.monotonic() + timeout_s
        for child in self.children():
            child.wait_ready(max(0.1, deadline - time.monotonic()))

    def stop(self) -> None:
        """Gateways, then brokers, then controllers; remove a temporary data directory."""
        for group in (self.gateways, self.brokers, self.controllers):
            running = [child for child in group.values() if child.is_running]
            for child in running:
                child.signal(15)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            for child in running:
                if not child.wait(max(0.1, deadline - time.monotonic())):
                    child.kill()
        if self.is_temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def describe(self) -> dict[str, Any]:
        """Where everything listens, and the pids; null for what does not exist."""
        return {
            "cluster_id": self.cluster_id,
            "kafka": ",".join(f"127.0.0.1:{p[0]}" for p in self._broker_ports.values()),
            "grpc": self.bootstrap,
            "controllers": ",".join(
                f"127.0.0.1:{ports[1]}" for ports in self._controller_ports.values()
            ),
            "gateway": next(
                (f"http://127.0.0.1:{port}" for port in self._gateway_ports.values()), None
            ),
            "gateways": [f"http://127.0.0.1:{port}" for port in self._gateway_ports.values()],
            "metrics": {
                **{
                    f"controller-{i}": f"127.0.0.1:{p[2]}"
                    for i, p in self._controller_ports.items()
                },
                **{f"broker-{i}": f"127.0.0.1:{p[3]}" for i, p in self._broker_ports.items()},
            },
            "data_dir": str(self.data_dir),
            "pids": {child.name: child.pid for child in self.children()},
        }

    @property
    def bootstrap(self) -> str:
        """gRPC addresses of all brokers, HOST:PORT,..."""
        return ",".join(f"127.0.0.1:{ports[1]}" for ports in self._broker_ports.values())

    @property
    def kafka_bootstrap(self) -> str:
        """Kafka addresses of all brokers, HOST:PORT,..."""
        return ",".join(f"127.0.0.1:{ports[0]}" for ports in self._broker_ports.values())

    def broker_data_dir(self, broker_id: int) -> Path:
        """Where that broker keeps its log."""
        return self.data_dir / f"broker-{broker_id}"

    def _stored_cluster_id(self) -> str:
        path = self.data_dir / "cluster.id"
        if not path.exists():
            path.write_text(f"{uuid.uuid4()}\n")
        return path.read_text().strip()

    def _controller(self, node_id: int) -> ChildProcess:
        raft, rpc, metrics = self._controller_ports[node_id]
        voters = ",".join(f"{i}@127.0.0.1:{p[0]}" for i, p in self._controller_ports.items())
        endpoints = ",".join(f"{i}@127.0.0.1:{p[1]}" for i, p in self._controller_ports.items())
        return self._child(
            f"controller-{node_id}",
            "odradek_metadata_quorum",
            {
                "node.id": node_id,
                "cluster.id": self.cluster_id,
                "log.dirs": self.data_dir / f"controller-{node_id}",
                "controller.quorum.voters": voters,
                "controller.rpc.endpoints": endpoints,
                "listeners": f"RAFT://127.0.0.1:{raft},CONTROLLER://127.0.0.1:{rpc}",
                "metrics.port": metrics,
                "storage.format.if.empty": "true",
            },
            *self._settings_in(_ALSO_OF_CONTROLLERS | _ONLY_OF_CONTROLLERS),
        )

    def _broker(self, broker_id: int) -> ChildProcess:
        kafka, grpc, replication, metrics = self._broker_ports[broker_id]
        endpoints = ",".join(f"{i}@127.0.0.1:{p[1]}" for i, p in self._controller_ports.items())
        arguments = {
            "node.id": broker_id,
            "cluster.id": self.cluster_id,
            "log.dirs": self.broker_data_dir(broker_id),
            "controller.rpc.endpoints": endpoints,
            "listeners": (
                f"KAFKA://127.0.0.1:{kafka},GRPC://127.0.0.1:{grpc},"
                f"REPLICATION://127.0.0.1:{replication}"
            ),
            "metrics.port": metrics,
        }
        own = [s for s in self.plan.settings if s.partition("=")[0] not in _ONLY_OF_CONTROLLERS]
        return self._child(f"broker-{broker_id}", "odradek_broker", arguments, *own)

    def _settings_in(self, names: frozenset[str]) -> list[str]:
        return [s for s in self.plan.settings if s.partition("=")[0] in names]

    def _gateway(self, gateway_id: int) -> ChildProcess:
        return self._child(
            f"gateway-{gateway_id}",
            "odradek_gateway",
            {
                "bootstrap": self.bootstrap,
                "listen": f"127.0.0.1:{self._gateway_ports[gateway_id]}",
            },
        )

    def _child(self, name: str, module: str, settings: dict[str, Any], *more: str) -> ChildProcess:
        arguments = []
        for setting in (*(f"{key}={value}" for key, value in settings.items()), *more):
            arguments += ["--set", setting]
        log_path = self.data_dir / f"{name}.log"
        return ChildProcess(name=name, module=module, arguments=arguments, log_path=log_path)


def _usual_ports(plan: ClusterPlan) -> list[int]:
    """The ports that clients know, in the order in which the processes take theirs."""
    controllers = [9605 + 10 * i + port for i in range(plan.controllers) for port in (0, -1, 1)]
    brokers = [9090 + 10 * i + port for i in range(plan.brokers) for port in (2, 0, 3, 4)]
    return controllers + brokers + [8082 + i for i in range(plan.gateways)]


def _take(ports: Iterator[int], count: int) -> tuple[int, ...]:
    return tuple(next(ports) for _ in range(count))
